"""The most memory that a piece of torch code holds at once, counted tensor by tensor."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


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
