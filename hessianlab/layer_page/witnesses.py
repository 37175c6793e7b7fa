"""Three witnesses of one matrix: closed form, matrix-free products by autograd, dense autograd.

The second and third use only the layer's forward pass. Products differentiate it along one direction (reverse over
reverse for second derivatives, forward and reverse for the Gauss-Newton part); the dense matrices come from
`torch.func.hessian` and `torch.func.jacrev`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.func import grad, hessian, jacrev, jvp, vjp, vmap

from hessianlab.layer_page.facts import Agreement
from hessianlab.layer_page.setting import Setting
from hessianlens.operators import BlockGrid

TOLERANCE = 1e-10
_VECTORS = 4
_CANCELLATIONS = 100
"""Rounding errors that may add up in an entry."""


@dataclass(frozen=True, eq=False)
class Forward:
    """The layer and its loss as functions of one flat vector of weights, in the order Q, K, V."""

    setting: Setting

    @cached_property
    def weights(self) -> Tensor:
        """The weights now, row-major one after the other."""
        return torch.cat([w.reshape(-1) for w in self.setting.layer.parameters.values()])

    def output(self, flat: Tensor) -> Tensor:
        """``F``."""
        layer = self.setting.layer
        parts = flat.split([w.numel() for w in layer.parameters.values()])
        named = {name: p.reshape(w.shape) for (name, w), p in zip(layer.parameters.items(), parts, strict=True)}
        return layer.with_parameters(named)(self.setting.X)

    def loss(self, flat: Tensor) -> Tensor:
        """``l(F)``."""
        return self.setting.loss.value(self.output(flat))

    @cached_property
    def gradient(self) -> Tensor:
        """``dl/dF`` at the weights, by autograd."""
        return grad(self.setting.loss.value)(self.output(self.weights)).detach()

    def along_gradient(self, flat: Tensor) -> Tensor:
        """``<g, F>`` with g held fixed; its Hessian is the functional part."""
        return (self.gradient * self.output(flat)).sum()

    def loss_curvature(self, direction: Tensor) -> Tensor:
        """``d^2 l/dF^2`` times a direction shaped as F."""
        return jvp(grad(self.setting.loss.value), (self.output(self.weights).detach(),), (direction,))[1]


def dense_by_autograd(forward: Forward, part: str) -> Tensor:
    """The matrix itself, entry by entry from autograd."""
    w = forward.weights
    if part != "outer":
        return hessian(forward.loss if part == "full" else forward.along_gradient)(w).detach()
    J = jacrev(forward.output)(w).movedim(-1, 0).detach()
    return J.flatten(1) @ vmap(forward.loss_curvature)(J).flatten(1).T


def product_by_autograd(forward: Forward, part: str, vector: Tensor) -> Tensor:
    """The matrix times a vector, without the matrix."""
    if part == "outer":
        change = jvp(forward.output, (forward.weights,), (vector,))[1]
        pull_back = vjp(forward.output, forward.weights)[1]
        return pull_back(forward.loss_curvature(change))[0].detach()
    return _double_backward(forward.loss if part == "full" else forward.along_gradient, forward.weights, vector)


def _double_backward(function: Callable[[Tensor], Tensor], at: Tensor, vector: Tensor) -> Tensor:
    w = at.detach().clone().requires_grad_()
    (slope,) = torch.autograd.grad(function(w), w, create_graph=True)
    return torch.autograd.grad(slope @ vector, w)[0]


def agreement(setting: Setting, part: str) -> Agreement:
    """Compare the three witnesses of one part, on the matrix and on random vectors."""
    forward = Forward(setting)
    closed = setting.hessian.part(part)
    dense = dense_by_autograd(forward, part)
    generator = torch.Generator().manual_seed(setting.config.seed + 2)
    vectors = torch.randn(len(dense), _VECTORS, generator=generator, dtype=dense.dtype)
    products = torch.stack([product_by_autograd(forward, part, v) for v in vectors.T], 1)
    matrix_gap = relative_gap(_from_terms(closed), dense)
    closed_product, dense_product = relative_gap(closed[:] @ vectors, products), relative_gap(dense @ vectors, products)
    return Agreement(
        part=part,
        largest_entry=float(dense.abs().max()),
        closed_dense=matrix_gap,
        closed_product=closed_product,
        product_dense=dense_product,
        verdict=_verdict(setting, max(matrix_gap, closed_product, dense_product), float(dense.abs().max())),
    )


def _from_terms(grid: BlockGrid) -> Tensor:
    """The matrix from the printed terms of its blocks, whatever shorter way there is at its size."""
    return torch.cat([torch.cat([grid[r, c].written_out().to_dense() for c in grid.columns], 1) for r in grid.rows])


def _verdict(setting: Setting, gap: float, largest: float) -> str:
    """Judge a relative gap; what rounding leaves of cancelling terms cannot be told apart."""
    if gap < TOLERANCE:
        return "agree"
    return "agree up to rounding" if gap * largest < _CANCELLATIONS * setting.residue else "differ"


def relative_gap(found: Tensor, reference: Tensor) -> float:
    """Largest entrywise difference over the largest entry of the reference, if that is not zero."""
    return float((found - reference).abs().max()) / (float(reference.abs().max()) or 1.0)
