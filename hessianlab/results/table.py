"""Small questions to the rows of a result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import floor, log10

import numpy as np

from hessianlab.results import Result, Row, Scalar
from hessianlab.wording import number


def select(result: Result, **wanted: Scalar) -> list[dict[str, Scalar]]:
    """The rows that have these values."""
    return [row for row in result.rows() if all(row.get(key) == value for key, value in wanted.items())]


def numbers(rows: Sequence[Row], field: str) -> np.ndarray:
    """One column as numbers; rows without it, or with None in it, are left out."""
    return np.array([float(value) for row in rows if (value := row.get(field)) is not None])


def choices(result: Result, field: str) -> list[str]:
    """The different values of a column, in the order of the plan."""
    return list(dict.fromkeys(str(row[field]) for row in result.rows() if row.get(field) is not None))


def block_ratios(result: Result, field: str = "median", **wanted: Scalar) -> np.ndarray:
    """Value block over query block, draw by draw, both parts full."""
    value, query = (numbers(select(result, part="full", block=b, **wanted), field) for b in ("value", "query"))
    return value / query


def span(values: np.ndarray, show: Callable[[float], str] | None = None) -> str:
    """A range in words.

    >>> span(np.array([3.0, 17.2]))
    '3 to 17.2'
    """
    write = show or short
    low, high = write(float(values.min())), write(float(values.max()))
    return low if low == high else f"{low} to {high}"


def short(value: float) -> str:
    r"""Three digits, in powers of ten where that is shorter.

    >>> short(123.4), short(1.0), short(999.7)
    ('123', '1', '1,000')
    >>> short(0.000012345).replace("\N{NO-BREAK SPACE}", " ")
    '1.23 × 10⁻⁵'
    """
    if value == 0 or -4 < floor(log10(abs(value))) < 6:
        return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"
    return number(value)
