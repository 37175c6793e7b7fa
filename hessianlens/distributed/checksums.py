"""Whether processes hold the same numbers, from a few of them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import torch
from torch import Tensor

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
