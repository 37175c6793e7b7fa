"""What a network does is recognised by its numbers: random vectors, equality up to rounding, slopes entry by entry."""

from __future__ import annotations

import torch
from torch import Tensor

from hessianlens.derivatives.potential import random_like

_ROUNDING = 1e3
"""Units in the last place of the largest entry that two ways to the same numbers may differ by."""


def close(found: Tensor, expected: Tensor) -> bool:
    """Whether two tensors are the same up to rounding.

    >>> close(torch.tensor([1.0, 1e-9]), torch.tensor([1.0, 0.0])), close(torch.ones(2), torch.ones(3))
    (True, False)
    """
    if found.shape != expected.shape:
        return False
    allowed = _ROUNDING * torch.finfo(expected.dtype).eps * float(expected.abs().max())
    return float((found - expected).abs().max()) <= allowed


def inside_transform() -> bool:
    """Whether a transform of `torch.func`, such as vmap, is at work: tensors are not what they seem there.

    >>> inside_transform(), bool(torch.func.vmap(lambda x: x if inside_transform() else x * 0)(torch.ones(2)).all())
    (False, True)
    """
    return torch._C._functorch.peek_interpreter_stack() is not None


def entrywise_slope(value: Tensor, at: Tensor, graph: bool = False) -> Tensor | None:
    """``dv_k / dx_k``, if no entry depends on another: a random cotangent must come back entry by entry.

    Args:
        value: v, as many entries as x.
        at: x, on whose graph it is.
        graph: Whether the slope is to be differentiated again.

    >>> x = torch.ones(2, requires_grad=True)
    >>> entrywise_slope(3 * x, x), entrywise_slope(x.flip(0), x) is None
    (tensor([3., 3.]), True)
    """
    drawn = random_like(value)
    found, vjp = (
        torch.autograd.grad(value, at, cotangent, retain_graph=True, create_graph=graph, allow_unused=True)[0]
        for cotangent in (torch.ones_like(value), drawn)
    )
    if found is None or vjp is None:
        return torch.zeros_like(at)
    return found if close(vjp.detach(), (drawn.reshape(at.shape) * found).detach()) else None
