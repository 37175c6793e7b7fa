"""What a network does, recognised by its numbers: equality up to rounding, slopes by entry, coupled positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlens.derivatives.difference import random_like

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
        before, downstream = (torch.exp2((numbers % _WEIGHTS).to(u)) for numbers in (groups_in, groups_out))
        weighted = product(_spread(before, u) * u)
        for found, expected in zip(weighted, alone, strict=True):
            weights = _spread(downstream, expected)
            if not bool(((found - weights * expected).abs() <= smallest * weights).all()):
                return False
        groups_in, groups_out = groups_in // _WEIGHTS, groups_out // _WEIGHTS
    return True


def _spread(weights: Tensor, like: Tensor) -> Tensor:
    return weights.reshape(-1, *[1] * (like.ndim - 1))


@dataclass(frozen=True)
class Grouping:
    """Positions ``[N]`` as groups ``[group, member]``.

    Attributes:
        groups: Number of groups.
        members: Positions of a group.
        members_first: Whether the members of different groups alternate, as where the length comes before the batch.
    """

    groups: int
    members: int
    members_first: bool = False

    def arrange(self, positions: Tensor) -> Tensor:
        """``[N, ...]`` to ``[group, member, ...]``.

        >>> Grouping(2, 3, members_first=True).arrange(torch.arange(6)).tolist()
        [[0, 2, 4], [1, 3, 5]]
        """
        if self.members_first:
            return positions.unflatten(0, (self.members, self.groups)).transpose(0, 1)
        return positions.unflatten(0, (self.groups, self.members))

    def flatten(self, groups: Tensor) -> Tensor:
        """``[group, member, ...]`` to ``[N, ...]``."""
        return (groups.transpose(0, 1) if self.members_first else groups).flatten(0, 1)

    def numbers(self, device: torch.device) -> Tensor:
        """The group of every position, ``[N]``."""
        return self.flatten(torch.arange(self.groups, device=device)[:, None].expand(-1, self.members))


def groupings(outputs: tuple[int, ...], sequences: int) -> Iterator[Grouping]:
    """What the positions of a site may be grouped by, the finest first.

    Args:
        outputs: Shape of what is put out there, ``[..., f]``.
        sequences: Sequences of the batch.

    >>> [(g.groups, g.members, g.members_first) for g in groupings((2, 3, 4), 2)]
    [(6, 1, False), (2, 3, False)]
    >>> [(g.groups, g.members, g.members_first) for g in groupings((3, 2, 4), 2)]
    [(6, 1, False), (2, 3, True)]
    >>> [(g.groups, g.members, g.members_first) for g in groupings((6, 3, 4), 2)]
    [(18, 1, False), (2, 9, False)]
    """
    *leading, _ = outputs
    positions = int(torch.Size(leading).numel())
    yield Grouping(positions, 1)
    if positions % sequences or positions == sequences:
        return
    length = positions // sequences
    if len(leading) == 1 or leading[0] == sequences:  # one axis may be either; a batch usually comes first
        yield Grouping(sequences, length)
    if len(leading) == 1 or leading[-1] == sequences:
        yield Grouping(sequences, length, members_first=True)
    if len(leading) > 1 and leading[0] != sequences and leading[0] % sequences == 0:
        yield Grouping(sequences, length)  # choices or windows of a sequence, folded into the batch
