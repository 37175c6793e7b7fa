"""The call: torch's signature, what else attention in models has, and its closed form for autograd."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hessianlens.attention.activations import ActivationLike, Sigmoid, SoftCapped, Softmax, as_activation
from hessianlens.attention.sdpa import derivatives
from hessianlens.attention.sdpa.chunking import AttentionOperands, AttentionRule
from hessianlens.checks import check_dense
from hessianlens.derivatives.closed_form import ClosedForm, Parts
from hessianlens.derivatives.one_operation import Operation
from hessianlens.errors import InputError, check_flag, check_number, check_that, check_whole, expect
from hessianlens.sizes import parse_size

attention = Operation("attention", "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? visible")
"""``O`` as rows (n, g, L, f), for an `AttentionForm` and the tensors of `AttentionOperands`."""


@dataclass(frozen=True)
class AttentionForm(ClosedForm):
    """``O(q, k, v, bias)``, with a mask that is not differentiated.

    Attributes:
        rule: What is computed.
        heads: How many key heads a sequence has.
    """

    rule: AttentionRule
    heads: int

    inputs, fixed, name = 4, 1, "scaled_dot_product_attention"
    instead = "torch's math attention (torch.nn.attention.sdpa_kernel(SDPBackend.MATH))"

    def _operands(self, tensors: Sequence[Any]) -> AttentionOperands:
        q, k, v, bias, visible = tensors
        return AttentionOperands(q, k, v, bias, visible, self.heads)

    def value(self, *tensors: Any) -> Tensor:
        """O."""
        return derivatives.value(self._operands(tensors), self.rule)

    def jvp(self, *tensors: Any, change: Parts) -> Tensor:
        """``dO``."""
        return derivatives.jvp(self._operands(tensors), self.rule, change)

    def vjp(self, *tensors: Any, g: Tensor, wanted: Sequence[bool]) -> Parts:
        """The gradient of ``<g, O>``."""
        return derivatives.vjp(self._operands(tensors), self.rule, g, wanted)

    def hvp(
        self,
        *tensors: Any,
        g: Tensor,
        change: Parts,
        wanted: Sequence[bool],
        pushing: bool,
        of_g: Tensor | None = None,
    ) -> Parts:
        """How that gradient changes, and how O does."""
        return derivatives.hvp(self._operands(tensors), self.rule, g, change, wanted, pushing, of_g)

    def second_jvp(self, *tensors: Any, first: Parts, second: Parts) -> Tensor:
        """The second derivative of O."""
        return derivatives.second_jvp(self._operands(tensors), self.rule, first, second)


_MEMORY = "64 MiB"


@torch.compiler.disable
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    window: int | tuple[int, int] | None = None,
    softcap: float | None = None,
    activation: ActivationLike = "softmax",
    memory: str | float = _MEMORY,
) -> Tensor:
    """``softmax(Q K^T scale + B) V``, twice differentiable, in memory linear in L.

    A drop-in for `torch.nn.functional.scaled_dot_product_attention`, whose fused kernels have no second derivative
    and whose math kernel keeps matrices of L x S numbers for it. Here value, gradient and second-order products
    are closed forms over chunks of query rows; every pass recomputes the scores and stores only the inputs.
    Reverse and forward mode, `torch.func`'s transforms (grad, vjp, jvp, jacrev, jacfwd, hessian, vmap) and additive
    masks that are themselves differentiated are covered; third derivatives raise an error.

    Args:
        query: (..., heads, L, E).
        key: (..., heads, S, E); with `enable_gqa` the number of query heads is a multiple of its heads.
        value: (..., heads, S, F).
        attn_mask: Boolean (True: may attend) or additive, broadcastable to (..., heads, L, S).
        dropout_p: The share of weights dropped at random, the same ones in every derivative.
        is_causal: Query i sees the keys up to i.
        scale: Of the scores; ``1 / sqrt(E)`` by default.
        enable_gqa: Whether several query heads share a head of keys and values.
        window: How many positions back, and ahead, a query sees beside its own: (back, ahead), or one number for both.
        softcap: c, where scores are replaced by ``c tanh(score / c)`` before the mask, as in Gemma 2.
        activation: Another function of a row of scores than softmax: "sigmoid", "linear", "relu", ..., an `Activation`.
        memory: Memory for the scores of a chunk and their derivatives: a number of bytes or "64 MiB".

    Returns:
        (..., heads, L, F). Rows that see no key are zero, with zero derivatives. Half precision is computed in float32.

    >>> q, k, v = torch.randn(3, 2, 4, 10, 8, dtype=torch.float64, requires_grad=True)  # 2 sequences, 4 heads, L = 10
    >>> out = scaled_dot_product_attention(q, k, v, is_causal=True)
    >>> bool(torch.allclose(out, torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)))
    True
    >>> (g,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    >>> torch.autograd.grad(g.square().sum(), k)[0].shape  # a gradient penalty's gradient
    torch.Size([2, 4, 10, 8])
    """
    q, k, v, result_dtype = _tensors(query, key, value)
    check_flag("is_causal", is_causal)
    check_flag("enable_gqa", enable_gqa)
    dropout = check_number("dropout_p", dropout_p, 0.0)
    check_that(dropout < 1, "dropout_p", dropout_p, "a number from 0 to below 1")
    expect(
        attn_mask is None or not is_causal,
        "attn_mask: got a mask and is_causal=True, expected one of the two; put the causal order into the mask.",
    )
    batch, heads, groups = _heads(q, k, v, enable_gqa)
    length, keys = q.shape[-2], k.shape[-2]
    rule = AttentionRule(
        scale=1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else check_number("scale", scale),
        causal=is_causal,
        window=_window(window),
        softcap=None if softcap is None else check_number("softcap", softcap, 0.0, strictly=True),
        activation=None,
        dropout=dropout,
        seed=int(torch.randint(2**62, (1,))) if dropout else 0,
        workspace=int(parse_size(memory, "memory")),
    )
    rule = _with_activation(rule, activation, keys)
    bias, visible = _masks(attn_mask, (*batch, heads * groups, length, keys), groups, q)
    out_shape = (*(query.shape[:-2] if enable_gqa or q.ndim == 2 else (*batch, heads)), length, v.shape[-1])
    if 0 in (*batch, heads, length, keys):
        return ((q.sum() + k.sum() + v.sum()) * 0).to(result_dtype).expand(out_shape)
    n = math.prod(batch) * heads
    out = attention(
        AttentionForm(rule, heads),
        q.expand(*batch, heads * groups, length, q.shape[-1]).reshape(n, groups, length, -1),
        k.expand(*batch, heads, keys, k.shape[-1]).reshape(n, keys, -1),
        v.expand(*batch, heads, keys, v.shape[-1]).reshape(n, keys, -1),
        bias,
        visible,
    )
    return out.reshape(out_shape).to(result_dtype)


def _tensors(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor, torch.dtype]:
    """The three in the precision of the computation, at least float32, and the dtype of the result."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        check_that(isinstance(tensor, Tensor), name, tensor, "a tensor")
        check_dense(name, tensor, allow_meta=True)
        expect(
            tensor.is_floating_point() and tensor.ndim >= 2,
            f"{name}: got {tensor.dtype} of shape {tuple(tensor.shape)}, expected a floating tensor (..., L, E).",
        )
        expect(
            tensor.device == query.device and tensor.dtype == query.dtype,
            f"{name}: got {tensor.dtype} on {tensor.device}, expected {query.dtype} on {query.device} like query.",
        )
    expect(
        query.shape[-1] == key.shape[-1] and key.shape[-2] == value.shape[-2],
        f"query, key, value: got shapes {tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}, expected "
        "(..., L, E), (..., S, E) and (..., S, F).",
    )
    kind = query.device.type
    casts = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    dtype = torch.get_autocast_dtype(kind) if casts else query.dtype
    if dtype == torch.float64 or query.dtype == torch.float64:  # autocast leaves float64 as it is
        return query, key, value, query.dtype
    q, k, v = (tensor.to(dtype).to(torch.float32) for tensor in (query, key, value))
    return q, k, v, dtype


def _heads(q: Tensor, k: Tensor, v: Tensor, grouped: bool) -> tuple[tuple[int, ...], int, int]:
    """Sizes in front of the heads, the number of key heads, and query heads for each of them."""
    shapes = f"got shapes {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}"
    try:
        if not grouped:
            batch = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
            return tuple(batch[:-1]), batch[-1] if batch else 1, 1
        expect(
            min(q.ndim, k.ndim, v.ndim) >= 3, f"query, key, value: {shapes}, expected an axis of heads (enable_gqa)."
        )
        batch = torch.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])
    except RuntimeError:
        raise InputError(f"query, key, value: {shapes}, expected axes in front that broadcast.") from None
    heads, queries = k.shape[-3], q.shape[-3]
    expect(
        v.shape[-3] == heads and heads > 0 and queries % heads == 0,
        f"query, key, value: {shapes}, expected as many heads of keys as of values, and a multiple of them of queries.",
    )
    return tuple(batch), heads, queries // heads


def _window(window: object) -> tuple[int, int] | None:
    if window is None:
        return None
    back, ahead = window if isinstance(window, tuple) and len(window) == 2 else (window, window)
    return check_whole("window", back, 0), check_whole("window", ahead, 0)


def _with_activation(rule: AttentionRule, given: ActivationLike, keys: int) -> AttentionRule:
    activation = as_activation(given)
    if isinstance(activation, Sigmoid) and isinstance(activation.bias, str):
        activation = Sigmoid(-math.log(max(keys, 1)))  # of all keys, not of a chunk's
    if isinstance(activation, SoftCapped):
        expect(rule.softcap is None, "softcap: got a cap and an activation that has one already; give one of the two.")
        return replace(rule, softcap=activation.cap)
    return rule if isinstance(activation, Softmax) else replace(rule, activation=activation)


def _masks(mask: Tensor | None, shape: tuple[int, ...], groups: int, q: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """An additive mask or a boolean one, as (sequences or 1, key heads or 1, groups or 1, L or 1, S or 1)."""
    if mask is None:
        return None, None
    check_that(isinstance(mask, Tensor), "attn_mask", mask, "a boolean or floating tensor")
    expect(
        mask.dtype == torch.bool or mask.is_floating_point(),
        f"attn_mask: got {mask.dtype}, expected torch.bool (True: may attend) or a floating dtype.",
    )
    expect(mask.device == q.device, f"attn_mask: got a tensor on {mask.device}, expected {q.device} like query.")
    try:
        torch.broadcast_shapes(mask.shape, shape)
        fits = mask.ndim <= len(shape)
    except RuntimeError:
        fits = False
    expect(fits, f"attn_mask: got shape {tuple(mask.shape)}, expected one that broadcasts to {shape}.")
    mask = mask.reshape((1,) * (max(len(shape), 4) - mask.ndim) + tuple(mask.shape))
    front = mask.shape[:-3]
    whole = (1,) * (mask.ndim - len(shape)) + shape
    mask = mask.expand(*(whole[:-3] if any(size > 1 for size in front) else front), *mask.shape[-3:])
    mask = mask.reshape(-1, *mask.shape[-3:])
    mask = mask.unflatten(1, (-1, groups) if mask.shape[1] > 1 else (1, 1))
    return (None, mask) if mask.dtype == torch.bool else (mask.to(q.dtype), None)
