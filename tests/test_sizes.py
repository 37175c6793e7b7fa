"""Amounts as people write them."""

from __future__ import annotations

from typing import Any

import pytest

from hessianlens.errors import InputError
from hessianlens.sizes import number_of, parse_size, parse_time, readable, readable_time


def test_units() -> None:
    assert [parse_size(text) for text in ("7", "7 b", "2kB", "1.5MiB", ".5 GB")] == [7, 7, 2e3, 1.5 * 2**20, 5e8]
    assert [parse_time(text) for text in ("7", "90s", "1.5m", "5 min", "2H")] == [7, 90, 90, 300, 7200]


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("amount", "form", "expected"),
    [(1, "", "1 loss"), (1.2, ".0f", "1 loss"), (0, "", "0 losses"), (1.5, "g", "1.5 losses")],
)
def test_one_of_a_thing_is_singular(amount: float, form: str, expected: str) -> None:
    assert number_of(amount, "loss", form, plural="losses") == expected


@pytest.mark.parametrize("parse", [parse_size, parse_time])
@pytest.mark.parametrize(
    "given", ["", "much", "5 parsecs", "-3", "1e3", 0, -1, float("nan"), float("inf"), None, True, [3]]
)
def test_what_is_no_amount_is_refused(parse: Any, given: Any) -> None:
    with pytest.raises(InputError, match=r"\w+: got .*, expected a number of"):
        parse(given)


def test_amounts_are_read_back_as_written() -> None:
    for size in (3, 5000, 2**21, 7 * 2**30):
        assert parse_size(readable(size)) == pytest.approx(size, rel=0.05)
    for seconds in (3.0, 100.0, 1500.0, 1e4):
        assert parse_time(readable_time(seconds)) == pytest.approx(seconds, rel=0.05)
