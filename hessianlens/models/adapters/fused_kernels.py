"""Kernels without a second derivative that a model is set to, attention or experts, and what takes their place."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from hessianlens.attention.sdpa import scaled_dot_product_attention
from hessianlens.derivatives.operation_mode import OperationMode
from hessianlens.state_guard import ReplacedAttribute

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
