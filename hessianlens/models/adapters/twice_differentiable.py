"""The state in which a model can be differentiated twice, and how it is put back."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf
from torch.utils import checkpoint as activation_checkpoints

from hessianlens.attention.sdpa import scaled_dot_product_attention
from hessianlens.derivatives.operation_mode import OperationMode
from hessianlens.state_guard import (
    ReplacedAttribute,
    Restore,
    StateChange,
    function_modes,
    restore_function_modes,
    tensors_of,
)

KERNELS = ("auto", "chunked", "math")
"""How attention is computed: chunks where they save memory, everywhere, or nowhere."""
LONG = 512
"""Keys below which matrices of scores are no burden, however many."""
_LARGE_BYTES = 2**25
"""Of the weights of one call, of which the plain kernel keeps several for its derivatives."""

_SIGNATURE = inspect.signature(scaled_dot_product_attention)
_ARGUMENTS = tuple(name for name, p in _SIGNATURE.parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD)


class LongAttention(OperationMode):
    """A scope in which attention with large matrices of weights goes through chunks of query rows.

    Args:
        kernel: One of `KERNELS`.

    Attributes:
        in_chunks: Whether some attention did.
        whole: Why some that should have did not, as text.

    >>> q = torch.randn(1, 2, 4, 3)
    >>> with LongAttention("chunked") as attention:
    ...     out = nnf.scaled_dot_product_attention(q, q, q)
    >>> attention.in_chunks, attention.whole
    (True, set())
    """

    def __init__(self, kernel: str = "auto") -> None:
        super().__init__()
        self._kernel, self.in_chunks, self.whole = kernel, False, set[str]()

    def operation(self, func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Every operation of PyTorch's passes here."""
        if self._kernel != "math" and func is nnf.multi_head_attention_forward:
            self._look_at_weights(*args, **named)
            # Its own steps would run unseen; without this question it takes them one by one.
            with ReplacedAttribute(nnf, "has_torch_function", lambda *_: False), self:
                return func(*args, **named)
        if self._kernel == "math" or func is not nnf.scaled_dot_product_attention:
            return func(*args, **named)
        asked = dict(zip(_ARGUMENTS, args, strict=False)) | named
        if not self._is_large(asked["query"], asked["key"], asked["value"]):
            return func(*args, **named)
        reason = _refusal(asked)
        if reason:
            self.whole.add(reason)
            return func(*args, **named)
        self.in_chunks = True
        return scaled_dot_product_attention(**asked)

    def _is_large(self, query: Tensor, key: Tensor, value: Tensor) -> bool:
        if self._kernel == "chunked":
            return True
        if query.is_nested or key.is_nested or key.shape[-2] < LONG:
            return False
        batch = math.prod(torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3]))
        heads = query.shape[-3] if query.ndim > 2 else 1
        return batch * heads * query.shape[-2] * key.shape[-2] * query.element_size() >= _LARGE_BYTES

    def _look_at_weights(self, query: Tensor, *_: object, need_weights: bool = True, **__: object) -> None:
        """PyTorch's module computes weights that it is asked for in the plain way."""
        if need_weights and (self._kernel == "chunked" or query.shape[0] >= LONG):
            self.whole.add("nn.MultiheadAttention is asked for its weights (need_weights=True)")


def _refusal(asked: Mapping[str, Any]) -> str:
    """Why a call cannot go through chunks; empty if it can."""
    mask = asked.get("attn_mask")
    tensors = [asked[name] for name in ("query", "key", "value")] + ([mask] if isinstance(mask, Tensor) else [])
    if any(tensor.is_nested or tensor.layout != torch.strided for tensor in tensors):
        return "its tensors are nested or sparse"
    unknown = [name for name in asked if name not in _ARGUMENTS]
    return f"it is called with {unknown[0]}" if unknown else ""


def fused_attention(model: nn.Module) -> str | None:
    """The fused implementation a Hugging Face model is set to, if any."""
    name = getattr(getattr(model, "config", None), "_attn_implementation", None)
    return name if isinstance(name, str) and name not in ("eager", "sdpa") else None


def replacement_of_fused(model: nn.Module, kernel: str, longest: int) -> str:
    """The implementation in place of a fused one: PyTorch's own call where chunks may take it, else the eager one."""
    wanted = kernel == "chunked" or (kernel == "auto" and longest >= LONG)
    config = getattr(model, "config", None)
    capped = getattr(config, "attn_logit_softcapping", None) is not None
    return "sdpa" if wanted and not capped and getattr(model, "_supports_sdpa", False) else "eager"


_EXPERTS_AS_WRITTEN = ("eager", "batched_mm")
"""Implementations of Hugging Face's experts that take any precision and can be differentiated twice."""


def grouped_experts(model: nn.Module) -> list[Any]:
    """Configurations of the experts that a Hugging Face model computes with a grouped kernel, the outermost first."""
    configs = [getattr(module, "config", None) for module in model.modules() if hasattr(module, "_apply_gate")]
    names = {id(config): getattr(config, "_experts_implementation", None) for config in configs}
    unique = {id(config): config for config in configs}
    return [unique[key] for key, name in names.items() if isinstance(name, str) and name not in _EXPERTS_AS_WRITTEN]


def uses_scaled_dot_product(model: nn.Module) -> bool:
    """Whether the model would, by itself, call fused attention."""
    config = getattr(getattr(model, "config", None), "_attn_implementation", None)
    return config not in (None, "eager") or any(isinstance(m, nn.MultiheadAttention) for m in model.modules())


def attention_notes(model: nn.Module, kernel: str, longest: int, attention: LongAttention | None) -> tuple[str, ...]:
    """How attention is computed while differentiating, a line each.

    Args:
        model: The model.
        kernel: How PyTorch's attention is computed, one of `KERNELS`.
        longest: About how many tokens the longest sequence has.
        attention: What attention was met on a first run; None if there was none.
    """
    found: list[str] = []
    fused, name = fused_attention(model), getattr(getattr(model, "config", None), "_attn_implementation", None)
    instead = replacement_of_fused(model, kernel, longest)
    if fused is not None:
        found.append(
            f"attention implementation {fused} has no second derivative: {instead} attention is used while "
            "differentiating"
        )
    if attention is not None and attention.in_chunks:
        found.append(
            "fused attention has no second derivative: hessianlens.scaled_dot_product_attention takes its place while "
            "differentiating, in chunks that keep no matrix of L x L"
        )
    elif fused is None and uses_scaled_dot_product(model):
        found.append("fused attention has no second derivative: the plain kernel is used while differentiating")
    if grouped_experts(model):
        found.append("experts run one after the other while differentiating: grouped kernels know no float64")
    eager = (name == "eager" or (fused is not None and instead == "eager")) and longest >= LONG
    reasons = set() if attention is None else set(attention.whole)
    if kernel != "math" and (eager or (name == "eager" and kernel == "chunked")):
        reasons.add("eager attention is the model's own; load it with attn_implementation='sdpa' if it has that")
    found += [
        f"attention is not computed in chunks, and keeps matrices of L x L: {reason}" for reason in sorted(reasons)
    ]
    return tuple(found)


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
