"""The ranks that work on a problem, seen from one of them; here it is the only one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from hessianlens.errors import check_function
from hessianlens.sizes import readable, readable_time


@dataclass
class Traffic:
    """Counts what a process has sent into sums, and how long these took.

    Attributes:
        sums: Sums of tensors over all processes.
        bytes: Bytes of these tensors, a process.
        seconds: Time in which they were added up, once all processes were there.
        waits: Handshakes, one before each sum and each decision.
        waited: Time in them: that of the messages, and of waiting for the slowest process.

    >>> Traffic(sums=2, bytes=2048, seconds=0.5, waits=4, waited=0.25)
    2 sums of 1.0 KiB in 250 ms each, 4 handshakes of 62.5 ms
    """

    sums: int = 0
    bytes: int = 0
    seconds: float = 0.0
    waits: int = 0
    waited: float = 0.0

    def __repr__(self) -> str:
        sums, waits = max(self.sums, 1), max(self.waits, 1)
        return (
            f"{self.sums} sums of {readable(self.bytes / sums)} in {_short(self.seconds / sums)} each, "
            f"{self.waits} handshakes of {_short(self.waited / waits)}"
        )


def _short(seconds: float) -> str:
    return readable_time(seconds) if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


T = TypeVar("T")


class Ranks:
    """The processes that hold a share of a problem's data each.

    What is summed, shared or agreed on goes through here and nowhere else. Every process must come to the same calls in
    the same order; `RankGroup` says so where one does not. A process alone is its own sum, and of one mind.

    Attributes:
        rank: The number of this process.
        size: How many there are.
        traffic: What went between them.

    >>> SINGLE_RANK.rank, SINGLE_RANK.size, SINGLE_RANK.broadcast(2.0), SINGLE_RANK.all_gather("a number", lambda: 3)
    (0, 1, 2.0, [3])
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size, self.traffic = rank, size, Traffic()

    @property
    def first(self) -> bool:
        """Whether this process prints and writes files."""
        return self.rank == 0

    def all_reduce(
        self, what: str, compute: Callable[[], Sequence[Tensor]], given: Sequence[Tensor] = ()
    ) -> Sequence[Tensor]:
        """Tensors of every process, added up; all processes get the same numbers.

        Args:
            what: What is summed, as text.
            compute: This process's summands, which may be overwritten. What it raises is raised by all processes.
            given: Vectors that it works on, which must be the same everywhere.
        """
        check_function("compute", compute, "a function that gives tensors")
        return compute()

    def all_gather(self, what: str, compute: Callable[[], T]) -> list[T]:
        """What every process finds, in the order of the processes.

        Args:
            what: What is looked for, as text.
            compute: Finds this process's part. What it raises is raised by all processes.
        """
        return [compute()]

    @contextmanager
    def raise_together(self, what: str) -> Iterator[None]:
        """What is raised inside by one process is raised by all of them.

        Args:
            what: What is done, as text.
        """
        yield

    def broadcast(self, number: float) -> float:
        """The first process's number, such as a time, which other clocks would tell differently."""
        return number


SINGLE_RANK = Ranks()
"""A process that shares its problem with nobody."""
