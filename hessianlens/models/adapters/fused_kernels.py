"""Kernels without a second derivative that a model is set to: fused attention, grouped experts; what replaces them."""

from __future__ import annotations

from typing import Any

from torch import nn

from hessianlens.models.adapters.long_attention import LONG, LongAttention


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
    instead = replacement_of_fused(model, kernel, longest)
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
    if grouped_experts(model):
        found.append("experts run one after the other while differentiating: grouped kernels know no float64")
    eager = (name == "eager" or (fused is not None and instead == "eager")) and longest >= LONG
    reasons = set() if met is None else set(met.whole)
    if kernel != "math" and (eager or (name == "eager" and kernel == "chunked")):
        reasons.add("eager attention is the model's own; load it with attn_implementation='sdpa' if it has that")
    found += [
        f"attention is not computed in chunks, and keeps matrices of L x L: {reason}" for reason in sorted(reasons)
    ]
    return tuple(found)
