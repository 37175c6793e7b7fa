"""The curvature table: scales, what counts as flat, what it advises, and how it is written down."""

from __future__ import annotations

import csv
import io
import math

import pytest

from hessianlens.inspect.advice import advice_text, table_statements
from hessianlens.inspect.inspection import cell
from hessianlens.inspect.table import CurvatureTable, Row
from hessianlens.spectra import Estimate


def row(name: str, norm: float, shape: tuple[int, ...] = (4,), **others: float) -> Row:
    return Row(name, shape, {part: Estimate.exactly(value) for part, value in {"full": norm, **others}.items()})


def table(*rows: Row, expected: int | None = None) -> CurvatureTable:
    return CurvatureTable(rows, len(rows) if expected is None else expected)


def advice(found: CurvatureTable) -> str:
    return advice_text(table_statements(found))


def test_a_scale_is_the_rms_eigenvalue_over_the_median() -> None:
    """Of the identity of any size it is one: the norm alone would grow with the block."""
    identities = table(*(row(f"b{n}", math.sqrt(n), (n,)) for n in (1, 4, 100)))
    assert list(identities.scales.values()) == pytest.approx([1, 1, 1])
    assert advice(identities).startswith("Comparable scales: all blocks within a factor of 1.")
    assert list(table(row("a", 1), row("b", 2), row("c", 6)).scales.values()) == pytest.approx([0.5, 1, 3])


def test_flat_blocks_take_no_part() -> None:
    found = table(row("a", 1), row("b", 2), row("zero", 0), row("rounding", 1e-16, ggn=1e-30, functional=1e-16))
    assert found.flat == ("zero", "rounding")
    assert set(found.scales) == {"a", "b"}
    assert found.ratio(found.rows[-1]) is None and found.rows[-1].ratio == pytest.approx(1e14)
    assert advice(found).endswith("Flat, up to rounding: zero, rounding.")
    rough = CurvatureTable((row("a", 1), row("small", 1e-7)), 2, eps=2.0**-23)
    assert rough.flat == ("small",)


def test_advice_names_both_ends() -> None:
    said = advice(table(row("q", 1e-4), row("k", 2e-4), row("a", 1), row("b", 1), row("c", 1.1), row("v", 400)))
    assert "v has 4,000,000 times the curvature of q (rms eigenvalues 2e+02 and 5e-05)" in said
    assert "such as Adam" in said


@pytest.mark.parametrize("rows", [(), (row("a", 1),), (row("a", 1), row("flat", 0))])
def test_nothing_to_compare(rows: tuple[Row, ...]) -> None:
    assert advice(table(*rows)).startswith("Fewer than two blocks with curvature")


def test_the_functional_part_beside_the_outer_one() -> None:
    assert row("a", 1, ggn=4, functional=2).ratio == 0.5
    assert row("a", 1, ggn=4).ratio is None and row("a", 1, ggn=0, functional=1).ratio is None
    only = Row("a", (4,), {"ggn": Estimate.exactly(6)})
    assert only.norm == 6 and only.rms == 3


def test_an_unfinished_table_says_so() -> None:
    assert table(row("a", 1)).complete and not table(row("a", 1), expected=2).complete


def test_as_plain_data_and_as_a_file() -> None:
    estimate = Estimate(2.0, 0.5, 20, 0, "hutchinson", skewed=True)
    low, high = estimate.interval()
    found = table(Row("a", (2, 3), {"full": estimate, "ggn": Estimate.exactly(1.0)}), row("b", 0, (2,), ggn=0.0))
    first, second = found.to_list()
    numbers = {"value": 2.0, "stderr": 0.5, "low": low, "high": high}
    assert first["norms"]["full"] == {**numbers, "method": "hutchinson", "probes": 20}
    assert (first["parameters"], first["scale"], second["scale"]) == (6, 1.0, None)
    lines = list(csv.DictReader(io.StringIO(found.to_csv())))
    assert [line["block"] for line in lines] == ["a", "b"]
    assert (lines[0]["full"], lines[0]["full_stderr"], lines[0]["ggn_method"]) == ("2.0", "0.5", "exact")
    assert (float(lines[0]["full_low"]), float(lines[0]["full_high"]), lines[0]["ggn_high"]) == (low, high, "1.0")
    assert lines[1]["scale"] == ""


def test_cells() -> None:
    """The interval, never a standard error alone; a word where few probes decide."""
    assert cell(Estimate(2.0, 0.1, 20, 0, skewed=True)) == "2 -9.3% +15%"
    assert cell(Estimate(2.0, 0.1, 9, 0, skewed=True)) == "2 -9.6% +21% few"
    assert cell(Estimate(2.0, math.inf, 1, 0, skewed=True)) == "2 -55% x32 few"
    assert cell(Estimate(2.0, 1e-17, 20, 0, skewed=True)) == "2 -0% +0%"
    assert cell(Estimate(0.0, 0.0, 20, 0)) == "0"
    assert cell(Estimate.exactly(1 / 3)) == "0.3333"
