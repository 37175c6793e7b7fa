"""Attention where all models pass: the products of queries with keys, and of weights with values.

Models differ in how they name and nest their attention. All of them multiply queries with keys, turn each row of scores
into weights, and multiply these with values, by a fused call or in three steps. `AttentionCalls` meets both; what
happens to the scores in between is left to the model, and looked at afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as nnf

from hessianlens.derivatives.operation_mode import OperationMode
from hessianlens.network.recognition import inside_transform
from hessianlens.state_guard import ReplacedAttribute


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """One attention, ``output = softmax(scores(q k^T)) v``.

    Attributes:
        q: Queries as they meet the keys, ``[..., i, e]``.
        k: Keys, ``[..., j, e]``.
        v: Values, ``[..., j, r]``.
        raw: ``q k^T``, ``[..., i, j]``, a leaf.
        scores: What softmax is taken of, on the graph of `raw`.
        output: What is put out, ``[..., i, r]``.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    raw: Tensor
    scores: Tensor
    output: Tensor


@dataclass(frozen=True, eq=False)
class _Pending:
    """Queries that have met keys, and perhaps the weights that came of it."""

    q: Tensor
    k: Tensor
    raw: Tensor
    scores: Tensor | None = None
    weights: Tensor | None = None


class AttentionCalls(OperationMode):
    """A scope in which the last attention is kept.

    Attributes:
        last: It; None if there was none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.last: AttentionCall | None = None
        self._pending: _Pending | None = None

    def operation(self, func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Every operation of PyTorch's passes here."""
        if inside_transform():
            return func(*args, **named)
        if func is nnf.multi_head_attention_forward:
            # Its own steps would run unseen; without this question it takes them one by one.
            with ReplacedAttribute(nnf, "has_torch_function", lambda *_: False), self:
                return func(*args, **named)
        if func is nnf.scaled_dot_product_attention:
            return self._fused(*args, **named)
        if func in _PRODUCTS and not named and all(isinstance(x, Tensor) and x.ndim > 2 for x in args):
            return self._product(func, *args)
        if func in _SUMMED_PRODUCTS:
            return self._summed_product(func, *args, **named)
        found = func(*args, **named)
        if func in _SOFTMAX:
            self._weighed(args[0] if args else named["input"], found)
        return found

    def _fused(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        **named: Any,
    ) -> Tensor:
        """The fused call; its scores are made once more."""
        output = nnf.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **named
        )
        if named.get("enable_gqa"):
            key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
        raw = _leaf(query @ key.transpose(-1, -2))
        scores = raw * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
        if is_causal:
            seen = torch.ones(raw.shape[-2:], dtype=torch.bool, device=raw.device).tril()
            scores = scores.masked_fill(~seen, -torch.inf)
        if attn_mask is not None:
            hides = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -torch.inf) if hides else scores + attn_mask
        self.last, self._pending = AttentionCall(query, key, value, raw, scores, output), None
        return output

    def _product(self, func: Callable[..., Any], left: Tensor, right: Tensor) -> Tensor:
        """Of weights with values, or of queries with keys."""
        pending, found = self._pending, func(left, right)
        if pending is not None and pending.scores is not None and _same(pending.weights, left):
            self.last = AttentionCall(pending.q, pending.k, right, pending.raw, pending.scores, found)
            self._pending = None
            return found
        raw = _leaf(found)
        self._pending = _Pending(left, right.transpose(-1, -2), raw)
        return raw.clone()  # the model may go on in place

    def _summed_product(
        self,
        func: Callable[..., Any],
        added: Tensor,
        left: Tensor | None = None,
        right: Tensor | None = None,
        **named: Any,
    ) -> Tensor:
        """``beta added + alpha left right``."""
        left, right = named.pop("batch1", left), named.pop("batch2", right)
        beta, alpha = named.pop("beta", 1), named.pop("alpha", 1)
        if named or left is None or right is None:
            return func(added, left, right, beta=beta, alpha=alpha, **named)
        raw = _leaf(left @ right)
        self._pending = _Pending(left, right.transpose(-1, -2), raw)
        return beta * added + alpha * raw

    def _weighed(self, scores: Tensor, weights: Tensor) -> None:
        """Rows of scores have become weights."""
        pending = self._pending
        if pending is None or not scores.requires_grad or scores.numel() != pending.raw.numel():
            return
        (slope,) = torch.autograd.grad(scores.sum(), pending.raw, retain_graph=True, allow_unused=True)
        if slope is not None:
            self._pending = _Pending(pending.q, pending.k, pending.raw, scores, weights)


def _same(weights: Tensor | None, left: Tensor) -> bool:
    """Whether these are the weights, perhaps in another shape."""
    return weights is not None and left.numel() == weights.numel() and torch.equal(left.reshape(weights.shape), weights)


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_()


_PRODUCTS = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm}
_SUMMED_PRODUCTS = {torch.baddbmm, Tensor.baddbmm}
_SOFTMAX = {nnf.softmax, torch.softmax, Tensor.softmax}
