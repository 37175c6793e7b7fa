"""When to measure: every so many steps, and never more than a share of the time that training takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hessianlens.errors import check_function, check_number, check_whole

Clock = Callable[[], float]


class Pace:
    """Spaces measurements out.

    A measurement is made where at least `every` steps have passed since the last one, and if ``spent + last <= overhead
    * trained``: the time that measurements have taken, with one more as long as the last, stays within a share of the
    time of training. The first one is made at once; until the run has paid for it there is no other.

    Args:
        every: Steps between measurements, at least.
        overhead: Time of measurements over that of training; None for no limit.
        clock: Seconds that pass; `time.perf_counter` by default.

    >>> now = 0.0
    >>> pace = Pace(every=1, overhead=0.1, clock=lambda: now)
    >>> due = []
    >>> for step in range(1, 60):
    ...     now += 1.0  # a step takes one second, a measurement two
    ...     if pace.due(step):
    ...         with pace.measuring(step):
    ...             now += 2.0
    ...         due.append(step)
    >>> due, round(pace.share, 3)
    ([1, 41], 0.069)
    """

    def __init__(self, every: int = 1, overhead: float | None = 0.1, clock: Clock = time.perf_counter) -> None:
        self.every = check_whole("every", every, 1)
        self.overhead = None if overhead is None else check_number("overhead", overhead, 0.0, strictly=True)
        check_function("clock", clock, "a function that tells the seconds")
        self.clock, self.spent, self.last = clock, 0.0, 0.0
        self._start: float | None = None
        self._measured: int | None = None

    @property
    def trained(self) -> float:
        """Seconds since the first step that did not go into measurements."""
        return 0.0 if self._start is None else self.clock() - self._start - self.spent

    @property
    def share(self) -> float:
        """Time of measurements over that of training, so far."""
        return self.spent / self.trained if self.trained > 0 else float("inf") if self.spent else 0.0

    def due(self, step: int) -> bool:
        """Whether it is time for a measurement."""
        if self._start is None:
            self._start = self.clock()
        if self._measured is None:
            return True
        # A step before the last measured one is a run that was taken back to a checkpoint.
        waited = step - self._measured >= self.every or step < self._measured
        return waited and (self.overhead is None or self.spent + self.last <= self.overhead * self.trained)

    @contextmanager
    def measuring(self, step: int) -> Iterator[None]:
        """The time that passes inside is not training."""
        began = self.clock()
        if self._start is None:
            self._start = began
        try:
            yield
        finally:
            self._measured, self.last = step, self.clock() - began
            self.spent += self.last
