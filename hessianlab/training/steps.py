"""The training loop of an ensemble."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hessianlab.training.data import TrainingData
from hessianlab.training.ensemble import Ensemble
from hessianlab.training.optimisers import Optimiser
from hessianlab.training.schedule import warm_up_and_decay
from hessianlens.errors import expect

RUNAWAY = 3.0
"""A member whose loss exceeds its first loss so many times counts as diverged, as one whose loss is not finite."""


@dataclass(eq=False)
class Course:
    """How a training went.

    Attributes:
        diverged: The step at which a member diverged, counted from 0; -1 if it did not. Its weights stay as they were
            then, and nothing measured of it later means anything.
        losses: Training losses of the steps that were watched, (m,) each, by number of steps taken.
    """

    diverged: Tensor
    losses: dict[int, Tensor] = field(default_factory=dict)


def train(
    ensemble: Ensemble,
    data: TrainingData,
    loss: Callable[[nn.Module, Tensor], Tensor],
    optimiser: Optimiser,
    rates: Float[Tensor, "m n"],
    steps: int,
    watch: Callable[[int], None] = lambda step: None,
    watched: Collection[int] = (),
) -> Course:
    """Take so many steps with every member, in place.

    Args:
        ensemble: What learns; its `weights` are moved.
        data: What it learns from.
        loss: Of one model at tokens (B, L).
        optimiser: A new one.
        rates: Learning rates, one a member (m, 1) or one a weight (m, p), before warm-up and decay.
        steps: How many.
        watch: Called with the number of steps taken, before the first step with 0.
        watched: The numbers of steps at which to call it.
    """
    expect(rates.ndim == 2 and len(rates) == len(ensemble), f"rates: got shape {tuple(rates.shape)}, expected (m, n).")
    course = Course(torch.full((len(ensemble),), -1))
    moving = torch.ones(len(ensemble), 1, dtype=ensemble.weights.dtype)
    first: Tensor | None = None
    for step in range(steps):
        if step in watched:
            watch(step)
        weights = ensemble.weights.requires_grad_()
        losses = ensemble.over_members(loss, weights, data.at(step))
        (gradient,) = torch.autograd.grad(losses.sum(), weights)
        ensemble.weights = weights.detach()
        found = losses.detach()
        first = found if first is None else first
        lost = ~torch.isfinite(found) | (found > RUNAWAY * first)
        course.diverged[lost & (course.diverged < 0)] = step
        moving[lost] = 0
        if bool((moving == 0).any()):
            gradient = torch.where(moving > 0, gradient, 0)
        if step in watched:
            course.losses[step] = found
        optimiser.step(ensemble.weights, gradient, rates * moving * warm_up_and_decay(step, steps))
    if steps in watched:
        watch(steps)
    return course
