"""Two measurements side by side: what changed, with intervals from the probes that both share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hessianlens.display import DisplayableRows, Dots, Picture
from hessianlens.errors import expect
from hessianlens.network.norms import BlockNorms
from hessianlens.sizes import number_of
from hessianlens.spectra import Estimate
from hessianlens.spectra.intervals import student

Lengths = Mapping[str, Mapping[str, Tensor]]
PART_NAMES = {"full": "Hessian", "ggn": "Gauss-Newton part", "functional": "rest"}
"""What parts are called where they are shown."""


@dataclass(frozen=True)
class Change:
    """The norm of one block and part, before and after.

    Attributes:
        block: The block.
        part: "full", "ggn" or "functional".
        before: Its norm in the first measurement.
        after: In the second.
        difference: After minus before.
        low: Lower end of the 95 % interval of the difference.
        high: Upper end.
        paired: Whether both come from the same random vectors: what these have in common cancels.
    """

    block: str
    part: str
    before: Estimate
    after: Estimate
    difference: float
    low: float
    high: float
    paired: bool

    @property
    def sure(self) -> bool:
        """Whether the interval is on one side of zero."""
        return self.low > 0 or self.high < 0

    @property
    def factor(self) -> float:
        """After over before."""
        return self.after.value / self.before.value if self.before.value else math.inf


class Comparison(DisplayableRows):
    """The blocks that two measurements share, and what became of them.

    Args:
        changes: A change per block and part.
        only: Names that one of both has alone.
    """

    def __init__(self, changes: list[Change], only: tuple[str, ...]) -> None:
        self.changes, self.only = changes, only

    def __getitem__(self, key: tuple[str, str]) -> Change:
        found = next((change for change in self.changes if (change.block, change.part) == key), None)
        if found is None:
            raise KeyError(f"{key!r}, expected a block and a part that both measurements have")
        return found

    def __len__(self) -> int:
        return len(self.changes)

    def _records(self) -> list[dict[str, Any]]:
        return [
            {
                "block": c.block,
                "part": c.part,
                "before": c.before.value,
                "after": c.after.value,
                "factor": c.factor,
                "difference": c.difference,
                "low": c.low,
                "high": c.high,
                "paired": c.paired,
                "sure": c.sure,
            }
            for c in self.changes
        ]

    @property
    def summary(self) -> str:
        """One line: how many norms have changed for sure, and the largest changes."""
        full = self.of_first_part()
        sure = [change for change in full if change.sure]
        if not sure:
            return f"No norm of {number_of(len(full), 'block')} has changed beyond its interval."
        far = max(sure, key=lambda c: abs(math.log(c.factor)) if 0 < c.factor < math.inf else math.inf)
        return (
            f"{len(sure)} of {len(full)} blocks have changed beyond their intervals, most of all {far.block}: "
            f"{far.factor:.3g} times."
        )

    def of_first_part(self) -> list[Change]:
        """The changes of the first part that was measured, the Hessian where it was: one per block."""
        return [change for change in self.changes if change.part == self.changes[0].part]

    def _picture(self, asked: bool) -> Picture | None:
        """Norms before and after, a line per block."""
        changes = self.of_first_part()
        series = {"before": [c.before.dot() for c in changes], "after": [c.after.dot() for c in changes]}
        return Dots(tuple(c.block for c in changes), series, f"Frobenius norm, {PART_NAMES[changes[0].part]}")

    def _heading(self) -> str:
        return self.summary

    def __str__(self) -> str:
        rows = [["block", "part", "before", "after", "difference", "95 % interval"]]
        for c in self.changes:
            ends = f"[{c.low:.3g}, {c.high:.3g}]" + ("" if c.sure else " (may be none)")
            numbers = (c.before.value, c.after.value, c.difference)
            rows.append([c.block, c.part, *(f"{number:.4g}" for number in numbers), ends])
        widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        only = [f"In one of both only: {', '.join(self.only)}."] if self.only else []
        return "\n".join([*lines, self.summary, *only])

    __repr__ = __str__


def compare_norms(
    before: BlockNorms, after: BlockNorms, first: Lengths, second: Lengths, same_seed: bool
) -> Comparison:
    """Every block and part that both have.

    Args:
        before: Norms of the first measurement.
        after: Of the second.
        first: Lengths of the products of the first, by block and part.
        second: Of the second.
        same_seed: Whether their random vectors are the same.
    """
    keys = [key for key in before if key in after]
    expect(bool(keys), "other: got a measurement without a block in common, expected the same blocks of both.")
    changes = []
    for name, part in keys:
        one, other = first.get(name, {}).get(part), second.get(name, {}).get(part)
        ends = _paired(one, other) if same_seed and one is not None and other is not None else None
        paired = ends is not None
        difference = after[name, part].value - before[name, part].value
        low, high = ends if ends is not None else _apart(before[name, part], after[name, part])
        changes.append(Change(name, part, before[name, part], after[name, part], difference, low, high, paired))
    names = [list(dict.fromkeys(name for name, _ in norms)) for norms in (before, after)]
    only = tuple(dict.fromkeys([*(set(names[0]) ^ set(names[1]))]))
    return Comparison(changes, tuple(sorted(only)))


def _paired(one: Tensor, other: Tensor) -> tuple[float, float] | None:
    """The interval of ``|B| - |A|`` from ``|B v|^2 - |A v|^2`` of common vectors v; None if fewer than three are.

    ``|B| - |A| = (|B|^2 - |A|^2) / (|A| + |B|)``: the numerator is the mean of the differences, Student's interval is
    taken of it, and the sum below is known much better than the difference above.
    """
    count = min(len(one), len(other))
    if count < 3:
        return None
    a, b = one[:count].double().cpu(), other[:count].double().cpu()
    unit = float(torch.maximum(a.max(), b.max())) or 1.0
    differences = (b / unit).square() - (a / unit).square()
    total = math.sqrt(float((a / unit).square().mean())) + math.sqrt(float((b / unit).square().mean()))
    if total == 0:
        return 0.0, 0.0
    half = student(0.95, count - 1) * float(differences.std()) / math.sqrt(count)
    middle = float(differences.mean())
    return unit * (middle - half) / total, unit * (middle + half) / total


def _apart(before: Estimate, after: Estimate) -> tuple[float, float]:
    """From both intervals: the ends add in squares, as those of independent numbers do."""
    (low_a, high_a), (low_b, high_b) = before.interval(), after.interval()
    difference = after.value - before.value
    low = difference - math.hypot(after.value - low_b, high_a - before.value)
    return low, difference + math.hypot(high_b - after.value, before.value - low_a)
