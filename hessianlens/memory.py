"""How much memory there is, and how to say it."""

from __future__ import annotations

import psutil
import torch

from hessianlens.errors import InputError

_NEVER_A_PROBLEM = 2**20
"""Bytes below which it is not worth asking the system."""


def available_bytes(device: torch.device) -> int:
    """Bytes that can still be allocated on `device`."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available


def readable(size: float) -> str:
    """A size in the unit a person would use.

    >>> readable(3 * 2**30)
    '3.0 GiB'
    """
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


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
    size = dtype.itemsize
    for n in shape:
        size *= n
    if size <= _NEVER_A_PROBLEM:
        return
    free = available_bytes(device)
    if working * size > 0.8 * free:
        raise InputError(
            f"{what} of shape {'x'.join(map(str, shape))} would need {readable(size)}{_at_the_peak(size, working)}, "
            f"but only {readable(free)} are free on {device}; {instead}."
        )
