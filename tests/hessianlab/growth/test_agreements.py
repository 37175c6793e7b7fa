"""Recorded agreements with published means: their numbers, and what cannot be recorded."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from hessianlab.growth.agreements import agreement_of, read_agreements, write_agreement
from hessianlab.growth.comparison import ComparedPoint, SeriesComparison
from hessianlab.growth.series import SeriesKey
from hessianlab.results import Result, collect
from hessianlens.errors import InputError


def series(ratio: float, error: float, *z: float) -> SeriesComparison:
    points = tuple(ComparedPoint(float(n), ratio, 1.0, 0.1, 0.1, value, "") for n, value in enumerate(z))
    return SeriesComparison("fig8", SeriesKey(0, 1, 0, "query", "full"), points, ratio, error)


RESULT = Result("fig8", "paper", {}, (), collect())


def test_the_ratio_is_weighted_by_errors() -> None:
    found = agreement_of(RESULT, [series(1.1, 0.1, 0.5, 2.5), series(0.9, 0.2, 1.0), series(1.0, 0.0, 0.0)])
    weighted = math.exp((10 * math.log(1.1) + 5 * math.log(0.9)) / 15)
    assert found.ratio == pytest.approx(weighted, rel=1e-4)
    assert found.ratio_error == pytest.approx(weighted * 2 / 15, rel=1e-4)
    assert (found.series, found.points) == (2, 3), "what is zero in both says nothing"
    assert found.within_2 == pytest.approx(2 / 3, rel=1e-4) and found.within_3 == 1


def test_records_stay_beside_each_other(tmp_path: Path) -> None:
    path = tmp_path / "agreements.json"
    assert read_agreements(path) == []
    found = agreement_of(RESULT, [series(1.1, 0.1, 0.5)])
    write_agreement(found, path)
    write_agreement(found, path)
    assert read_agreements(path) == [found]
    path.write_text("{")
    with pytest.raises(InputError, match="expected JSON"):
        read_agreements(path)


def test_nothing_to_compare_is_said() -> None:
    with pytest.raises(InputError, match="nothing of fig8 could be compared with published means; run --preset paper"):
        agreement_of(RESULT, [series(1.0, 0.0, 0.0)])
