"""What users give as an update, as tensors by the names of a problem's parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from hessianlens.errors import InputError, check_that, describe_value, expect, first_names, suggest_names
from hessianlens.problems import Problem
from hessianlens.updates.optimizers import optimizer_update, unwrapped_optimizer

Update = Mapping[str, Tensor] | Sequence[Tensor] | Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] | Any


@dataclass(frozen=True, eq=False)
class Direction:
    """An update at the weights of a problem.

    Attributes:
        problem: At the weights before the update.
        tangents: The update by name of parameter, in the problem's dtype; those that it leaves alone are missing.
        notes: What was decided on the way, one sentence each.
    """

    problem: Problem
    tangents: dict[str, Tensor]
    notes: tuple[str, ...] = ()


def as_direction(problem: Problem, update: Update, gradient: Callable[[], dict[str, Tensor]]) -> Direction:
    """An update in any of the forms that `directional` takes.

    Args:
        problem: Whose loss is asked about.
        update: By name, as a list, an optimiser, a function of the gradient, or two sets of weights.
        gradient: Computes the gradient of the problem's loss; called only where it is needed.
    """
    if _is_optimizer(update):
        return _of_optimizer(problem, update, gradient)
    if isinstance(update, Mapping):
        return Direction(problem, _tangents(problem, update))
    if isinstance(update, tuple) and len(update) == 2 and all(_is_weights(each) for each in update):
        return _of_checkpoints(problem, *map(_weights, update))
    if callable(update) and not isinstance(update, (nn.Module, type)):
        found = update(gradient())
        check_that(isinstance(found, Mapping), "update", found, "a function that gives tensors by name of parameter")
        return Direction(problem, _tangents(problem, found), (_FULL_GRADIENT,))
    if isinstance(update, Sequence) and all(isinstance(each, Tensor) for each in update):
        names = [name for name in problem.params if name in _trainable(problem)]
        expect(
            len(update) == len(names),
            f"update: got {len(update)} tensors, expected {len(names)}, one per parameter in the model's order.",
        )
        return Direction(problem, _tangents(problem, dict(zip(names, update, strict=True))))
    raise InputError(
        f"update: got {describe_value(update)}, expected tensors by name of parameter, a list of them, an optimiser, a "
        "function of the gradient, or a pair of state dictionaries (before, after)."
    )


_FULL_GRADIENT = "the update is made from the gradient of the loss on the data of this problem"


def _is_optimizer(update: object) -> bool:
    return hasattr(unwrapped_optimizer(update), "param_groups")


def _is_weights(value: object) -> bool:
    return isinstance(value, (Mapping, nn.Module))


def _weights(value: Mapping[str, Tensor] | nn.Module) -> Mapping[str, Tensor]:
    return value.state_dict() if isinstance(value, nn.Module) else value


def _trainable(problem: Problem) -> set[str]:
    """Parameters, not buffers: those in which blocks lie, and those of the model."""
    model = problem.source
    own = {name for name, _ in model.named_parameters()} if isinstance(model, nn.Module) else set()
    return own | {block.parameter for block in problem.blocks.values()}


def _tangents(problem: Problem, given: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors in the dtype and on the device of the problem; those that are zero throughout are left out."""
    known, found = _trainable(problem), dict[str, Tensor]()
    for name, tensor in given.items():
        if name not in known:
            raise InputError(f"update: {name!r} is no parameter of this model; {suggest_names(name, sorted(known), 6)}")
        check_that(isinstance(tensor, Tensor), f"update: {name}", tensor, "a tensor")
        like = problem.params[name]
        expect(
            tensor.shape == like.shape,
            f"update: got shape {tuple(tensor.shape)} for {name}, expected {tuple(like.shape)}.",
        )
        expect(bool(torch.isfinite(tensor).all()), f"update: {name} has entries that are not finite.")
        if bool((tensor != 0).any()):
            found[name] = tensor.detach().to(like)
    expect(bool(found), "update: it is zero everywhere; expected one that moves a parameter.")
    return {name: found[name] for name in problem.params if name in found}


def _of_optimizer(problem: Problem, optimizer: Any, gradient: Callable[[], dict[str, Tensor]]) -> Direction:
    model = problem.source
    expect(isinstance(model, nn.Module), "update: an optimiser needs a problem made from an nn.Module; give tensors.")
    assert isinstance(model, nn.Module)
    stale = [
        n for n, p in model.named_parameters() if not torch.equal(p.detach().to(problem.params[n]), problem.params[n])
    ]
    expect(
        not stale,
        f"problem: its weights are not those of the model any more ({first_names(stale)}); make it anew with "
        "hessianlens.problem(...) before asking for the optimiser's next step.",
    )
    held = any(p.grad is not None for g in unwrapped_optimizer(optimizer).param_groups for p in g["params"])
    note = "the update is made from the gradients that the parameters hold" if held else _FULL_GRADIENT
    found = optimizer_update(optimizer, model, None if held else gradient())
    return Direction(problem, _tangents(problem, found), (note,))


def _of_checkpoints(problem: Problem, before: Mapping[str, Any], after: Mapping[str, Any]) -> Direction:
    """From the first weights to the second, at the first."""
    names = [name for name in problem.params if name in _trainable(problem)]
    for which, weights in (("before", before), ("after", after)):
        missing = [name for name in names if name not in weights]
        expect(not missing, f"update: the weights {which} the step have no {first_names(missing)}; expected all.")
    start = {name: before[name].detach().to(problem.params[name]) for name in names}
    difference = {name: after[name].detach().to(problem.params[name]) - start[name] for name in names}
    at = replace(problem, params={**problem.params, **start})
    return Direction(at, _tangents(at, difference), ("taken at the first of the two sets of weights",))
