"""Functions of a row of numbers: softmax, its logarithm, and what a norm does before its gain."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hessianlens.curvature.tape.step import Cotangent, Step, Tangents


class SoftmaxStep(Step):
    """``a = softmax(t)``: ``da = a (dt - <a, dt>)``, and back ``e - a sum(e)`` with ``e = a u + da (g - <a, g>)``.

    Args:
        inputs: Number of t.
        output: Number of a.
        weights: a.
        axis: Along which it is taken.
    """

    reads_result = True

    def __init__(self, inputs: Sequence[int], output: int, weights: Tensor, axis: int) -> None:
        super().__init__(inputs, output)
        self.weights, self.axis, self.centred = weights, axis, weights

    def forward(self, moved: Tangents) -> Tensor:
        """``a (dt - <a, dt>)``."""
        (dt,) = moved
        assert dt is not None
        found = self.weights * dt
        return found.addcmul_(self.weights, found.sum(self.axis, keepdim=True), value=-1)

    def keep(self, g: Tensor) -> None:
        """``g - <a, g>``."""
        self.centred = g - (self.weights * g).sum(self.axis, keepdim=True)

    def backward(
        self, u: Tensor | None, moved: Tangents, result: Tensor | None, wanted: Sequence[bool]
    ) -> list[Cotangent]:
        """``e - a sum(e)``."""
        e = None if u is None else self.weights * u
        if result is not None:
            e = result * self.centred if e is None else e.addcmul_(result, self.centred)
        if e is None:
            return [None]
        return [e.addcmul_(self.weights, e.sum(self.axis, keepdim=True), value=-1)]


class LogSoftmax(Step):
    """``y = log softmax(t)``: ``dy = dt - <p, dt>``, and back ``u - p sum(u) - sum(g) p (dt - <p, dt>)``.

    Args:
        inputs: Number of t.
        output: Number of y.
        logarithms: y.
        axis: Along which it is taken.
    """

    reads_result = True

    def __init__(self, inputs: Sequence[int], output: int, logarithms: Tensor, axis: int) -> None:
        super().__init__(inputs, output)
        self.chances, self.axis = logarithms.exp(), axis
        self.hvp = self.chances

    def forward(self, moved: Tangents) -> Tensor:
        """``dt - <p, dt>``."""
        (dt,) = moved
        assert dt is not None
        return dt - (self.chances * dt).sum(self.axis, keepdim=True)

    def keep(self, g: Tensor) -> None:
        """``sum(g) p``."""
        self.hvp = self.chances * g.sum(self.axis, keepdim=True)

    def backward(
        self, u: Tensor | None, moved: Tangents, result: Tensor | None, wanted: Sequence[bool]
    ) -> list[Cotangent]:
        """``u - p sum(u) - sum(g) p dy``."""
        found = None
        if u is not None:
            found = torch.addcmul(u, self.chances, u.sum(self.axis, keepdim=True), value=-1)
        if result is not None:
            found = -self.hvp * result if found is None else found.addcmul_(self.hvp, result, value=-1)
        return [found]


class Standardised(Step):
    """``y = r (x - mean(x))`` with ``r = (var(x) + eps)^(-1/2)``, over the last axes.

    With all means over these axes,

        dy = r (dx - mean(dx) - y mean(y dx)),
        back: r (u - mean(u) - y (mean(y u) + mean(dy g)) - dy mean(y g)) - r mean(y dx) xbar,

    where ``xbar = r (g - mean(g) - y mean(y g))``.

    Args:
        inputs: Number of x.
        output: Number of y.
        standardised: y.
        scale: r, with axes of length one.
        axes: How many of the last axes it is over.
    """

    reads_moved = True
    reads_result = True

    def __init__(self, inputs: Sequence[int], output: int, standardised: Tensor, scale: Tensor, axes: int) -> None:
        super().__init__(inputs, output)
        self.y, self.scale = standardised, scale
        self._axes = tuple(range(-axes, 0))
        self.g = self.xbar = standardised
        self.vjp = scale

    def _mean(self, tensor: Tensor) -> Tensor:
        return tensor.mean(self._axes, keepdim=True)

    def _projected(self, tensor: Tensor, along: Tensor) -> Tensor:
        """``r (t - mean(t) - y m)``."""
        found = tensor - self._mean(tensor)
        return found.addcmul_(self.y, along, value=-1).mul_(self.scale)

    def forward(self, moved: Tangents) -> Tensor:
        """``r (dx - mean(dx) - y mean(y dx))``."""
        (dx,) = moved
        assert dx is not None
        return self._projected(dx, self._mean(self.y * dx))

    def keep(self, g: Tensor) -> None:
        """g, ``mean(y g)`` and xbar."""
        self.g, self.vjp = g, self._mean(self.y * g)
        self.xbar = self._projected(g, self.vjp)

    def backward(
        self, u: Tensor | None, moved: Tangents, result: Tensor | None, wanted: Sequence[bool]
    ) -> list[Cotangent]:
        """As above."""
        dx = moved[0] if moved else None
        if dx is None or result is None:
            return [None if u is None else self._projected(u, self._mean(self.y * u))]
        found = self.y * (-self.scale * self._mean(result * self.g))
        if u is not None:
            found.add_(self._projected(u, self._mean(self.y * u)))
        found.addcmul_(result, self.scale * self.vjp, value=-1)
        return [found.addcmul_(self.xbar, self.scale * self._mean(self.y * dx), value=-1)]
