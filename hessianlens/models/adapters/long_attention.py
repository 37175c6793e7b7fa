"""Long attention in chunks: `hessianlens.scaled_dot_product_attention` in place of PyTorch's, while a model runs.

Fused attention has no second derivative, and the plain kernel keeps matrices of L x L numbers per head for it. Whatever
a model calls, `F.scaled_dot_product_attention` by itself, through Hugging Face's implementation ``sdpa`` or inside
`nn.MultiheadAttention`, passes here; where the matrices would be large, the call goes through chunks instead.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
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
    >>> with LongAttention("chunked") as met:
    ...     out = nnf.scaled_dot_product_attention(q, q, q)
    >>> met.in_chunks, met.whole
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
