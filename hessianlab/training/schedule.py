"""How the learning rate moves over a training."""

from __future__ import annotations

import math

WARM_UP = 0.1
"""Share of the steps in which the rate rises from 0."""


def warm_up_and_decay(step: int, steps: int) -> float:
    """The factor of the learning rate at a step, counted from 0: a linear rise, then half a cosine down to 0.

    >>> [round(warm_up_and_decay(step, 20), 2) for step in (0, 1, 2, 11, 19)]
    [0.5, 1.0, 1.0, 0.5, 0.01]
    """
    rise = max(1, round(WARM_UP * steps))
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))
