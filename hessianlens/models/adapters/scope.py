"""The state in which a model can be differentiated twice, and how it is put back."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from hessianlens.models.adapters.long_attention import LONG, LongAttention


@contextmanager
def differentiable_twice(model: nn.Module, kernel: str = "math", instead: str = "eager") -> Iterator[LongAttention]:
    """Evaluation mode without dropout, as it is written, with attention through kernels that have a second derivative.

    Fused attention kernels have no second derivative on any device. Inside this scope PyTorch's scaled dot-product
    attention uses its plain kernel, or chunks where that would hold large matrices, the encoder's inference shortcut is
    off, a Hugging Face model that insists on a fused implementation of its own runs another one, and none fills a cache
    of keys and values. What torch.compile made of it or of its parts is left aside, since that has no second derivative
    either, and so is accelerate's mixed precision. On leaving, every module is in the mode it was in.

    Args:
        model: The model.
        kernel: How PyTorch's attention is computed, one of `KERNELS`.
        instead: The implementation that stands in for a fused one of Hugging Face's.

    Yields:
        What attention was met.
    """
    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(_not_fused(model, instead))
        stack.enter_context(evaluated(model))
        met = LongAttention(kernel)
        if kernel != "math":
            stack.enter_context(met)
        yield met


@contextmanager
def evaluated(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without dropout, as the model is written, with its own attention kernels.

    Args:
        model: The model.
    """
    modes = {module: module.training for module in model.modules()}
    shortcut = torch.backends.mha.get_fastpath_enabled()
    with _without_cache(model), _not_compiled(), _own_forward(model):
        torch.backends.mha.set_fastpath_enabled(False)
        model.eval()
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(shortcut)
            for module, training in modes.items():
                module.training = training


@contextmanager
def own_kernels(model: nn.Module) -> Iterator[None]:
    """As `evaluated`; a Hugging Face model that insists on a fused implementation of its own runs the eager one.

    For values alone: PyTorch's attention takes whatever kernel it likes best.

    Args:
        model: The model.
    """
    with _not_fused(model, "eager"), evaluated(model):
        yield


def fused_attention(model: nn.Module) -> str | None:
    """The fused implementation a Hugging Face model is set to, if any."""
    name = getattr(getattr(model, "config", None), "_attn_implementation", None)
    return name if isinstance(name, str) and name not in ("eager", "sdpa") else None


def stand_in(model: nn.Module, kernel: str, longest: int) -> str:
    """The implementation in place of a fused one: PyTorch's own call where chunks may take it, else the eager one."""
    wanted = kernel == "chunked" or (kernel == "auto" and longest >= LONG)
    config = getattr(model, "config", None)
    capped = getattr(config, "attn_logit_softcapping", None) is not None
    return "sdpa" if wanted and not capped and getattr(model, "_supports_sdpa", False) else "eager"


@contextmanager
def _not_fused(model: nn.Module, instead: str) -> Iterator[None]:
    name = fused_attention(model)
    switch: Any = getattr(model, "set_attn_implementation", None)
    if name is None or switch is None:
        yield
        return
    switch(instead)
    try:
        yield
    finally:
        switch(name)


def is_compiled(model: nn.Module) -> bool:
    """Whether the model, or a part of it, was compiled in place."""
    return any(m._compiled_call_impl is not None or "_orig_mod" in m._modules for m in model.modules())


def _not_compiled() -> AbstractContextManager[object]:
    """A scope in which nothing that was compiled runs; nothing was if the compiler was never imported."""
    if "torch._dynamo" not in sys.modules or not hasattr(torch.compiler, "set_stance"):
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


@contextmanager
def _own_forward(model: nn.Module) -> Iterator[None]:
    """A scope without the autocast that accelerate wraps around a model's forward."""
    state = model.__dict__
    if "forward" not in state or "_original_forward" not in state:
        yield
        return
    wrapped = state["forward"]
    state["forward"] = state["_original_forward"]
    try:
        yield
    finally:
        state["forward"] = wrapped


@contextmanager
def _without_cache(model: nn.Module) -> Iterator[None]:
    config = getattr(model, "config", None)
    if config is None or not getattr(config, "use_cache", False):
        yield
        return
    config.use_cache = False
    try:
        yield
    finally:
        config.use_cache = True


def uses_scaled_dot_product(model: nn.Module) -> bool:
    """Whether the model would, by itself, call fused attention."""
    config = getattr(getattr(model, "config", None), "_attn_implementation", None)
    return config not in (None, "eager") or any(isinstance(m, nn.MultiheadAttention) for m in model.modules())


def attention_notes(model: nn.Module, kernel: str, longest: int, met: LongAttention | None) -> tuple[str, ...]:
    """How attention is computed while differentiating, a line each.

    Args:
        model: The model.
        kernel: How PyTorch's attention is computed, one of `KERNELS`.
        longest: About how many tokens the longest sequence has.
        met: What attention was met on a first run; None if there was none.
    """
    found: list[str] = []
    fused, name = fused_attention(model), getattr(getattr(model, "config", None), "_attn_implementation", None)
    instead = stand_in(model, kernel, longest)
    if fused is not None:
        found.append(
            f"attention implementation {fused} has no second derivative: {instead} attention is used while "
            "differentiating"
        )
    if met is not None and met.in_chunks:
        found.append(
            "fused attention has no second derivative: hessianlens.scaled_dot_product_attention takes its place while "
            "differentiating, in chunks that keep no matrix of L x L"
        )
    elif fused is None and uses_scaled_dot_product(model):
        found.append("fused attention has no second derivative: the plain kernel is used while differentiating")
    eager = (name == "eager" or (fused is not None and instead == "eager")) and longest >= LONG
    reasons = set() if met is None else set(met.whole)
    if kernel != "math" and (eager or (name == "eager" and kernel == "chunked")):
        reasons.add("eager attention is the model's own; load it with attn_implementation='sdpa' if it has that")
    found += [
        f"attention is not computed in chunks, and keeps matrices of L x L: {reason}" for reason in sorted(reasons)
    ]
    return tuple(found)
