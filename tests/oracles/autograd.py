"""Dense Hessians by autograd, derivative by derivative, knowing nothing of the closed forms."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.functional import hessian, jacobian

Weights = Mapping[Hashable, Tensor]
Loss = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class DenseHessian:
    """Jacobian, outer-product, functional and full Hessian as plain matrices, with the range of every parameter."""

    jacobian: Tensor
    outer: Tensor
    functional: Tensor
    full: Tensor
    ranges: dict[Hashable, slice]

    def block(self, part: str, row: Hashable, column: Hashable) -> Tensor:
        return getattr(self, part)[self.ranges[row], self.ranges[column]]


def _flat(output: Callable[[Weights], Tensor], parameters: Weights) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """The output as a function of all weights in one vector, row-major, in their order."""
    sizes = [w.numel() for w in parameters.values()]

    def of_vector(theta: Tensor) -> Tensor:
        pieces = zip(parameters.items(), theta.split(sizes), strict=True)
        return output({name: piece.reshape(w.shape) for (name, w), piece in pieces})

    return of_vector, torch.cat([w.detach().reshape(-1) for w in parameters.values()])


def dense_parts(output: Callable[[Weights], Tensor], loss: Loss, parameters: Weights) -> DenseHessian:
    """``H_o = J^T C J``, ``H_f = d^2 <g, F>`` with g frozen, and H by differentiating the loss itself.

    Args:
        output: From weights by name to F.
        loss: From F to a number.
        parameters: The weights at which to differentiate.
    """
    of_vector, theta = _flat(output, parameters)
    F = of_vector(theta).detach().requires_grad_()
    (g,) = torch.autograd.grad(loss(F), F)
    J = jacobian(of_vector, theta).reshape(F.numel(), -1)
    C = hessian(loss, F.detach()).reshape(F.numel(), F.numel())
    functional = hessian(lambda t: (g * of_vector(t)).sum(), theta)
    full = hessian(lambda t: loss(of_vector(t)), theta)
    ranges, start = {}, 0
    for name, w in parameters.items():
        ranges[name] = slice(start, start + w.numel())
        start += w.numel()
    return DenseHessian(J, J.T @ C @ J, functional, full, ranges)


def _batch(X: Tensor) -> Tensor:
    return X if X.ndim == 3 else X[None]


def _output(layer, X: Tensor, X_kv: Tensor | None) -> Callable[[Weights], Tensor]:
    """From weights to the batched output; without tokens for the keys the layer takes one argument."""
    given = [_batch(X)] if X_kv is None else [_batch(X), _batch(X_kv)]
    return lambda weights: layer.with_parameters(weights)(*given)


def dense_hessian(layer, X: Tensor, loss: Loss, X_kv: Tensor | None = None) -> DenseHessian:
    """All blocks of a layer, under a loss of its batched output."""
    return dense_parts(_output(layer, X, X_kv), loss, layer.parameters)


def hessian_vector_product(layer, X: Tensor, loss: Loss, v: Tensor, X_kv: Tensor | None = None) -> Tensor:
    """``H v`` by double backward: the matrix-free witness."""
    output, theta = _flat(_output(layer, X, X_kv), layer.parameters)
    theta = theta.requires_grad_()
    (gradient,) = torch.autograd.grad(loss(output(theta)), theta, create_graph=True)
    (product,) = torch.autograd.grad(gradient @ v, theta)
    return product


def score_split(layer, X: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    """T-outer-product and T-functional Hessian of a head's W_Q, W_K, by differentiating through the scores."""
    batch = _batch(X)
    state = layer.attend(batch)

    def scores(weights: Weights) -> Tensor:
        return (batch @ weights["Q"]) @ (batch @ weights["K"]).transpose(1, 2) / state.scale

    parameters = {"Q": layer.W_Q, "K": layer.W_K}
    shift = state.scores - scores(parameters)

    def loss_of_scores(T: Tensor) -> Tensor:
        return loss(state.activation.value(T + shift, state.visible) @ state.values)

    split = dense_parts(scores, loss_of_scores, parameters)
    return split.outer, split.functional
