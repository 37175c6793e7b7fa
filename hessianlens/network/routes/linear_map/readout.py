"""The last linear map of a network and the cross-entropy behind it, in closed form whatever the vocabulary.

Where the outputs are ``o_n = y_n W + b`` and the loss weighs the cross-entropy of every position, its Hessian there is
``w_n (diag(p_n) - p_n p_n^T)`` with p the softmax of o. Then

    C_n = w_n W (diag(p_n) - p_n p_n^T) W^T

is the curvature at y, and behind y the network is this quadratic form: products need the vocabulary no more. C is
formed a slice of the vocabulary after the other. The Hessian of W itself is
``sum_n y_n y_n^T (x) w_n (diag(p_n) - p_n p_n^T)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from hessianlens.derivatives.difference import random_like
from hessianlens.derivatives.graph import once_only
from hessianlens.network.base.hooks import Hooks
from hessianlens.network.base.recognition import close
from hessianlens.network.base.uses import Kind, ParameterUses, Piece, Use
from hessianlens.problems import Batch, Problem

_SLICE = 2048
"""Words that are looked at together."""
_MIN_WORDS_PER_FEATURE = 16
"""Words to a feature of y from which the quadratic form, which is read from memory, is cheaper than the vocabulary."""
_LARGEST_BYTES = 2**28
"""Room for C."""
_MOST_OUTPUTS = 256
"""Outputs of a position up to which the second derivative of any loss is formed there."""
_CANCELLED = 1e-6
"""Share of its terms below which a sum has lost too many digits."""
_UNITS = 256
"""Units in the last place by which two ways to an entry of the loss's Hessian may differ."""


@dataclass(frozen=True, eq=False)
class Readout:
    """The last linear map at one batch.

    Attributes:
        use: How its weight enters.
        shift: The parameter of its bias, if there is one.
        weight: W, features by words.
        at: y, ``[position, feature]``.
        chances: p, ``[position, word]``.
        weights: w, ``[position]``.
        slope: The gradient of the loss at the outputs, ``[position, word]``.
    """

    use: Use
    shift: str | None
    weight: Tensor
    at: Tensor
    chances: Tensor
    weights: Tensor
    slope: Tensor

    @property
    def positions(self) -> int:
        """How many there are."""
        return len(self.at)

    @property
    def width(self) -> int:
        """Features of y."""
        return self.at.shape[1]

    @property
    def pays(self) -> bool:
        """Whether the quadratic form is cheaper than the vocabulary, and fits."""
        features, words = self.weight.shape
        held = len(self.at) * features**2 * self.weight.element_size()
        return words >= _MIN_WORDS_PER_FEATURE * features and held <= _LARGEST_BYTES

    @cached_property
    def curvature(self) -> Tensor:
        """C, ``[position, feature, feature]``."""
        return self.curvature_at(slice(None))

    def curvature_at(self, chosen: slice) -> Tensor:
        """C at some positions."""
        features, words = self.weight.shape
        chances, weights = self.chances[chosen], self.weights[chosen]
        found = self.at.new_zeros(len(chances), features, features)
        for n in weights.nonzero()[:, 0].tolist():
            for start in range(0, words, _SLICE):
                W, p = self.weight[:, start : start + _SLICE], chances[n, start : start + _SLICE]
                found[n].addmm_(W * p, W.T)
            mean = self.weight @ chances[n]
            found[n].addr_(mean, mean, alpha=-1).mul_(weights[n])
        return found

    def loss(self, y: Tensor, _: Batch) -> Tensor:
        """The loss as a function of y, up to a constant, exact to the second derivative."""
        value: Tensor = _Quadratic.apply(y.reshape(self.at.shape) - self.at, self.gradient, self.curvature)
        return value

    @cached_property
    def gradient(self) -> Tensor:
        """The gradient of the loss at y, ``[position, feature]``."""
        return self.slope @ self.weight.T

    def inputs(self, record: ParameterUses) -> Tensor:
        """Y on the graph of a run."""
        found = record.input(self.use)
        assert found is not None
        return found

    def makes_outputs(self, piece: Piece) -> bool:
        """Whether a piece is all of its weight or bias, whose products with inputs are the network's outputs."""
        use = piece.use
        if use.places is not None or not len(piece.features) == use.outputs[-1] == self.weight.shape[1]:
            return False
        if use.kind is Kind.SHIFT:
            return use.parameter == self.shift and use.site >= self.use.site
        return (use.parameter, use.site) == (self.use.parameter, self.use.site)


@dataclass(frozen=True, eq=False)
class LossAtOutputs:
    """Any other loss at the outputs of a network, of which it couples no two positions.

    Attributes:
        hessian: Its second derivative, ``[position, output, output]``.
        gradient: Its gradient, ``[position, output]``.
    """

    hessian: Tensor
    gradient: Tensor
    use = None

    @property
    def positions(self) -> int:
        """How many there are."""
        return len(self.gradient)

    @property
    def width(self) -> int:
        """Outputs of a position."""
        return self.gradient.shape[1]

    def curvature_at(self, chosen: slice) -> Tensor:
        """The second derivative at some positions."""
        return self.hessian[chosen].clone()


LossCurvature = Readout | LossAtOutputs
"""Where a curvature that is backpropagated begins."""


class _Quadratic(torch.autograd.Function):
    """``sum_n g_n . x_n + x_n . C_n x_n / 2``, whose derivatives read C once each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, g: Tensor, C: Tensor) -> Tensor:
        ctx.save_for_backward(x, g, C)
        return (x * (g + _turned(C, x) / 2)).sum()

    @staticmethod
    def backward(ctx: Any, *weights: Tensor) -> tuple[Tensor, None, None]:
        return weights[0] * _Slope.apply(*ctx.saved_tensors), None, None


class _Slope(torch.autograd.Function):
    """``g_n + C_n x_n``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, g: Tensor, C: Tensor) -> Tensor:
        ctx.save_for_backward(C)
        return g + _turned(C, x)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None, None]:
        (C,) = ctx.saved_tensors
        return _turned(C, cotangents[0]), None, None


def _turned(C: Tensor, x: Tensor) -> Tensor:
    return torch.bmm(C, x[..., None])[..., 0]


def readout_norm(readouts: Sequence[Readout], parameter: str) -> float | None:
    """The norm of the Hessian of W or b, which has no functional part; None where too many digits would cancel.

    With ``<diag(p) - p p^T, diag(q) - q q^T> = p.q - p^2.q - p.q^2 + (p.q)^2`` for every pair of positions.

    Args:
        readouts: The last map at each batch.
        parameter: That of the weight or of the bias.
    """
    p, w, y = (torch.cat([getattr(one, name) for one in readouts]).double() for name in ("chances", "weights", "at"))
    both, crossed = p @ p.T, p @ p.square().T
    pairs = torch.outer(w, w)
    if parameter == readouts[0].use.parameter:
        pairs = pairs * (y @ y.T).square()
    sums = [float((pairs * term).sum()) for term in (both, crossed, crossed.T, both.square())]
    total = sums[0] - sums[1] - sums[2] + sums[3]
    return None if total <= _CANCELLED * sums[0] else total**0.5


def readout_of(problem: Problem, batch: Batch) -> Readout | None:
    """The last linear map of a network, if it makes the outputs and the loss behind is cross-entropy; None if not.

    Args:
        problem: From `hessianlens.problem`.
        batch: One batch of it.
    """
    with problem.scope(), torch.no_grad(), Hooks(problem.params) as hooks:
        outputs = problem.forward(problem.params, batch)
    linear = [use for use in hooks.record.uses if use.kind in (Kind.IN_OUT, Kind.OUT_IN)]
    if not linear or linear[-1].inputs is None or tuple(outputs.shape) != linear[-1].outputs:
        return None
    use = linear[-1]
    weight = use.matrix(problem.params[use.parameter].detach())
    assert use.inputs is not None
    y, flat = use.inputs.flatten(0, -2), outputs.flatten(0, -2)
    downstream = [one for one in hooks.record.uses if one.site >= use.site and one.kind is Kind.SHIFT]
    bias = sum((one.matrix(problem.params[one.parameter].detach()) for one in downstream), weight.new_zeros(()))
    if not close(y @ weight + bias, flat):
        return None
    chances = flat.softmax(-1)
    found = _loss_weights(problem, batch, outputs, chances)
    if found is None:
        return None
    weights, slope = found
    shift = downstream[0].parameter if len(downstream) == 1 else None
    return Readout(use, shift, weight, y, chances, weights, slope)


def loss_at_outputs(problem: Problem, batch: Batch) -> LossAtOutputs | None:
    """The loss at the outputs of a network; None where it couples positions, or where outputs are many.

    Args:
        problem: From `hessianlens.problem`.
        batch: One batch of it.
    """
    with problem.scope(), torch.no_grad():
        outputs = problem.forward(problem.params, batch)
    if not isinstance(outputs, Tensor) or outputs.ndim < 2 or outputs.shape[-1] > _MOST_OUTPUTS:
        return None
    with problem.scope(), torch.enable_grad():
        point = outputs.detach().requires_grad_()
        value = problem.loss(point, batch)
        if not value.requires_grad or once_only(value):  # who asks for a block gets the reason
            return None
        (slope,) = torch.autograd.grad(value, point, create_graph=True)

        def turned(tangent: Tensor) -> Tensor:
            if not slope.requires_grad:
                return torch.zeros_like(tangent)
            found = torch.autograd.grad(slope, point, tangent, retain_graph=True, allow_unused=True)[0]
            return torch.zeros_like(tangent) if found is None else found

        columns = []
        for k in range(outputs.shape[-1]):
            tangent = torch.zeros_like(point)
            tangent[..., k] = 1
            columns.append(turned(tangent).flatten(0, -2))
        hessian, u = torch.stack(columns, -1), random_like(point)
        together = turned(u).flatten(0, -2)
    if not close((hessian @ u.flatten(0, -2)[..., None])[..., 0], together):
        return None
    return LossAtOutputs(hessian, slope.detach().flatten(0, -2))


def _loss_weights(problem: Problem, batch: Batch, outputs: Tensor, chances: Tensor) -> tuple[Tensor, Tensor] | None:
    """``w`` and the slope, if the Hessian of the loss is ``w_n (diag(p_n) - p_n p_n^T)``: two random products tell."""
    with problem.scope(), torch.enable_grad():
        point = outputs.detach().requires_grad_()
        value = problem.loss(point, batch)
        if not value.requires_grad or once_only(value):  # who asks for a block gets the reason
            return None
        (slope,) = torch.autograd.grad(value, point, create_graph=True)
        if not slope.requires_grad:
            return None
        weights = chances.new_zeros(len(chances))
        for seed in range(2):
            u = random_like(chances, seed)
            (turned,) = torch.autograd.grad(slope, point, u.reshape(point.shape), retain_graph=True, allow_unused=True)
            if turned is None:
                return None
            mean = (chances * u).sum(-1, keepdim=True)
            found, plain = turned.reshape(chances.shape), chances * (u - mean)
            if seed == 0:
                weights = (found * plain).sum(-1) / plain.square().sum(-1).clamp(min=torch.finfo(plain.dtype).tiny)
            # Entry by entry, so that not even a small further term of the loss is taken for rounding.
            limits = torch.finfo(u.dtype)
            sizes = weights.abs()[:, None] * chances * (u.abs() + mean.abs() + 1)
            allowed = _UNITS * limits.eps * sizes + limits.tiny / limits.eps
            if not bool(((found - weights[:, None] * plain).abs() <= allowed).all()):
                return None
    return weights, slope.detach().reshape(chances.shape)
