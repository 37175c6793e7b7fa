"""A function of one sample, applied to many."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import vmap


def each(function: Callable[..., Tensor], *samples: Tensor) -> Tensor:
    """``function`` of every sample along the first axis, at once where it can be, else one after the other.

    A function whose control flow looks at its numbers (``if row.sum() > 0``) cannot be vectorised, and is looped over.

    >>> each(lambda row: row / row.sum() if row.sum() > 0 else row, torch.tensor([[1.0, 3.0], [-1.0, -1.0]]))
    tensor([[ 0.2500,  0.7500],
            [-1.0000, -1.0000]])
    """
    try:
        found = vmap(function)(*samples)
    except RuntimeError as error:
        if "vmap" not in str(error):
            raise
        found = torch.stack([function(*sample) for sample in zip(*samples, strict=True)])
    assert isinstance(found, Tensor)
    return found
