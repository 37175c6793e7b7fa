"""The update that an optimiser is about to make, found with a copy of it: the optimiser itself makes no step."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hessianlens.errors import InputError, check_that, expect, first_names
from hessianlens.state_guard import restores_state, without_side_effects

_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


def unwrapped_optimizer(optimizer: Any) -> Any:
    """The optimiser inside of accelerate's or Lightning's wrappers."""
    while not isinstance(optimizer, torch.optim.Optimizer) or type(optimizer).__name__.startswith("Accelerated"):
        inner = getattr(optimizer, "optimizer", None)
        if inner is None or inner is optimizer:
            break
        optimizer = inner
    return optimizer


def check_optimizer(optimizer: Any) -> Any:
    """The optimiser itself, wrappers apart."""
    inner = unwrapped_optimizer(optimizer)
    check_that(hasattr(inner, "param_groups"), "optimizer", optimizer, "an optimiser of torch.optim, or None")
    return inner


@restores_state
def optimizer_update(
    optimizer: Any, model: nn.Module, gradients: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """The update ``d = w_{t+1} - w_t`` that the next ``optimizer.step()`` would make, by name of parameter.

    A copy of the optimiser, with its state, steps on copies of the weights: SGD, momentum, Adam, AdamW, RMSprop,
    Adafactor, Muon and any other optimiser whose step needs only gradients. Nothing of the optimiser or of the model
    changes, hooks on the step do not run.

    Args:
        optimizer: One of `torch.optim` or with its interface, perhaps wrapped by accelerate or Lightning.
        model: The model that it trains; gives the names.
        gradients: By name of parameter; default: the ``.grad`` of the parameters, of the last backward pass.

    >>> layer = nn.Linear(2, 1, bias=False)
    >>> layer(torch.ones(1, 2)).sum().backward()
    >>> optimizer_update(torch.optim.SGD(layer.parameters(), lr=0.5), layer)
    {'weight': tensor([[-0.5000, -0.5000]])}
    """
    check_that(isinstance(model, nn.Module), "model", model, "the nn.Module that is trained")
    sound = isinstance(gradients, Mapping) and all(isinstance(tensor, Tensor) for tensor in gradients.values())
    check_that(gradients is None or sound, "gradients", gradients, "tensors by name of parameter, or None")
    inner = check_optimizer(optimizer)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    trained = [parameter for group in inner.param_groups for parameter in group["params"]]
    expect(
        any(id(parameter) in names for parameter in trained),
        "optimizer: it holds none of the parameters of this model; expected the optimiser that trains it.",
    )
    own = [parameter for parameter in trained if id(parameter) in names]
    with without_side_effects():
        twins = {id(p): _twin(p, _gradient(p, names.get(id(p)), gradients)) for p in trained}
        expect(
            any(twins[id(p)].grad is not None for p in own),
            "optimizer: no parameter has a gradient; call backward() first, or give gradients by name.",
        )
        _step(_copied(inner, twins))
        found = {names[id(p)]: (twins[id(p)] - p).detach() for p in own}
    bad = [name for name, update in found.items() if not torch.isfinite(update).all()]
    expect(not bad, f"optimizer: its update is not finite in {first_names(bad)}; expected finite numbers.")
    return {name: found[name] for name in names.values() if name in found}


def _gradient(parameter: Tensor, name: str | None, gradients: Mapping[str, Tensor] | None) -> Tensor | None:
    if gradients is None:
        return None if parameter.grad is None else parameter.grad.detach().clone()
    given = gradients.get(name) if name is not None else None
    if given is None:
        return None
    expect(
        given.shape == parameter.shape,
        f"gradients: got shape {tuple(given.shape)} for {name}, expected {tuple(parameter.shape)}.",
    )
    return given.detach().to(parameter).clone()


def _twin(parameter: Tensor, gradient: Tensor | None) -> nn.Parameter:
    twin = nn.Parameter(parameter.detach().clone(), requires_grad=parameter.requires_grad)
    twin.grad = gradient
    return twin


def _copied(optimizer: Any, twins: Mapping[int, nn.Parameter]) -> Any:
    """The optimiser with its state and settings, on other tensors; without the hooks that users put on it."""
    try:
        made = copy.deepcopy(optimizer, dict(twins))
    except Exception as error:  # whatever a user's optimiser holds
        raise InputError(
            f"optimizer: {type(optimizer).__name__} cannot be copied ({error}); give the update itself, by name."
        ) from error
    for hooks in _HOOKS:
        if hasattr(made, hooks):
            setattr(made, hooks, OrderedDict())
    return made


def _step(optimizer: Any) -> None:
    """One step of the class's own: an instance's may be a scheduler's or a profiler's, bound to the original."""
    try:
        type(optimizer).step(optimizer)
    except TypeError as error:
        raise InputError(
            f"optimizer: a step of {type(optimizer).__name__} needs more than gradients ({error}); give the update "
            "itself, by name of parameter."
        ) from error
