"""Progress of long work: a bar on a terminal, and elsewhere a line on standard error now and then."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from hessianlens.network.base.progress import BarWatch, Watch, product_bar
from hessianlens.sizes import readable_time

if TYPE_CHECKING:
    from hessianlens.network.base.progress import Deadline

FIRST_SECONDS, MOST_SECONDS = 15.0, 600.0
"""When the first line comes, and how far apart the lines are at most; each wait is twice the one before."""


@contextmanager
def shown_progress(title: str) -> Iterator[Watch]:
    """A watch on what is done inside.

    Args:
        title: What comes first.
    """
    if sys.stderr.isatty():
        with product_bar() as bar:
            watch = BarWatch(bar)
            watch.step(title)
            yield watch
        return
    lines, over = LineWatch(title), threading.Event()
    thread = threading.Thread(target=lines.report_until, args=(over,), daemon=True)
    thread.start()
    try:
        yield lines
    finally:
        over.set()
        thread.join()


class LineWatch(Watch):
    """Says in a line what is being done, how much of it is done and since when.

    Args:
        title: What comes first.

    >>> watch = LineWatch("Loading the model")
    >>> watch.line(90.0)
    'hessianlens: Loading the model, 90 s so far.'
    >>> watch.step("layer0.attn.q and 7 more")
    >>> watch.products(12)
    >>> watch.line(90.0)
    'hessianlens: layer0.attn.q and 7 more, 12 HVPs, 90 s so far.'
    """

    def __init__(self, title: str) -> None:
        self._title, self._done, self._planned = title, 0.0, ""

    def begin(self, products: float | None, deadline: Deadline) -> None:
        """Work begins: so many products, or so much time."""
        self._planned = f" of {products:,.0f}" if products is not None and deadline.seconds is None else ""

    def step(self, title: str) -> None:
        """What comes next."""
        self._title = title

    def products(self, count: float) -> None:
        """Counts."""
        self._done += count

    def line(self, seconds: float) -> str:
        """What there is to say after so many seconds."""
        done = f", {self._done:,.0f}{self._planned} HVPs" if self._done or self._planned else ""
        return f"hessianlens: {self._title}{done}, {readable_time(seconds)} so far."

    def report_until(self, over: threading.Event) -> None:
        """Print lines until it is over."""
        started, wait = time.monotonic(), FIRST_SECONDS
        while not over.wait(wait):
            typer.echo(self.line(time.monotonic() - started), err=True)
            wait = min(2 * wait, MOST_SECONDS)
