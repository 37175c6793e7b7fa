"""When to measure, and how much at a time: every piece of work is paid for by training before it is done."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Generic, TypeVar

from hessianlens.errors import check_function, check_number, check_whole

Clock = Callable[[], float]
RECENT_STEPS, RECENT_PIECES = 20, 5
"""Steps of training and pieces of work of one kind that a forecast is the median of."""


Kind = TypeVar("Kind", bound=Hashable)


class PieceTimes(Generic[Kind]):
    """Seconds that a piece of work of a kind takes: the median of the last ones.

    >>> prices = PieceTimes[str]()
    >>> for seconds in (1.0, 9.0, 1.2):
    ...     prices.add("HVP", seconds)
    >>> prices.of("HVP"), prices.of("gradient")
    (1.2, None)
    """

    def __init__(self) -> None:
        self._last: dict[Kind, deque[float]] = {}

    def add(self, kind: Kind, seconds: float) -> None:
        """Another piece has been done."""
        self._last.setdefault(kind, deque(maxlen=RECENT_PIECES)).append(check_number("seconds", seconds, 0.0))

    def of(self, kind: Kind) -> float | None:
        """What such a piece takes; None if there was none."""
        return median(self._last[kind]) if kind in self._last else None

    def __iter__(self) -> Iterator[tuple[Kind, float]]:
        return ((kind, median(last)) for kind, last in self._last.items())


_ROUNDING = 1e-9
"""What many small earnings may lack of their sum."""


class Pace:
    """Lets training pay for measurements, piece by piece.

    Training earns ``overhead`` times its duration. A piece of work is done where its price has been earned; what is not
    spent does not add up beyond the price of the dearest piece. So in any stretch of a run, from the first step or from
    any other, measurements take at most

        overhead * (time of training in it) + one piece.

    A piece that took longer than its price is paid for afterwards.

    Args:
        every: Steps from the beginning of a measurement to that of the next, at least.
        overhead: Time of measurements over that of training; None for no limit.
        clock: Seconds that pass; `time.perf_counter` by default.

    >>> now = 0.0
    >>> pace = Pace(overhead=0.1, clock=lambda: now)
    >>> done = []
    >>> for step in range(1, 60):
    ...     now += 1.0  # a step takes one second, a piece two
    ...     pace.tick(step)
    ...     if pace.affords(2.0):
    ...         with pace.spending():
    ...             now += 2.0
    ...         done.append(step)
    >>> done, round(pace.share, 3)
    ([21, 41], 0.069)
    """

    def __init__(self, every: int = 1, overhead: float | None = 0.1, clock: Clock = time.perf_counter) -> None:
        self.every = check_whole("every", every, 1)
        self.overhead = None if overhead is None else check_number("overhead", overhead, 0.0, strictly=True)
        check_function("clock", clock, "a function that tells the seconds")
        self.clock, self.spent, self.last, self.dearest = clock, 0.0, 0.0, 0.0
        self._start: float | None = None
        self._first: int | None = None
        self._began: int | None = None
        self._step: int | None = None
        self._credit = self._counted = self._at_step = 0.0
        self._steps: deque[float] = deque(maxlen=RECENT_STEPS)

    @property
    def trained(self) -> float:
        """Seconds since the first step that did not go into measurements."""
        return 0.0 if self._start is None else self.clock() - self._start - self.spent

    @property
    def share(self) -> float:
        """Time of measurements over that of training, so far."""
        return self.spent / self.trained if self.trained > 0 else float("inf") if self.spent else 0.0

    def tick(self, step: int) -> None:
        """A step of training has been made."""
        if self._start is None:
            self._start = self.clock()
        trained = self.trained
        if self._step is not None and step > self._step:
            self._steps.append((trained - self._at_step) / (step - self._step))
        self._at_step = trained
        self._first = step if self._first is None else self._first
        self._step = step

    def due(self, step: int) -> bool:
        """Whether so many steps have passed that a measurement may begin; one before the last is a run taken back."""
        return self._began is None or step - self._began >= self.every or step < self._began

    def begin(self, step: int) -> None:
        """A measurement begins, whose pieces have prices of their own."""
        self._began, self.dearest = step, 0.0

    def affords(self, price: float) -> bool:
        """Whether a piece of work of this price has been paid for."""
        self.dearest = max(self.dearest, price)
        self._earn()
        return self.overhead is None or self._credit >= price * (1 - _ROUNDING)

    def earns_in(self, steps: float) -> float:
        """Seconds that may go into measurements for so many steps, going by the last ones."""
        return (self.overhead or 0.0) * steps * median(self._steps) if self._steps else 0.0

    @property
    def steps(self) -> int:
        """Steps since the first one."""
        return 0 if self._step is None or self._first is None else max(0, self._step - self._first)

    def _earn(self) -> None:
        trained = self.trained
        earned = (self.overhead or 0.0) * max(0.0, trained - self._counted)
        self._credit, self._counted = min(self._credit + earned, self.dearest), trained

    @contextmanager
    def spending(self) -> Iterator[None]:
        """The time that passes inside is not training; `last` is how much it was."""
        self._earn()
        began = self.clock()
        if self._start is None:
            self._start = began
        try:
            yield
        finally:
            self.last = self.clock() - began
            self.spent += self.last
            self._credit -= self.last
