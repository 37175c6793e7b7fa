"""Dense Hessians by autograd, derivative by derivative, knowing nothing of the closed forms."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.functional import hessian, jacobian


@dataclass(frozen=True, eq=False)
class DenseHessian:
    """Outer-product, functional and full Hessian as plain matrices, with the range of every parameter."""

    outer: Tensor
    functional: Tensor
    full: Tensor
    ranges: dict[Hashable, slice]

    def block(self, part: str, row: Hashable, column: Hashable) -> Tensor:
        return getattr(self, part)[self.ranges[row], self.ranges[column]]


def flat_output(layer, X: Tensor) -> tuple[Callable[[Tensor], Tensor], Tensor, dict[Hashable, slice]]:
    """The layer's batched output as a function of all weights in one vector, row-major, in block order."""
    parameters = layer.parameters
    sizes = [w.numel() for w in parameters.values()]
    batch = X if X.ndim == 3 else X[None]

    def output(theta: Tensor) -> Tensor:
        pieces = theta.split(sizes)
        weights = {n: p.reshape(w.shape) for (n, w), p in zip(parameters.items(), pieces, strict=True)}
        return layer.with_parameters(weights)(batch)

    starts = [sum(sizes[:k]) for k in range(len(sizes))]
    ranges = {n: slice(s, s + size) for n, s, size in zip(parameters, starts, sizes, strict=True)}
    return output, torch.cat([w.reshape(-1) for w in parameters.values()]), ranges


def dense_hessian(layer, X: Tensor, loss: Callable[[Tensor], Tensor]) -> DenseHessian:
    """``H_o = J^T C J``, ``H_f = d^2 <g, F>`` with g frozen, and H by differentiating the loss itself."""
    output, theta, ranges = flat_output(layer, X)
    F = output(theta).detach().requires_grad_()
    (g,) = torch.autograd.grad(loss(F), F)
    J = jacobian(output, theta).reshape(F.numel(), -1)
    C = hessian(loss, F.detach()).reshape(F.numel(), F.numel())
    functional = hessian(lambda t: (g * output(t)).sum(), theta)
    return DenseHessian(J.T @ C @ J, functional, hessian(lambda t: loss(output(t)), theta), ranges)


def hessian_vector_product(layer, X: Tensor, loss: Callable[[Tensor], Tensor], v: Tensor) -> Tensor:
    """``H v`` by double backward: the matrix-free witness."""
    output, theta, _ = flat_output(layer, X)
    theta = theta.requires_grad_()
    (gradient,) = torch.autograd.grad(loss(output(theta)), theta, create_graph=True)
    (product,) = torch.autograd.grad(gradient @ v, theta)
    return product


def score_split(layer, X: Tensor, loss: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """T-outer-product and T-functional Hessian of a head's W_Q, W_K, by differentiating through the scores."""
    batch = X if X.ndim == 3 else X[None]
    Q, K = layer.W_Q, layer.W_K
    state = layer.attend(batch)

    def scores(theta: Tensor) -> Tensor:
        q, k = theta.split([Q.numel(), K.numel()])
        return (batch @ q.reshape(Q.shape)) @ (batch @ k.reshape(K.shape)).transpose(1, 2) / state.scale

    theta = torch.cat([Q.reshape(-1), K.reshape(-1)])
    shift = state.scores - scores(theta)

    def loss_of_scores(T: Tensor) -> Tensor:
        return loss(state.activation.value(T + shift, state.visible) @ state.values)

    T = scores(theta).detach().requires_grad_()
    (pulled,) = torch.autograd.grad(loss_of_scores(T), T)
    J = jacobian(scores, theta).reshape(T.numel(), -1)
    M = hessian(loss_of_scores, T.detach()).reshape(T.numel(), T.numel())
    return J.T @ M @ J, hessian(lambda t: (pulled * scores(t)).sum(), theta)
