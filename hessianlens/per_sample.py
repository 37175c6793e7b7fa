"""A function of one sample, and its derivatives, at many samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.functional import hessian, jacobian
from torch.func import vmap

Transform = Callable[[Callable[..., Tensor]], Callable[..., Tensor]]
Plain = Callable[..., Any]


def map_samples(function: Callable[..., Tensor], *samples: Tensor) -> Tensor:
    """``function`` of every sample along the first axis, at once where it can be, else one after the other.

    A function whose control flow looks at its numbers (``if row.sum() > 0``) cannot be vectorised, and is looped over.

    >>> map_samples(lambda row: row / row.sum() if row.sum() > 0 else row, torch.tensor([[1.0, 3.0], [-1.0, -1.0]]))
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


def sample_jacobians(function: Callable[..., Tensor], *samples: Tensor) -> Tensor:
    """The derivative by the first argument at every sample, constants for autograd.

    >>> sample_jacobians(lambda row: row.sum() ** 2, torch.ones(1, 2))
    tensor([[4., 4.]])
    """
    return _derivatives(torch.func.jacrev, jacobian, function, samples)


def sample_hessians(function: Callable[..., Tensor], *samples: Tensor) -> Tensor:
    """The second derivative of a scalar function by the first argument at every sample, constants for autograd.

    >>> sample_hessians(lambda row: row.sum() ** 2, torch.ones(1, 2))
    tensor([[[2., 2.],
             [2., 2.]]])
    """
    return _derivatives(torch.func.hessian, hessian, function, samples)


def _derivatives(
    transform: Transform, plain: Plain, function: Callable[..., Tensor], samples: Sequence[Tensor]
) -> Tensor:
    """By a transform of PyTorch's; one after the other where a `torch.autograd.Function` was not written for those."""
    try:
        return map_samples(transform(function), *samples).detach()
    except RuntimeError as error:
        if "setup_context" not in str(error):
            raise
    found = [plain(partial(_first, function, rest), first) for first, *rest in zip(*samples, strict=True)]
    return torch.stack(found).detach()


def _first(function: Callable[..., Tensor], rest: Sequence[Tensor], first: Tensor) -> Tensor:
    return function(first, *rest)
