"""Who is missing when processes no longer work together."""

from __future__ import annotations

import time
from collections.abc import Sequence

from torch import distributed

PATIENCE = 3.0
"""Seconds in which processes that are left say that they are there."""


def missing(name: str, rank: int, size: int, patience: float = PATIENCE) -> Sequence[int] | None:
    """Processes of which nothing is heard; None if that cannot be found out either.

    Args:
        name: Of this roll call, the same in all processes.
        rank: This process.
        size: How many there should be.
        patience: How long the others are waited for, in seconds.
    """
    try:
        store = distributed.distributed_c10d._get_default_store()
        store.set(f"{name}/{rank}", "here")
        left, end = list(range(size)), time.monotonic() + patience
        while left and time.monotonic() < end:
            left = [other for other in left if not store.check([f"{name}/{other}"])]
            time.sleep(0.05)
    except Exception:  # the store is kept by a process that may be the one that has ended
        return None
    return left
