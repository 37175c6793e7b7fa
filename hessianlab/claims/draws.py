"""Where everything random in the ledger comes from: seeds counted from a first one.

A test draws from `seeds` (or `first_seed`) and from nothing else, so that `drawing_from` repeats it on other draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import TypeVar

Result = TypeVar("Result")

_FIRST: ContextVar[int] = ContextVar("first_seed", default=0)
_FOUND: dict[tuple[object, int], object] = {}


def first_seed() -> int:
    """The seed that all others are counted from; 0 for the recorded verdicts."""
    return _FIRST.get()


def seeds(count: int) -> range:
    """The seeds of a measurement.

    >>> list(seeds(3))
    [0, 1, 2]
    """
    return range(first_seed(), first_seed() + count)


@contextmanager
def drawing_from(first: int) -> Iterator[None]:
    """Inside, seeds begin with `first`.

    >>> with drawing_from(700):
    ...     print(list(seeds(2)))
    [700, 701]
    """
    token = _FIRST.set(first)
    try:
        yield
    finally:
        _FIRST.reset(token)


def measured(function: Callable[[], Result]) -> Callable[[], Result]:
    """Measure once a process for all claims that use it; another first seed measures anew."""

    @wraps(function)
    def once() -> Result:
        key = (function, first_seed())
        if key not in _FOUND:
            _FOUND[key] = function()
        return _FOUND[key]  # type: ignore[return-value]

    return once


def forget() -> None:
    """Drop every measurement that is kept."""
    _FOUND.clear()
