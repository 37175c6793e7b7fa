"""Optimisers of an ensemble: every member, or every weight of every member, has a learning rate of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor

Weights = Float[Tensor, "m p"]


class Optimiser(Protocol):
    """Moves weights in place, one step at a time."""

    def step(self, weights: Weights, gradient: Weights, rates: Tensor) -> None:
        """Move; `rates` has the shape (m, 1), or (m, p)."""


class SGDMomentum:
    """``v <- mu v + g``, ``w <- w - rate v``: `torch.optim.SGD` with momentum, for all members at once.

    >>> weights, one = torch.zeros(2, 1), torch.ones(2, 1)
    >>> optimiser = SGDMomentum()
    >>> for _ in range(2):
    ...     optimiser.step(weights, one, torch.tensor([[0.1], [1.0]]))
    >>> weights[:, 0]
    tensor([-0.2900, -2.9000])
    """

    def __init__(self, momentum: float = 0.9) -> None:
        self.momentum = momentum
        self._velocity: Tensor | None = None

    def step(self, weights: Weights, gradient: Weights, rates: Tensor) -> None:
        """One step."""
        if self._velocity is None:
            self._velocity = gradient.clone()
        else:
            self._velocity.mul_(self.momentum).add_(gradient)
        weights.sub_(rates * self._velocity)


class Adam:
    """``w <- w - rate m_hat / (sqrt(v_hat) + eps)``: `torch.optim.Adam`, for all members at once.

    >>> weights = torch.zeros(2, 1)
    >>> Adam().step(weights, torch.tensor([[3.0], [-0.01]]), torch.tensor([[0.1]]))
    >>> weights[:, 0]
    tensor([-0.1000,  0.1000])
    """

    def __init__(self, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8) -> None:
        self.betas, self.eps = betas, eps
        self._moments: tuple[Tensor, Tensor] | None = None
        self._steps = 0

    def step(self, weights: Weights, gradient: Weights, rates: Tensor) -> None:
        """One step."""
        if self._moments is None:
            self._moments = torch.zeros_like(gradient), torch.zeros_like(gradient)
        (first, second), (b1, b2) = self._moments, self.betas
        self._steps += 1
        first.lerp_(gradient, 1 - b1)
        second.mul_(b2).addcmul_(gradient, gradient, value=1 - b2)
        size = second.sqrt().div_((1 - b2**self._steps) ** 0.5).add_(self.eps)
        weights.sub_(first.div(size).mul_(rates / (1 - b1**self._steps)))


OPTIMISERS: dict[str, Callable[[], Optimiser]] = {"sgd": SGDMomentum, "adam": Adam}
"""SGD with momentum 0.9, and Adam with its usual constants."""
