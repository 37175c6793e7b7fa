"""A line while nothing can be shown yet: libraries take seconds to load."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def waiting(title: str) -> Iterator[None]:
    """Show on standard error, if that is a terminal, that something happens; gone when it is over."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(title):
        yield
