"""What long work displays while it runs, and how long it may take."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import TYPE_CHECKING, Any

from hessianlens.distributed import SINGLE_RANK, Ranks
from hessianlens.errors import check_that, needs_extra
from hessianlens.sizes import number_of
from hessianlens.state_guard import Restore, StateChange

if TYPE_CHECKING:
    from rich.progress import Progress


class Deadline:
    """A point in time, and what still fits before it.

    Args:
        seconds: How long it is from the start; None for no limit.
        start: When the clock was started, by `time.monotonic`; default: now.
        ranks: Processes that must stop at the same point: the clock of the first one counts.

    >>> Deadline(60).allows(30), Deadline(60).allows(90), Deadline().allows(1e9)
    (True, False, True)
    """

    def __init__(self, seconds: float | None = None, start: float | None = None, ranks: Ranks = SINGLE_RANK) -> None:
        self.seconds, self.ranks = seconds, ranks
        self._start = time.monotonic() if start is None else start

    @property
    def elapsed(self) -> float:
        """Seconds since it was set."""
        return time.monotonic() - self._start

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return float("inf") if self.seconds is None else self.ranks.broadcast(self.seconds - self.elapsed)

    def part(self, share: float) -> Deadline:
        """A share of the time, from the same start."""
        return Deadline(None if self.seconds is None else share * self.seconds, self._start, self.ranks)

    def among(self, ranks: Ranks) -> Deadline:
        """The same for processes that must stop together."""
        return Deadline(self.seconds, self._start, ranks)

    def allows(self, seconds: float) -> bool:
        """Whether work that takes so long would still end in time."""
        return self.left >= seconds


class Watch:
    """Progress callback that displays nothing.

    >>> Watch().step("layer0")
    """

    def begin(self, products: float | None, deadline: Deadline) -> None:
        """Work begins: so many products are planned, or all that can be made before the deadline."""

    def extend(self, products: float) -> None:
        """So many more products turn out to be needed."""

    def step(self, title: str) -> None:
        """What comes next."""

    def products(self, count: float) -> None:
        """So many further products are done; part of one where there are several batches."""

    def skip(self, count: float) -> None:
        """So many of the products that were planned were not needed."""

    def end(self) -> None:
        """All work is done."""


class BarWatch(Watch):
    """Shows a bar: products done, time passed and time left.

    Args:
        bar: A progress display of rich; see `product_bar`.
    """

    def __init__(self, bar: Progress) -> None:
        self.bar, self._done, self._deadline = bar, 0.0, Deadline()
        self._task = bar.add_task("Starting", total=None, made="")

    def begin(self, products: float | None, deadline: Deadline) -> None:
        """The bar fills with the products planned, or with the time given."""
        self._deadline = deadline
        self.bar.update(self._task, total=products if deadline.seconds is None else deadline.seconds, completed=0)

    def extend(self, products: float) -> None:
        """The bar becomes longer."""
        total = self.bar.tasks[self._task].total
        if self._deadline.seconds is None and total is not None:
            self.bar.update(self._task, total=total + products)

    def step(self, title: str) -> None:
        """The title stands before the bar."""
        self.bar.update(self._task, description=title)

    def products(self, count: float) -> None:
        """Counts, and moves the bar."""
        self._done += count
        made = number_of(self._done, "HVP", ",.0f")
        if self._deadline.seconds is None:
            self.bar.update(self._task, advance=count, made=made)
        else:
            self.bar.update(self._task, completed=min(self._deadline.elapsed, self._deadline.seconds), made=made)

    def skip(self, count: float) -> None:
        """Moves the bar, and counts nothing."""
        if self._deadline.seconds is None:
            self.bar.update(self._task, advance=count)

    def end(self) -> None:
        """The bar is full, also where less was needed than there was time for."""
        self.bar.update(self._task, total=1, completed=1)


def product_bar(shown: bool = True) -> Progress:
    """A display for `BarWatch` on standard error, gone when the work is done; nothing where that is no terminal."""
    with needs_extra("", "a bar"):
        import rich  # noqa: F401
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description:<36}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[made]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not shown or not (console.is_terminal or console.is_jupyter),
    )


def _has_rich() -> bool:
    try:
        import rich  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True


@contextmanager
def watching(progress: bool | Watch) -> Iterator[Watch]:
    """The watch that `progress` asks for: one that shows a bar, one that is silent, or the one given.

    Without rich, which draws the bar, all are silent.
    """
    check_that(isinstance(progress, (bool, Watch)), "progress", progress, "True or False")
    if isinstance(progress, Watch):
        yield progress
    elif progress and _has_rich():
        with _ProgressDisplay(product_bar()) as bar:
            yield BarWatch(bar)
    else:
        yield Watch()


def terminations_interrupt() -> AbstractContextManager[None]:
    """A scope in which a request to end the process (SIGTERM) is heard as Ctrl-C is, so that what is done is kept.

    Signals reach the main thread only; elsewhere the scope does nothing.
    """
    return _SignalHandler() if threading.current_thread() is threading.main_thread() else nullcontext()


class _SignalHandler(StateChange[None]):
    """SIGTERM raises KeyboardInterrupt."""

    def record(self) -> Restore:
        """The handler that it has; None is one that Python cannot put back."""
        before = signal.getsignal(signal.SIGTERM)
        return lambda: None if before is None else _set_handler(before)

    def change(self) -> None:
        """Another handler."""

        def interrupt(_: int, __: FrameType | None) -> None:
            raise KeyboardInterrupt

        _set_handler(interrupt)


def _set_handler(handler: Any) -> None:
    signal.signal(signal.SIGTERM, handler)


class _ProgressDisplay(StateChange["Progress"]):
    """A bar on the terminal, whose cursor is hidden for the time being, and through which all output goes."""

    def __init__(self, bar: Progress) -> None:
        self.bar = bar

    def record(self) -> Restore:
        """To take it off the terminal."""
        return self.bar.stop

    def change(self) -> Progress:
        """Show it."""
        self.bar.start()
        return self.bar


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
            took = self.deadline.ranks.broadcast(time.monotonic() - start)
            self._slowest[name] = max(took, self._slowest.get(name, 0.0))
            self._latest = name
