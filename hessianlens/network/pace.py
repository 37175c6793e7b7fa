"""How fast products are made, and whether a further one would end in time."""

from __future__ import annotations

import time
from collections.abc import Iterator

from hessianlens.network.watch import Deadline

_ENDED = object()
_TO_SHOW = 0.01
"""Share of the time in which the outcome is shown."""


class DeadlinePace:
    """Runs products as long as the next one, judged by those before it, ends in time.

    Args:
        deadline: When to stop.

    Attributes:
        going: Whether there is time left.

    >>> pace = DeadlinePace(Deadline(60))
    >>> pace.run("layer0", iter([None, None])), pace.going
    (True, True)
    """

    def __init__(self, deadline: Deadline) -> None:
        self.deadline, self.going = deadline, True
        self._slowest: dict[str, float] = {}
        self._latest = ""

    def expected(self, name: str) -> float:
        """Seconds that a product of a group takes: the slowest so far, or that of the group before it."""
        return self._slowest.get(name, self._slowest.get(self._latest, 0.0))

    def run(self, name: str, products: Iterator[None], spare_some: bool = False) -> bool:
        """Go through some products of a group; False if time was up before the last one.

        Args:
            name: The group.
            products: What to go through.
            spare_some: Leave some time to show the outcome, and for products that take longer than those before.
        """
        while True:
            spare = self.expected(name) + _TO_SHOW * (self.deadline.seconds or 0.0) if spare_some else 0.0
            if not self.deadline.allows(self.expected(name) + spare):
                self.going = False
                return False
            start = time.monotonic()
            if next(products, _ENDED) is _ENDED:
                return True
            took = self.deadline.ranks.agreed(time.monotonic() - start)
            self._slowest[name] = max(took, self._slowest.get(name, 0.0))
            self._latest = name
