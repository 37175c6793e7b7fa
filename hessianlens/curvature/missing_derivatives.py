"""Which part of a problem lacks a derivative: modules are tried one by one, each by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hessianlens.derivatives.difference import Point, Potential, random_like
from hessianlens.problems import Batch, Problem, map_tensors, tensors
from hessianlens.state_guard import Restore, StateChange

_HOOKS = ("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")
Fault = Callable[[Potential, Point], bool]
"""Whether a function of named tensors has a fault."""


def locate_missing_derivative(problem: Problem, batch: Batch, names: Sequence[str], fault: Fault) -> str | None:
    """The innermost module that has a fault by itself, such as ``model: layers.1.act (GELU)``, or ``loss``.

    Modules are tried while the model runs, at what they are given there, as functions of what depends on the chosen
    parameters. It takes many times a gradient.

    Args:
        problem: The problem.
        batch: One batch of it.
        names: Parameters with respect to which derivatives are taken.
        fault: What is looked for.
    """
    leaves = {name: problem.params[name].detach().requires_grad_() for name in names}
    with problem.scope(), torch.enable_grad(), _Watch(problem.source, fault) as watch:
        outputs = problem.forward({**problem.params, **leaves}, batch)
        if watch.found is not None:
            return f"model: {watch.found}"
        of_outputs = {"outputs": outputs.detach()}
        return "loss" if _holds(fault, lambda at: problem.loss(at["outputs"], batch), of_outputs) else None


class _Watch(StateChange["_Watch"]):
    """While a model runs, looks for the first module to finish that has a fault: inner ones finish first."""

    def __init__(self, model: object, fault: Fault) -> None:
        self.model, self.fault = model, fault
        self.found: str | None = None
        self._busy = False

    def record(self) -> Restore:
        """The hooks that are there."""
        modules = self.model.modules() if isinstance(self.model, nn.Module) else ()
        hooks = [(kind, dict(kind)) for module in modules for kind in (getattr(module, name) for name in _HOOKS)]

        def restore() -> None:
            for now, before in hooks:
                for number in [number for number in now if number not in before]:
                    del now[number]

        return restore

    def change(self) -> _Watch:
        """One hook more at every module."""
        for name, module in self.model.named_modules() if isinstance(self.model, nn.Module) else ():
            module.register_forward_hook(partial(self._look, name), with_kwargs=True)
        return self

    def _look(self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], _: object) -> None:
        if self._busy or self.found is not None:
            return
        self._busy = True  # the module is called again, by itself
        try:
            potential, point = _alone(module, args, kwargs)
            if point and _holds(self.fault, potential, point):
                self.found = f"{name} ({type(module).__name__})" if name else type(module).__name__
        finally:
            self._busy = False


def _alone(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Potential, Point]:
    """A module as a function of those of its inputs and parameters that need a derivative."""
    needed = [tensor for tensor in tensors((args, kwargs)) if tensor.requires_grad]
    own = {name: tensor for name, tensor in module.named_parameters() if tensor.requires_grad}
    point = {**{f"input {k}": tensor for k, tensor in enumerate(needed)}, **own}

    def potential(at: Mapping[str, Tensor]) -> Tensor:
        inputs = (at[f"input {k}"] for k in range(len(needed)))
        here, named = map_tensors(lambda tensor: next(inputs) if tensor.requires_grad else tensor, (args, kwargs))
        return _weighted(functional_call(module, {name: at[name] for name in own}, here, named))

    return potential, {name: tensor.detach() for name, tensor in point.items()}


def _weighted(result: object) -> Tensor:
    """A random combination of the outputs; of those that autograd can follow, unless there is none."""
    found = [tensor for tensor in tensors(result) if tensor.is_floating_point()]
    followed = [tensor for tensor in found if tensor.requires_grad] or found
    return torch.stack([(tensor * random_like(tensor, seed=k)).sum() for k, tensor in enumerate(followed)]).sum()


def _holds(fault: Fault, potential: Potential, point: Point) -> bool:
    """Whether the fault is there; a part that cannot be called by itself has none that could be shown."""
    try:
        with torch.enable_grad():
            return fault(potential, point)
    except Exception:
        return False
