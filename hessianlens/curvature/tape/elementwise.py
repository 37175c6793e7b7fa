"""Functions that act on every entry by itself, however many calls they are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hessianlens.curvature.tape.step import Cotangent, Step, Tangents


class ElementwiseStep(Step):
    """``y = f(x)`` entry by entry: ``dy = f' dx``, and back ``f' u + (f'' g) dx``.

    Args:
        inputs: Number of x.
        output: Number of y.
        slope: f', a number where it is the same everywhere.
        second_slope: f''; None if it is zero.
    """

    def __init__(self, inputs: Sequence[int], output: int, slope: Tensor | float, second_slope: Tensor | None) -> None:
        super().__init__(inputs, output)
        self.slope, self.second_slope = slope, second_slope
        self.reads_moved = second_slope is not None

    def forward(self, moved: Tangents) -> Tensor:
        """``f' dx``."""
        (dx,) = moved
        assert dx is not None
        return self._sloped(dx)

    def keep(self, g: Tensor) -> None:
        """``f'' g`` is all that is needed of both."""
        self.second_slope = None if self.second_slope is None else self.second_slope * g

    def backward(
        self, u: Tensor | None, moved: Tangents, result: Tensor | None, wanted: Sequence[bool]
    ) -> list[Cotangent]:
        """``f' u + (f'' g) dx``."""
        dx = moved[0] if moved and self.second_slope is not None else None
        if dx is None or self.second_slope is None:
            return [None if u is None else self._sloped(u)]
        found = self.second_slope * dx
        if u is not None:
            found = found.add_(u) if self._plain else found.addcmul_(u, self._slope_of(u))
        return [found]

    @property
    def _plain(self) -> bool:
        return isinstance(self.slope, float) and self.slope == 1

    def _slope_of(self, like: Tensor) -> Tensor:
        return self.slope if isinstance(self.slope, Tensor) else like.new_tensor(self.slope)

    def _sloped(self, tensor: Tensor) -> Tensor:
        return tensor if self._plain else self.slope * tensor


def derivatives(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor | float, Tensor | None]:
    """The derivatives f' and f'' at every entry.

    >>> derivatives(lambda x: x**3, torch.tensor([1.0, 2.0]))
    (tensor([ 3., 12.]), tensor([ 6., 12.]))
    >>> derivatives(lambda x: 2 * x + 1, torch.ones(2))
    (2.0, None)
    """
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        y = function(leaf)
        if not y.requires_grad:
            return 0.0, None
        (slope,) = torch.autograd.grad(y.sum(), leaf, create_graph=True)
        second_slope = None
        if slope.requires_grad:
            (second_slope,) = torch.autograd.grad(slope.sum(), leaf, allow_unused=True)
    return _number(slope.detach()), None if second_slope is None or not bool(second_slope.any()) else second_slope


def _number(slope: Tensor) -> Tensor | float:
    """The slope as a number if it is the same everywhere."""
    first = slope.flatten()[0]
    return float(first) if bool((slope == first).all()) else slope
