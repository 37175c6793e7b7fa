"""Processor time of a measurement by kind of work: how much of it goes into Hessian-vector products."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Literal, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
Kind = Literal["loading", "checks", "forecast", "closed_forms", "recording", "hvps"]


@dataclass
class WorkTimes:
    """Seconds of the processor by kind of work. What a check, a forecast or a closed form does is part of it.

    Attributes:
        loading: Libraries' and files' models and data.
        checks: The model run, compared with itself, and its second derivatives.
        forecast: Memory and time, before anything is measured.
        closed_forms: Exact norms, with the HVPs that certify them.
        recording: Graphs and tapes that HVPs go through.
        hvps: Products with probe vectors.
        other: All else.

    >>> times = WorkTimes()
    >>> with times.running(), work("hvps"):
    ...     total = sum(range(10**5))
    >>> 0 < times.hvps <= times.total
    True
    """

    loading: float = 0.0
    checks: float = 0.0
    forecast: float = 0.0
    closed_forms: float = 0.0
    recording: float = 0.0
    hvps: float = 0.0
    other: float = 0.0

    @property
    def total(self) -> float:
        """All of it."""
        return sum(self.by_kind().values())

    @property
    def measuring(self) -> float:
        """What is left of it once the model is there and checked."""
        return self.total - self.loading - self.checks - self.forecast

    def by_kind(self) -> dict[str, float]:
        """Seconds by the names of the attributes."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

    @contextmanager
    def running(self) -> Iterator[WorkTimes]:
        """A scope whose work is counted here."""
        watch = _StopWatch(self)
        token = _RUNNING.set(watch)
        try:
            yield self
        finally:
            watch.enter("other")
            _RUNNING.reset(token)

    def __str__(self) -> str:
        whole = self.total or 1.0
        parts = [f"{name.replace('_', ' ')} {seconds / whole:.0%}" for name, seconds in self.by_kind().items()]
        return f"processor time: {', '.join(parts)}"


class _StopWatch:
    """What is worked on now, and since when."""

    def __init__(self, times: WorkTimes) -> None:
        self.times, self.kind, self._since = times, "other", time.process_time()

    def enter(self, kind: str) -> None:
        """Other work begins; what was until now is counted."""
        now = time.process_time()
        setattr(self.times, self.kind, getattr(self.times, self.kind) + now - self._since)
        self.kind, self._since = kind, now


_RUNNING: ContextVar[_StopWatch | None] = ContextVar("times of work", default=None)


@contextmanager
def work(kind: Kind) -> Iterator[None]:
    """A scope whose time is of a kind, where somebody counts it; within other work than HVPs it is part of that."""
    watch = _RUNNING.get()
    before = "" if watch is None else watch.kind
    if watch is None or before not in ("other", "hvps"):
        yield
        return
    watch.enter(kind)
    try:
        yield
    finally:
        watch.enter(before)


def counted_as(kind: Kind) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: the time of a call is of a kind."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with work(kind):
                return function(*args, **kwargs)

        return call

    return decorate
