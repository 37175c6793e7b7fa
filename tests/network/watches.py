"""Watches for tests: one that counts, one that interrupts."""

from __future__ import annotations

import signal

from hessianlens.network.base.progress import Deadline, Watch


class Counting(Watch):
    """Counts products and remembers titles."""

    def __init__(self) -> None:
        self.planned: float | None = None
        self.done = 0.0
        self.passed = 0.0  # of what was planned
        self.ended = False
        self.titles: list[str] = []

    def begin(self, products: float | None, deadline: Deadline) -> None:
        self.planned, self.passed = products, 0.0

    def step(self, title: str) -> None:
        self.titles.append(title)

    def products(self, count: float) -> None:
        self.done += count
        self.passed += count

    def skip(self, count: float) -> None:
        self.passed += count

    def end(self) -> None:
        self.ended = True


class Interrupting(Counting):
    """Sends a real signal after some products."""

    def __init__(self, after: int, number: int = signal.SIGINT) -> None:
        super().__init__()
        self.after, self.number = after, number

    def products(self, count: float) -> None:
        super().products(count)
        if self.done == self.after:
            send(self.number)


def send(number: int) -> None:
    """A signal to this process; Ctrl-C is heard even where tests run in the background, which ignores it."""
    before = signal.getsignal(number)
    if number == signal.SIGINT:
        signal.signal(number, signal.default_int_handler)
    try:
        signal.raise_signal(number)
    finally:
        signal.signal(number, before)
