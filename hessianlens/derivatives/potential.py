"""A scalar function of named tensors: its derivatives by autograd, and whether these are to be trusted.

Every part of a network becomes one by a fixed random weight on each of its outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from hessianlens.derivatives.difference import Agreement, DerivativeComparison, DirectionSample, compare, confirm
from hessianlens.derivatives.graph import is_refusal, narrower, once_only, padding

Point = Mapping[str, Tensor]
Potential = Callable[[Point], Tensor]


def scale_of(tensor: Tensor, otherwise: float = 1.0) -> float:
    """Root mean square of a tensor; `otherwise` where it is zero throughout."""
    found = float(tensor.detach().double().square().mean().sqrt()) if tensor.numel() else 0.0
    return found if found > 0 else otherwise


def random_like(tensor: Tensor, seed: int = 0) -> Tensor:
    """Independent normal numbers in the shape, dtype and place of a tensor, the same on every device.

    >>> random_like(torch.zeros(2, dtype=torch.float64)).dtype
    torch.float64
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(tensor.shape, generator=generator, dtype=torch.float64, device="cpu").to(tensor)


def random_direction(leaf: Tensor, size: float, seed: int, left_out: Sequence[tuple[Tensor, int]]) -> Tensor:
    """A random direction at a leaf, zero in rows that PyTorch leaves out of its gradient on purpose."""
    drawn = size * random_like(leaf, seed).detach()
    for other, row in left_out:
        if other is leaf:
            drawn[row] = 0
    return drawn


def cannot_be_differentiated_twice(potential: Potential, point: Point) -> bool:
    """Whether autograd refuses, or would have to, to differentiate twice."""
    leaves = _leaves(point)
    value = potential(leaves)
    if once_only(value):
        return True
    try:
        slope = _slope(_gradient(value, leaves, graph=True), point)
        _gradient(slope, leaves, graph=False)
    except RuntimeError as error:
        return is_refusal(error)
    return False


def hides_a_derivative(potential: Potential, point: Point) -> bool:
    """Whether autograd's derivatives are clearly not those of the function."""
    return confirm(partial(_compared, potential, point)).verdict is Agreement.WRONG


def _compared(potential: Potential, point: Point, number: int) -> DerivativeComparison:
    """Autograd's first and second derivatives along a random direction, against differences."""
    scales = {name: scale_of(tensor) for name, tensor in point.items()}
    leaves = _leaves(point)
    value = potential(leaves)
    left_out = padding(value)
    seeds = {name: number * len(point) + k for k, name in enumerate(point)}
    v = {name: random_direction(leaf, scales[name], seeds[name], left_out) for name, leaf in leaves.items()}

    def there(step: float) -> DirectionSample:
        moved = _leaves({name: tensor + step * v[name] for name, tensor in point.items()})
        found = potential(moved)
        gradient = _gradient(found, moved, graph=False)
        return DirectionSample(found.detach(), _slope(gradient, v), gradient)

    claim = _gradient(_slope(_gradient(value, leaves, graph=True), v), leaves, graph=False)
    return compare(there, claim, scales, value.dtype, narrower(value))


def _leaves(point: Point) -> dict[str, Tensor]:
    return {name: tensor.detach().requires_grad_() for name, tensor in point.items()}


def _slope(gradient: Point, direction: Point) -> Tensor:
    return torch.stack([(gradient[name] * v).sum() for name, v in direction.items()]).sum()


def _gradient(value: Tensor, leaves: Point, graph: bool) -> dict[str, Tensor]:
    if not value.requires_grad:
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    found = torch.autograd.grad(value, list(leaves.values()), create_graph=graph, allow_unused=True)
    pairs = zip(leaves.items(), found, strict=True)
    return {name: torch.zeros_like(leaf) if d is None else d for (name, leaf), d in pairs}
