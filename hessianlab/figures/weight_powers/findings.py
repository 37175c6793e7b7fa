"""Counted powers of the weights against measured ones."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hessianlab.figures.weight_powers.measure import BLOCKS, PARTS, WEIGHTS
from hessianlab.results import Findings, Result
from hessianlab.results.table import numbers, select, short
from hessianlab.wording import several

TOLERANCE = {"small": 0.05, "drawn": 0.1}
"""A measured power, in the mean over draws, agrees with the counted one within this."""

_NAMES = {"Q": "W_Q", "K": "W_K", "V": "W_V"}


class Power(NamedTuple):
    """A weight's power in a block: mean over draws (None: the block is zero in all), range, and what was counted."""

    part: str
    block: str
    weight: str
    mean: float | None
    low: float | None
    high: float | None
    counted: int | None

    @property
    def off(self) -> float:
        """Distance of the mean from the counted power: 0 if both say that the block vanishes, infinite if one does."""
        if self.mean is None or self.counted is None:
            return 0.0 if self.mean is None and self.counted is None else float("inf")
        return abs(self.mean - self.counted)


def powers(result: Result, where: str) -> list[Power]:
    """Every part, block and weight, at the drawn weights or near zero ("drawn", "small")."""
    found = []
    for part in PARTS:
        for block in BLOCKS:
            for weight in WEIGHTS:
                rows = select(result, where=where, part=part, block=block, weight=weight)
                slopes = numbers(rows, "power")
                mean, low, high = (float(f(slopes)) if slopes.size else None for f in (np.mean, np.min, np.max))
                counted = rows[0]["counted"]
                expected = None if counted is None else int(counted)
                found.append(Power(part, block, weight, mean, low, high, expected))
    return found


def agrees(power: Power, where: str) -> bool:
    """Whether a measured power is the counted one."""
    return power.off <= TOLERANCE[where]


def tell(result: Result) -> list[str]:
    """How many powers hold in the limit and at the drawn weights, which parts are exact, and what differs most."""
    small, drawn = powers(result, "small"), powers(result, "drawn")
    held = [power for power in drawn if agrees(power, "drawn")]
    right = [power for power in small if agrees(power, "small")]
    worst = max((power.off for power in small if np.isfinite(power.off)), default=0.0)
    exact = [
        f"{_NAMES[weight]} in the {part} part"
        for part in PARTS
        for weight in WEIGHTS
        if all(agrees(power, "drawn") for power in drawn if (power.part, power.weight) == (part, weight))
    ]
    sentences = [
        f"As one weight matrix goes to zero, {len(right)} of {len(small)} powers of W_Q, W_K and W_V in the blocks are "
        f"those that counting the factors gives; the largest difference is {short(worst)}.",
        f"At the drawn weights {len(held)} of {len(drawn)} still are (within {TOLERANCE['drawn']:g})"
        + (f", among them all of {several(exact)}." if exact else "."),
    ]
    moved = sorted((p for p in drawn if not agrees(p, "drawn")), key=lambda p: -p.off)[:3]
    if moved:
        told = "; ".join(
            f"{_NAMES[p.weight]} in {p.part} {p.block} (counted {p.counted}, measured "
            f"{'none' if p.mean is None else format(p.mean, '.2f').replace('-', '−')})"
            for p in moved
        )
        sentences.append(
            f"Farthest from the counted power there: {told}. A weight that is not small also moves the attention "
            "matrix or the residual, which no factor in front of a block shows."
        )
    return sentences


FINDINGS = Findings(tell)
