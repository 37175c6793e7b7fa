"""Memory: how much there is, what a piece of work holds at its peak, and refusals before it is too late."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from hessianlens.errors import InputError
from hessianlens.sizes import readable

SAFE_SHARE = 0.8
"""Share of the free memory that a piece of work may claim."""
_NEVER_A_PROBLEM = 2**24
"""Bytes below which it is not worth asking the system."""
_CGROUP = Path("/sys/fs/cgroup")


def available_bytes(device: torch.device) -> int:
    """Bytes that can still be allocated on `device`; in a container, those that its limit leaves."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return min(psutil.virtual_memory().available, _left_in_container())


def process_bytes() -> int:
    """Bytes of main memory that this process holds: libraries, weights, data."""
    return int(psutil.Process().memory_info().rss)


def _left_in_container() -> int:
    """What the memory limit of a control group (version 2) leaves; without one, more than any machine has."""
    try:
        limit, used = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        # Memory of files that were read counts as used, and is given back when it is needed.
        cached = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        return 2**62 if limit == "max" else max(0, int(limit) - int(used) + int(cached.get("inactive_file", 0)))
    except (OSError, ValueError):
        return 2**62


def _at_the_peak(size: float, working: float) -> str:
    return "" if working == 1 else f" ({readable(working * size)} while it is formed)"


def ensure_fits(
    what: str,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    instead: str,
    working: float = 1.0,
) -> None:
    """Refuse to form a tensor that would not fit in memory.

    Args:
        what: The thing asked for, to be named in the message.
        shape: Its shape.
        dtype: Its dtype.
        device: Where it would live.
        instead: What the user can do about it.
        working: Times its own size that forming it holds at the peak.
    """
    size = dtype.itemsize * math.prod(shape)
    if size <= _NEVER_A_PROBLEM:
        return
    free = available_bytes(device)
    if working * size > SAFE_SHARE * free:
        raise InputError(
            f"{what} of shape {'x'.join(map(str, shape))} would need {readable(size)}{_at_the_peak(size, working)}, "
            f"but only {readable(free)} are free on {device}; {instead}."
        )


_SAYINGS = ("not enough memory", "out of memory", "can't allocate memory")
"""How torch says that an allocation failed where it raises a plain RuntimeError."""


def lacks_memory(error: BaseException) -> bool:
    """Whether an error says that an allocation failed.

    >>> lacks_memory(MemoryError()), lacks_memory(ValueError("out of range"))
    (True, False)
    """
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(saying in str(error).lower() for saying in _SAYINGS)


@contextmanager
def memory_errors_explained(instead: str) -> Iterator[None]:
    """An allocation that fails ends in an `InputError` that says what to do, whatever torch or NumPy raised.

    >>> try:
    ...     with memory_errors_explained("take shorter sequences"):
    ...         raise MemoryError
    ... except InputError as error:
    ...     str(error).endswith("take shorter sequences.")
    True
    """
    try:
        yield
    except InputError:
        raise
    except (MemoryError, RuntimeError) as error:
        if not lacks_memory(error):
            raise
        said = " ".join(str(error).split())
        text = f" ({said[:200]})" if said else ""
        raise InputError(f"memory: an allocation failed{text}; {instead}.") from error


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all tensors that come into being within its scope and are alive at the same time.

    On the meta device tensors have sizes but no contents: there the count costs neither memory nor arithmetic, and a
    question about contents, which a model may ask to pick a shortcut ("is nothing masked?"), is answered with yes.

    Args:
        owned: Tensors that are there anyway and are not counted.

    Attributes:
        peak: The most that was alive at once, in bytes.
        made: Everything that was made, in bytes.

    >>> with LiveBytes() as live:
    ...     for _ in range(3):
    ...         square = torch.zeros(100, 100, device="meta") @ torch.zeros(100, 100, device="meta")
    >>> live.peak  # two operands and a product, beside the product of the round before
    160000
    """

    def __init__(self, owned: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.peak = self.made = self._now = 0
        self._known: set[int] = set()
        for tensor in owned:
            self._note(tensor, counted=False)

    def _note(self, tensor: Tensor, counted: bool = True) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        size = storage.nbytes() if counted else 0
        self._known.add(key)
        self._now += size
        self.made += size
        self.peak = max(self.peak, self._now)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self._now -= size

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run `func` and count what it makes."""
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta and args[0].dtype == torch.bool:
            return True
        out = func(*args, **(kwargs or {}))
        for found in tree_iter(out):
            if isinstance(found, Tensor):
                self._note(found)
        return out
