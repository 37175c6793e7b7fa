"""Training small models, many at once: the members of an ensemble are one stack of weights and one graph.

`Ensemble` stacks models of one architecture, `train` moves all of them, each at its own learning rate and on its own
data. A member never meets another: what one computes, and whether it diverges, does not depend on its neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call, vmap

from hessianlens.errors import InputError, expect

Loss = Callable[[Any, Any], Tensor]


class Ensemble:
    """Models of one architecture whose weights are the rows of one matrix, ``weights[m, p]``.

    What is computed for all members is computed once for a batched model (`torch.func.vmap`), so that the work of an
    operation, and not the call of it, takes the time. Members share nothing: ``losses`` differentiates to a matrix
    whose row m belongs to member m alone.

    Args:
        models: At least one; they must have the same parameters by name and shape, and are not changed.

    >>> ensemble = Ensemble([nn.Linear(2, 1) for _ in range(3)])
    >>> ensemble.weights.shape, ensemble.names
    (torch.Size([3, 3]), ('weight', 'bias'))
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        expect(len(models) > 0, "models: got none, expected one or more.")
        self._model = models[0]
        shapes = {name: tuple(parameter.shape) for name, parameter in models[0].named_parameters()}
        for model in models:
            if {name: tuple(p.shape) for name, p in model.named_parameters()} != shapes:
                raise InputError("models: got different parameters, expected the same names and shapes in all.")
        self._shapes = shapes
        self._sizes = [parameter.numel() for parameter in models[0].parameters()]
        flat = [torch.cat([p.detach().reshape(-1) for p in model.parameters()]) for model in models]
        self.weights: Float[Tensor, "m p"] = torch.stack(flat)
        self._calls: dict[Callable[..., Any], Callable[..., Any]] = {}

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters, in the order of the columns."""
        return tuple(self._shapes)

    def columns(self) -> dict[str, slice]:
        """The columns of every parameter."""
        found, start = {}, 0
        for name, size in zip(self._shapes, self._sizes, strict=True):
            found[name] = slice(start, start + size)
            start += size
        return found

    def parameters(self, weights: Float[Tensor, "m p"]) -> dict[str, Tensor]:
        """The rows as stacked parameters, (m, *shape) each."""
        pieces = weights.split(self._sizes, dim=1)
        return {
            name: piece.unflatten(1, shape) if shape else piece[:, 0]
            for (name, shape), piece in zip(self._shapes.items(), pieces, strict=True)
        }

    def over_members(
        self, function: Callable[[nn.Module, Tensor], Any], weights: Float[Tensor, "m p"], tokens: Tensor
    ) -> Any:
        """``function(model, tokens)`` for every member; tokens (m, B, L), or (B, L) that all of them see."""
        if function not in self._calls:
            wrapped = _Wrapped(self._model, function)
            self._calls[function] = lambda parameters, seen: functional_call(wrapped, parameters, (seen,))
        named = {f"model.{name}": value for name, value in self.parameters(weights).items()}
        return vmap(self._calls[function], in_dims=(0, 0 if tokens.ndim == 3 else None))(named, tokens)

    def load(self, member: int, model: nn.Module) -> nn.Module:
        """Give a model of this architecture the weights of one member; the model."""
        with torch.no_grad():
            for (name, parameter), piece in zip(
                model.named_parameters(), self.weights[member].split(self._sizes), strict=True
            ):
                expect(tuple(parameter.shape) == self._shapes.get(name), f"model: has another {name!r}.")
                parameter.copy_(piece.view(parameter.shape))
        return model


class _Wrapped(nn.Module):
    """A function of a model, as a module: the way `functional_call` wants it."""

    def __init__(self, model: nn.Module, function: Callable[[nn.Module, Tensor], Any]) -> None:
        super().__init__()
        self.model, self._function = model, function

    def forward(self, tokens: Tensor) -> Any:
        return self._function(self.model, tokens)


Draw = Callable[[int, int], Tensor]
"""Number of sequences and seed to tokens (n, L)."""

_CHUNK = 50
"""Steps whose data are drawn at once; drawing a batch takes as long as drawing fifty."""

_STRIDE = 1_000_003
"""Between the seeds of two members' streams, so that no chunk of one is a chunk of another."""


class TrainingData:
    """Batches for every member, step by step; members with the same seed see the same sequences.

    Args:
        draw: Draws sequences from a seed.
        seeds: One a member.
        batch: Sequences a member and step.

    >>> data = TrainingData(lambda n, seed: torch.full((n, 3), seed % 7), [0, 1, 0], batch=2)
    >>> data.at(0).shape, bool((data.at(0)[0] == data.at(0)[2]).all())
    (torch.Size([3, 2, 3]), True)
    """

    def __init__(self, draw: Draw, seeds: Sequence[int], batch: int) -> None:
        self._draw, self._batch = draw, batch
        self._seeds = sorted(set(seeds))
        self._place = torch.tensor([self._seeds.index(seed) for seed in seeds])
        self._chunk: tuple[int, Tensor] | None = None

    def at(self, step: int) -> Int[Tensor, "m b l"]:
        """The batches of a step; steps are asked for in order, or anew from the beginning."""
        number, place = divmod(step, _CHUNK)
        if self._chunk is None or self._chunk[0] != number:
            drawn = [self._draw(_CHUNK * self._batch, _STRIDE * seed + number) for seed in self._seeds]
            self._chunk = number, torch.stack(drawn).unflatten(1, (_CHUNK, self._batch))
        return self._chunk[1][:, place][self._place]


@dataclass(frozen=True)
class Schedule:
    """Factors of the learning rate: a linear rise, then half a cosine down to 0, or a constant.

    Attributes:
        steps: Of the whole training.
        warm_up: Share of them in which the rate rises from 0.
        decay: Whether it falls again.

    >>> [round(Schedule(20).factor(step), 2) for step in (0, 1, 2, 11, 19)]
    [0.5, 1.0, 1.0, 0.5, 0.01]
    >>> [Schedule(20, warm_up=0.0, decay=False).factor(step) for step in (0, 19)]
    [1.0, 1.0]
    """

    steps: int
    warm_up: float = 0.1
    decay: bool = True

    def factor(self, step: int) -> float:
        """At a step, counted from 0."""
        rise = round(self.warm_up * self.steps)
        if self.warm_up and step < max(1, rise):
            return (step + 1) / max(1, rise)
        if not self.decay:
            return 1.0
        return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, self.steps - rise)))


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

    Args:
        betas: Of the first and the second moment.
        eps: Added to the root.
        blocks: The block of every weight; weights of a block share one second moment, the mean of their squared
            gradients (one adaptive rate per block, as in Adam-mini). Every weight has its own if None.

    >>> weights = torch.zeros(2, 1)
    >>> Adam().step(weights, torch.tensor([[3.0], [-0.01]]), torch.tensor([[0.1]]))
    >>> weights[:, 0]
    tensor([-0.1000,  0.1000])
    >>> weights = torch.zeros(1, 3)
    >>> Adam(blocks=torch.tensor([0, 0, 1])).step(weights, torch.tensor([[1.0, 7.0, 9.0]]), torch.tensor([[0.5]]))
    >>> weights[0]
    tensor([-0.1000, -0.7000, -0.5000])
    """

    def __init__(
        self, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, blocks: Tensor | None = None
    ) -> None:
        self.betas, self.eps, self._blocks = betas, eps, blocks
        self._moments: tuple[Tensor, Tensor] | None = None
        self._steps = 0

    def step(self, weights: Weights, gradient: Weights, rates: Tensor) -> None:
        """One step."""
        if self._moments is None:
            self._moments = torch.zeros_like(gradient), torch.zeros_like(self._of_blocks(gradient))
        (first, second), (b1, b2) = self._moments, self.betas
        self._steps += 1
        first.lerp_(gradient, 1 - b1)
        if self._blocks is None:
            second.mul_(b2).addcmul_(gradient, gradient, value=1 - b2)
        else:
            second.mul_(b2).add_(self._of_blocks(gradient.square()), alpha=1 - b2)
        size = second.sqrt().div_((1 - b2**self._steps) ** 0.5).add_(self.eps)
        size = size if self._blocks is None else size[:, self._blocks]
        weights.sub_(first.div(size).mul_(rates / (1 - b1**self._steps)))

    def _of_blocks(self, values: Weights) -> Tensor:
        """Their means over every block, (m, blocks); the values themselves if every weight is its own."""
        if self._blocks is None:
            return values
        sizes = torch.bincount(self._blocks)
        return values.new_zeros(len(values), len(sizes)).index_add_(1, self._blocks, values) / sizes


def make_optimiser(name: str, columns: Mapping[str, slice], momentum: float = 0.9) -> Optimiser:
    """SGD with this momentum, or Adam with its usual constants; one second moment per parameter with "adam_blocks"."""
    if name == "sgd":
        return SGDMomentum(momentum)
    sizes = torch.tensor([piece.stop - piece.start for piece in columns.values()])
    return Adam(blocks=torch.arange(len(sizes)).repeat_interleave(sizes) if name == "adam_blocks" else None)


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
    schedule: Schedule,
    watch: Callable[[int], None] = lambda step: None,
    watched: Collection[int] = (),
) -> Course:
    """Take the steps of a schedule with every member, in place.

    Args:
        ensemble: What learns; its `weights` are moved.
        data: What it learns from.
        loss: Of one model at tokens (B, L).
        optimiser: A new one.
        rates: Learning rates, one per member (m, 1) or one per weight (m, p), before warm-up and decay.
        schedule: How many steps, and the factors of the rates along them.
        watch: Called with the number of steps taken, before the first step with 0.
        watched: The numbers of steps at which to call it.
    """
    expect(rates.ndim == 2 and len(rates) == len(ensemble), f"rates: got shape {tuple(rates.shape)}, expected (m, n).")
    course = Course(torch.full((len(ensemble),), -1))
    moving = torch.ones(len(ensemble), 1, dtype=ensemble.weights.dtype)
    first: Tensor | None = None
    for step in range(schedule.steps):
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
        optimiser.step(ensemble.weights, gradient, rates * moving * schedule.factor(step))
    if schedule.steps in watched:
        watch(schedule.steps)
    return course
