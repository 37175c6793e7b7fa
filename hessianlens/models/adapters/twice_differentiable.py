"""The state in which a model can be differentiated twice, and how it is put back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.utils import checkpoint as activation_checkpoints

from hessianlens.models.adapters.fused_kernels import LongAttention, fused_attention, grouped_experts
from hessianlens.state_guard import Restore, StateChange, function_modes, restore_function_modes, tensors_of


def differentiable_twice(
    model: nn.Module, kernel: str = "math", instead: str = "eager"
) -> AbstractContextManager[LongAttention]:
    """Evaluation mode without dropout, as it is written, with attention through kernels that have a second derivative.

    Fused attention kernels have no second derivative on any device. Inside this scope PyTorch's scaled dot-product
    attention uses its plain kernel, or chunks where that would hold large matrices, the encoder's inference
    shortcut is off, a Hugging Face model that insists on a fused implementation of its own runs another one, its
    experts run one after the other, and none fills a cache of keys and values. Activations are not checkpointed.
    What torch.compile made of it or of its parts is left aside, since that has no second derivative either, and so
    is accelerate's mixed precision. On leaving, every module is in the mode it was in and has the parameters and
    buffers that it had, and every configuration says what it said.

    Args:
        model: The model.
        kernel: How PyTorch's attention is computed, one of `KERNELS`.
        instead: The implementation that stands in for a fused one of Hugging Face's.

    Returns:
        The scope, which gives what attention was met.
    """
    return _DifferentiableTwice(model, kernel, instead)


def own_kernels(model: nn.Module) -> AbstractContextManager[object]:
    """As `evaluation_mode`; a Hugging Face model that insists on a fused implementation of its own runs the eager one.

    For values alone: PyTorch's attention takes whatever kernel it likes best.

    Args:
        model: The model.
    """
    return _EvaluationMode(model, "eager")


def evaluation_mode(model: nn.Module) -> AbstractContextManager[object]:
    """Evaluation mode without dropout, as the model is written, with its own attention kernels.

    Args:
        model: The model.
    """
    return _EvaluationMode(model)


class _EvaluationMode(StateChange[Any]):
    """Evaluation mode, nothing compiled, no cache; with another implementation of fused attention if one is named."""

    def __init__(self, model: nn.Module, instead: str | None = None) -> None:
        self.model, self.instead = model, instead

    def record(self) -> Restore:
        """Everything of the model and of PyTorch's kernels that is changed here or by a call with other parameters."""
        model_state, modes, compiler = _ModelState(self.model), function_modes(), _compiler()
        checkpoints = {name: getattr(activation_checkpoints, name) for name in _UNCHECKPOINTED}
        kernels, shortcut = _kernels(), torch.backends.mha.get_fastpath_enabled()
        stance = None if compiler is None else compiler._stance

        def restore() -> None:
            restore_function_modes(modes)
            if compiler is not None and compiler._stance is not stance:
                compiler._set_stance(stance)
            for name, value in checkpoints.items():
                setattr(activation_checkpoints, name, value)
            torch.backends.mha.set_fastpath_enabled(shortcut)
            _set_kernels(kernels)
            model_state.restore()

        return restore

    def change(self) -> Any:
        """What is random or compiled is off."""
        model = self.model
        torch.backends.mha.set_fastpath_enabled(False)
        for name, instead in _UNCHECKPOINTED.items():
            setattr(activation_checkpoints, name, instead)
        if _compiler() is not None:
            torch.compiler.set_stance("force_eager")
        switch: Any = getattr(model, "set_attn_implementation", None)
        if self.instead is not None and fused_attention(model) is not None and switch is not None:
            switch(self.instead)
        config = getattr(model, "config", None)
        if config is not None and getattr(config, "use_cache", False):
            config.use_cache = False
        if "forward" in model.__dict__ and "_original_forward" in model.__dict__:  # accelerate's autocast around it
            model.__dict__["forward"] = model.__dict__["_original_forward"]
        model.eval()


class _WithoutCheckpoint:
    """Reentrant checkpointing without the checkpoint."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve_random_state: bool, *args: Any) -> Any:
        """What the function gives, on the graph of its caller."""
        return function(*args)


def _without_recomputation(*_: object, **__: object) -> Iterator[None]:
    """What checkpointing does before and after a function is called: nothing."""
    yield


_UNCHECKPOINTED = {
    name: instead
    for name, instead in (
        ("CheckpointFunction", _WithoutCheckpoint),
        ("_checkpoint_without_reentrant_generator", _without_recomputation),
    )
    if hasattr(activation_checkpoints, name)
}
"""In place of activation checkpoints. These run a part of the model again in the backward pass, when it has its own
parameters once more and not those that it was differentiated with: that part would count as a constant."""


class _DifferentiableTwice(_EvaluationMode):
    """The scope of `differentiable_twice`."""

    def __init__(self, model: nn.Module, kernel: str = "math", instead: str = "eager") -> None:
        super().__init__(model, instead)
        self.kernel = kernel

    def change(self) -> LongAttention:
        """Everything off that has no second derivative as well."""
        super().change()
        _set_kernels({name: name == "math" for name in _KERNELS})
        for experts in grouped_experts(self.model):
            experts._experts_implementation = "eager"
        attention = LongAttention(self.kernel)
        return attention if self.kernel == "math" else attention.__enter__()


_KERNELS = tuple(
    name
    for name in ("flash", "mem_efficient", "math", "cudnn", "overrideable")
    if hasattr(torch._C, f"_set_sdp_use_{name}")
)
"""Kernels of scaled dot-product attention, among which PyTorch chooses."""


def _kernels() -> dict[str, bool]:
    """Which of them are allowed."""
    return {name: getattr(torch._C, f"_get_{name}_sdp_enabled")() for name in _KERNELS}


def _set_kernels(allowed: Mapping[str, bool]) -> None:
    for name, is_allowed in allowed.items():
        getattr(torch._C, f"_set_sdp_use_{name}")(is_allowed)


class _ModelState:
    """Modes, parameters, buffers and configurations of a model, as they are now."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.forward = model, model.__dict__.get("forward")
        self.modules = [(module, module.training) for module in model.modules()]
        self.restore_tensors = tensors_of(module for module, _ in self.modules)
        found = _configurations(module.__dict__.get("config") for module, _ in self.modules)
        self.configurations = [(vars(config), dict(vars(config))) for config in found]

    def restore(self) -> None:
        """Put back what is not as it was."""
        self.restore_tensors()
        for module, training in self.modules:
            if module.training is not training:
                module.training = training
        for now, before in self.configurations:
            for name in [name for name in now if name not in before]:
                del now[name]
            now.update(before)
        if self.forward is not None:
            self.model.__dict__["forward"] = self.forward


def _configurations(given: Iterable[object]) -> list[Any]:
    """Hugging Face's configurations, each once, with those inside of them."""
    found: dict[int, Any] = {}
    waiting = list(given)
    while waiting:
        config = waiting.pop()
        if hasattr(config, "_attn_implementation") and id(config) not in found:
            found[id(config)] = config
            waiting.extend(vars(config).values())
    return list(found.values())


def is_compiled(model: nn.Module) -> bool:
    """Whether the model, or a part of it, was compiled in place."""
    return any(m._compiled_call_impl is not None or "_orig_mod" in m._modules for m in model.modules())


def _compiler() -> Any:
    """The module that holds the compiler's stance; None if it was never imported, so that nothing was compiled."""
    return sys.modules.get("torch._dynamo.eval_frame") if hasattr(torch.compiler, "set_stance") else None
