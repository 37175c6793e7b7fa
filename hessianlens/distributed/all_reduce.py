"""Ranks of a `torch.distributed` group that share a problem: all-reduce, a handshake before it, common decisions.

Before anything goes between them, all ranks say in a handshake what they are about to do: four numbers each. So a rank
that asks for something else than the others, that has failed, or that has ended, is noticed there, and all of them end
with a sentence about it. Collectives of different kinds would wait for each other for ever; there are none, since the
handshake comes first, always the same.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor, distributed

from hessianlens.distributed.ranks import SINGLE_RANK, Ranks
from hessianlens.errors import InputError, RankError, check_that
from hessianlens.failures import error_line

_WHOLE = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}


def checksum(tensors: Iterable[Tensor]) -> int:
    """A number that depends on every bit of some tensors and on no rounding.

    >>> checksum([torch.ones(2)]) == checksum([torch.ones(2)]), checksum([torch.ones(2)]) == checksum([torch.ones(3)])
    (True, False)
    """
    found = 0
    for tensor in tensors:
        # Sums of whole numbers are the same in any order, on any device.
        bits = tensor.detach().contiguous()
        whole = bits if bits.dtype == torch.bool else bits.view(_WHOLE[bits.element_size()])
        total = int(whole.sum(dtype=torch.int64)) if bits.numel() else 0
        found = zlib.crc32(f"{found} {tuple(tensor.shape)} {tensor.dtype} {total}".encode())
    return found


HANDSHAKE_TIMEOUT_SECONDS = 3.0
"""Seconds in which processes that are left say that they are there."""


def missing(name: str, rank: int, size: int, timeout: float = HANDSHAKE_TIMEOUT_SECONDS) -> Sequence[int] | None:
    """Processes of which nothing is heard; None if that cannot be found out either.

    Args:
        name: Of this handshake, the same in all processes.
        rank: This process.
        size: How many there should be.
        timeout: How long the others are waited for, in seconds.
    """
    try:
        store = distributed.distributed_c10d._get_default_store()
        store.set(f"{name}/{rank}", "here")
        left, end = list(range(size)), time.monotonic() + timeout
        while left and time.monotonic() < end:
            left = [other for other in left if not store.check([f"{name}/{other}"])]
            time.sleep(0.05)
    except Exception:  # the store is kept by a process that may be the one that has ended
        return None
    return left


T = TypeVar("T")

_FINE, _FAILED = 0.0, 1.0
_ANNOUNCED = "_announced_to_all_ranks"
"""The mark of an error that every process raises by itself."""
_groups: dict[object, RankGroup] = {}


class RankGroup(Ranks):
    """The processes of a group; see `Ranks`.

    Args:
        group: The group. How long a process is waited for is what it says, its `timeout`. Handshakes go through gloo
            where it has that (``cpu:gloo,cuda:nccl``), which reports at once a process that has ended.
    """

    def __init__(self, group: distributed.ProcessGroup) -> None:
        super().__init__(distributed.get_rank(group), distributed.get_world_size(group))
        self._group, self._calls, self._broken = group, 0, ""
        self._place, self.timeout = _place(group)

    # --- what is asked of it -----------------------------------------------------------------------------------------

    def all_reduce(
        self, what: str, compute: Callable[[], Sequence[Tensor]], given: Sequence[Tensor] = ()
    ) -> Sequence[Tensor]:
        """Tensors of every process, added up."""
        found: Sequence[Tensor] = ()
        with self._matched(lambda: f"{what}, {[(tuple(t.shape), t.dtype) for t in found]}, {_numbers(given)}"):
            found = [tensor.detach().contiguous() for tensor in compute()]
        start = time.perf_counter()
        with self._alive("a sum"):
            for tensor in found:
                distributed.all_reduce(tensor, group=self._group)
        self.traffic.sums += 1
        self.traffic.bytes += sum(tensor.numel() * tensor.element_size() for tensor in found)
        self.traffic.seconds += time.perf_counter() - start
        return found

    def all_gather(self, what: str, compute: Callable[[], T]) -> list[T]:
        """What every process finds, in the order of the processes."""
        with self._matched(lambda: what):
            found = compute()
        return self._gathered(found)

    @contextmanager
    def raise_together(self, what: str) -> Iterator[None]:
        """What is raised inside by one process is raised by all of them."""
        with self._matched(lambda: what):
            yield

    def broadcast(self, number: float) -> float:
        """The first process's number."""
        return self._handshake("a number of the first process", _FINE, number)

    # --- how it is done ----------------------------------------------------------------------------------------------

    @contextmanager
    def _matched(self, what: Callable[[], str]) -> Iterator[None]:
        """A handshake behind what is done inside, successful or not."""
        try:
            yield
        except Exception as error:
            if not _is_announced(error):
                self._handshake("", _FAILED, error=_announced(error))
            raise
        self._handshake(what(), _FINE)

    def _handshake(self, what: str, state: float, number: float = 0.0, error: Exception | None = None) -> float:
        """Make sure that all processes are about to do the same; gives the first one's number."""
        if self._broken:
            raise _announced(RankError(self._broken))
        self._calls += 1
        checksum = float(zlib.crc32(f"{self._calls} {what}".encode()))
        said = [checksum, -checksum, state, number if self.first else -torch.inf]
        heard = torch.tensor(said, dtype=torch.float64, device=self._place)
        start = time.perf_counter()
        with self._alive(what.partition(", [")[0] or "a failure"):
            distributed.all_reduce(heard, distributed.ReduceOp.MAX, group=self._group)
        self.traffic.waits += 1
        self.traffic.waited += time.perf_counter() - start
        agreed: float
        highest, lowest, worst, agreed = heard.tolist()
        if worst == _FAILED:
            self._tell_failure(error)
            return agreed
        if highest != -lowest:
            everyone = [f"rank {rank}: {asked}" for rank, asked in enumerate(self._gathered(what))]
            raise _announced(
                RankError(
                    f"ranks ask for different things ({'; '.join(everyone)}); expected the same calls in the same "
                    "order, with the same arguments, seeds and vectors, on every rank."
                )
            )
        return agreed

    def _tell_failure(self, own: Exception | None) -> None:
        """Raise what another process has failed with; a process that has failed itself goes on with its own."""
        of_input = isinstance(own, InputError)
        said = None if own is None else (str(own) if of_input else error_line(own), of_input)
        everyone = self._gathered(said)
        if own is not None:
            return
        rank, (message, of_input) = next((rank, found) for rank, found in enumerate(everyone) if found is not None)
        raise _announced((InputError if of_input else RankError)(f"rank {rank}: {message}"))

    def _gathered(self, value: T) -> list[T]:
        found: list[Any] = [None] * self.size
        with self._alive("an exchange"):
            distributed.all_gather_object(found, value, group=self._group)
        return found

    @contextmanager
    def _alive(self, what: str) -> Iterator[None]:
        """A collective that fails says who is missing, and is the last one."""
        start = time.monotonic()
        try:
            yield
        except RuntimeError as error:
            self._give_up(what, time.monotonic() - start, error)

    def _give_up(self, what: str, waited: float, error: RuntimeError) -> NoReturn:
        gone = missing(f"hessianlens/{self._group.group_name}/{self._calls}", self.rank, self.size)
        named = "a process" if not gone else f"rank {', '.join(map(str, gone))}" + (" each" if len(gone) > 1 else "")
        came = "has ended" if waited < self.timeout.total_seconds() else f"did not come within {self.timeout}"
        self._broken = (
            f"{named} of {self.size} {came} ({what}, waited {waited:.1f} s); look for its own message above, and start "
            "all of them again. Every rank must make the same calls."
        )
        _groups.pop(self._group, None)
        raise _announced(RankError(self._broken)) from error


def _announced(error: Exception) -> Exception:
    """An error that all processes know of."""
    setattr(error, _ANNOUNCED, True)
    return error


def _is_announced(error: BaseException | None) -> bool:
    """Whether all processes know of an error, or of the one that it comes from."""
    while error is not None and not getattr(error, _ANNOUNCED, False):
        error = error.__cause__ or error.__context__
    return error is not None


def _numbers(given: Sequence[Tensor]) -> str:
    return f"with vectors {checksum(given):08x}" if given else "without vectors"


def _place(group: distributed.ProcessGroup) -> tuple[torch.device, timedelta]:
    """Where handshakes are held, and how long a group waits for a process: PyTorch's default if it does not tell."""
    place = torch.device("cpu" if any(device.type == "cpu" for device in group._device_types) else "cuda")
    try:
        timeout = group._get_backend(place).options._timeout
    except (AttributeError, RuntimeError):  # not every backend says
        timeout = None
    return place, timeout if isinstance(timeout, timedelta) else distributed.default_pg_timeout


def ranks_of(group: object) -> Ranks:
    """The processes of a group; this one alone if there is none, or if it has a single one.

    Args:
        group: ``torch.distributed.group.WORLD`` or another group that this process belongs to; None for no group.

    >>> ranks_of(None) is SINGLE_RANK
    True
    >>> ranks_of(2)
    Traceback (most recent call last):
    hessianlens.errors.InputError: process_group: got 2, expected a process group, such as torch.distributed.group.WORLD
    after init_process_group, or None.
    """
    if group is None:
        return SINGLE_RANK
    wanted = "a process group, such as torch.distributed.group.WORLD after init_process_group, or None"
    usable = distributed.is_available() and isinstance(group, distributed.ProcessGroup)
    check_that(usable, "process_group", group, wanted)
    assert isinstance(group, distributed.ProcessGroup)
    if distributed.get_world_size(group) == 1:
        return SINGLE_RANK
    if group not in _groups:
        _groups[group] = RankGroup(group)
    return _groups[group]
