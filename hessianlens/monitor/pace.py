"""When to measure: measurements are spaced out so that each is paid for by training time before it is made."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hessianlens.errors import check_function, check_number, check_whole

Clock = Callable[[], float]


class Pace:
    """Spaces measurements out, so that each is paid for before it is made.

    A measurement is made where at least `every` steps have passed since the last one, and if

        debt + forecast <= overhead * (time trained since the last measurement)

    The forecast is the time of the last measurement, or for the first one what was said of it; the debt is by how much
    the last one took longer than its forecast. So measurements take at most this share of the time from the first step
    to any other, and from the end of one measurement to that of any later one. Without a forecast the first one is made
    at once, and paid for before the second.

    Args:
        every: Steps between measurements, at least.
        overhead: Time of measurements over that of training; None for no limit.
        clock: Seconds that pass; `time.perf_counter` by default.
        forecast: Seconds that the first measurement will take; None if that is not known.

    >>> now = 0.0
    >>> pace = Pace(every=1, overhead=0.1, clock=lambda: now, forecast=2.0)
    >>> due = []
    >>> for step in range(1, 60):
    ...     now += 1.0  # a step takes one second, a measurement two
    ...     if pace.due(step):
    ...         with pace.measuring(step):
    ...             now += 2.0
    ...         due.append(step)
    >>> due, round(pace.share, 3)
    ([21, 41], 0.069)
    """

    def __init__(
        self,
        every: int = 1,
        overhead: float | None = 0.1,
        clock: Clock = time.perf_counter,
        forecast: float | None = None,
    ) -> None:
        self.every = check_whole("every", every, 1)
        self.overhead = None if overhead is None else check_number("overhead", overhead, 0.0, strictly=True)
        check_function("clock", clock, "a function that tells the seconds")
        self.forecast = None if forecast is None else check_number("forecast", forecast, 0.0)
        self.clock, self.spent, self.last = clock, 0.0, 0.0
        self._start: float | None = None
        self._measured: int | None = None
        self._debt = self._paid_until = 0.0

    @property
    def trained(self) -> float:
        """Seconds since the first step that did not go into measurements."""
        return 0.0 if self._start is None else self.clock() - self._start - self.spent

    @property
    def share(self) -> float:
        """Time of measurements over that of training, so far."""
        return self.spent / self.trained if self.trained > 0 else float("inf") if self.spent else 0.0

    @property
    def asks_for_forecast(self) -> bool:
        """Whether the first measurement waits for somebody to say what it will take."""
        return self.overhead is not None and self.forecast is None and self._measured is None

    def due(self, step: int) -> bool:
        """Whether it is time for a measurement."""
        if self._start is None:
            self._start = self.clock()
        if self._measured is None and (self.forecast is None or self.overhead is None):
            return True
        # A step before the last measured one is a run that was taken back to a checkpoint.
        waited = self._measured is None or step - self._measured >= self.every or step < self._measured
        return waited and (self.overhead is None or self._debt + (self.forecast or 0.0) <= self._earned)

    @property
    def waiting(self) -> str:
        """How long the next measurement takes, and how much of that is paid for."""
        if self.overhead is None or self.forecast is None:
            return "the next measurement is not waited for"
        needed, earned = self._debt + self.forecast, self._earned
        return (
            f"the next measurement takes about {self.forecast:.2g} s, of which {min(1.0, earned / needed):.0%} are "
            f"paid for by {self.overhead:.0%} of the time of training; overhead=None measures at once"
        )

    @property
    def _earned(self) -> float:
        """Seconds that may go into measurements since the last one."""
        return 0.0 if self.overhead is None else self.overhead * (self.trained - self._paid_until)

    @contextmanager
    def pricing(self) -> Iterator[None]:
        """The time that passes inside is that of work which a forecast is made from."""
        with self._spending():
            yield

    @contextmanager
    def measuring(self, step: int) -> Iterator[None]:
        """The time that passes inside is not training."""
        before = self.spent
        try:
            with self._spending():
                yield
        finally:
            self._measured, self.last = step, self.spent - before
            self.forecast = self.last

    @contextmanager
    def _spending(self) -> Iterator[None]:
        began = self.clock()
        if self._start is None:
            self._start = began
        earned = self._earned
        try:
            yield
        finally:
            took = self.clock() - began
            self.spent += took
            self._debt, self._paid_until = max(0.0, self._debt + took - earned), self.trained
