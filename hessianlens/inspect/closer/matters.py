"""The blocks that a reader should know of, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from hessianlens.inspect.table import CurvatureTable, Row, times

_THREE = 3


@dataclass(frozen=True)
class Matter:
    """A block and what is to be said of it."""

    name: str
    why: str


def blocks_that_matter(table: CurvatureTable, count: int = _THREE) -> list[Matter]:
    """At most three blocks: what limits the step, what learns slowest, what is least like Gauss-Newton, what is large.

    Matrices come before biases and gains. A block that is named once is not named again.

    >>> from hessianlens.spectra import Estimate
    >>> sizes = {"q": (0.1, 0.02), "v": (4.0, 4.0), "o": (8.0, 8.0)}
    >>> norms = {n: {"full": Estimate.exactly(h), "ggn": Estimate.exactly(g)} for n, (h, g) in sizes.items()}
    >>> table = CurvatureTable(tuple(Row(n, (4, 4), found) for n, found in norms.items()), 3)
    >>> [matter.name for matter in blocks_that_matter(table)]
    ['o', 'q', 'v']
    """
    found: dict[str, str] = {}
    for name, why in _reasons(table):
        if len(found) < count:
            found.setdefault(name, why)
    return [Matter(name, why) for name, why in found.items()]


def _reasons(table: CurvatureTable) -> Iterator[tuple[str, str]]:
    curved = [row for row in table.rows if row.name in table.scales]
    rows = [row for row in curved if len(row.shape) > 1] or curved
    if not rows:
        return
    middle, kind = median(row.rms for row in rows), "matrix" if len(rows[0].shape) > 1 else "block"
    top, flattest = max(rows, key=lambda row: row.rms), min(rows, key=lambda row: row.rms)
    yield (
        top.name,
        f"the sharpest: {times(top.rms / middle)} times the curvature of the median {kind} (rms eigenvalue "
        f"{top.rms:.2g}). It limits the learning rate of whatever shares one with it.",
    )
    if flattest.name != top.name:
        yield (
            flattest.name,
            f"the flattest: {times(flattest.rms / middle)} times the curvature of the median {kind} (rms eigenvalue "
            f"{flattest.rms:.2g}). With one learning rate for all it learns slowest.",
        )
    ratios = {row.name: ratio for row in rows if (ratio := table.ratio(row)) is not None}
    if ratios:
        least = max(ratios, key=lambda name: ratios[name])
        yield (
            least,
            f"the least like Gauss-Newton: its functional part is {ratios[least]:.2g} times its outer product. There "
            "negative curvature is to be looked for, and a Gauss-Newton method sees least.",
        )
    for row in sorted(rows, key=lambda row: -row.norm):
        yield row.name, f"among the largest: its norm is {row.norm:.3g}, {_share(row, curved):.0f} % of all, squared."


def _share(row: Row, rows: list[Row]) -> float:
    return 100 * row.norm**2 / sum(other.norm**2 for other in rows)
