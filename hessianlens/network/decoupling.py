"""Whether a linear map couples groups of positions, from a few products with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_WEIGHTS = 64
"""Powers of two in use; their span is far from overflow in single precision."""
_TERMS = 2.0**16
"""More than a sum over the features and outputs of a position has terms."""


def couples_no_groups(
    product: Callable[[Tensor], Sequence[Tensor]], u: Tensor, groups_in: Tensor, groups_out: Tensor
) -> bool:
    """Whether ``M (w u) = w M u`` for weights w of the groups and a random u: then M couples no two of them.

    The weights are powers of two, with which rounding commutes, so the two sides agree to the last bit unless a group
    reaches another one of a different weight. Two groups differ in a digit of their numbers, so a product for every
    digit is enough.

    Args:
        product: ``M v``, one or several matrices M at once.
        u: A random vector, ``[position, ...]``.
        groups_in: The group of every position, ``[position]``.
        groups_out: The same for what comes out.

    >>> u, groups = torch.ones(2, 1), torch.arange(2)
    >>> (
    ...     couples_no_groups(lambda v: [3 * v], u, groups, groups),
    ...     couples_no_groups(lambda v: [v.flip(0)], u, groups, groups),
    ... )
    (True, False)
    """
    # Numbers too small to be normal are rounded more coarsely; what they could hide is as small.
    smallest = _TERMS * torch.finfo(u.dtype).tiny
    if smallest > torch.finfo(u.dtype).eps:  # float16, in which that is not small
        return False
    alone = product(u)
    while bool((groups_in > 0).any() | (groups_out > 0).any()):
        before, behind = (torch.exp2((numbers % _WEIGHTS).to(u)) for numbers in (groups_in, groups_out))
        weighted = product(_spread(before, u) * u)
        for found, expected in zip(weighted, alone, strict=True):
            weights = _spread(behind, expected)
            if not bool(((found - weights * expected).abs() <= smallest * weights).all()):
                return False
        groups_in, groups_out = groups_in // _WEIGHTS, groups_out // _WEIGHTS
    return True


def _spread(weights: Tensor, like: Tensor) -> Tensor:
    return weights.reshape(-1, *[1] * (like.ndim - 1))
