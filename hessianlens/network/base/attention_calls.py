"""Attention where all models pass: the products of queries with keys, and of weights with values.

Models differ in how they name and nest their attention. All of them multiply queries with keys, turn each row of scores
into weights, and multiply these with values, by a fused call or in three steps. `AttentionCalls` sees both, and
keeps the last; `observe_attention` shows all of them in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from hessianlens.derivatives.operation_mode import OperationMode
from hessianlens.errors import InputError
from hessianlens.memory import lacks_memory
from hessianlens.models.attention import Attention
from hessianlens.network.base.recognition import close, entrywise_slope, inside_transform
from hessianlens.problems import Batch, Problem, layer_of
from hessianlens.state_guard import ReplacedAttribute, Restore, StateChange


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """One attention, ``output = softmax(scores(q k^T)) v``.

    With a sink, ``exp(scores) / (1 + sum exp(scores))`` takes the place of softmax: scores are those beside that of the
    sink, less that one.

    Attributes:
        q: Queries as they meet the keys, ``[..., i, e]``.
        k: Keys, ``[..., j, e]``.
        v: Values, ``[..., j, r]``.
        raw: ``q k^T``, ``[..., i, j]``, a leaf.
        scores: What softmax is taken of, on the graph of `raw`.
        output: What is put out, ``[..., i, r]``; several side by side where the same weights are taken several times.
        sink: Whether there is one more column of scores, without a value.
        outputs: The same one by one, as the model goes on with them.
        further: Other products that were formed before the scores, as those with relative positions: their two factors
            and the product, a leaf too.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    raw: Tensor
    scores: Tensor
    output: Tensor
    sink: bool = False
    outputs: tuple[Tensor, ...] = ()
    further: tuple[tuple[Tensor, Tensor, Tensor], ...] = ()

    def beside(self, other: AttentionCall) -> AttentionCall:
        """This one and a later one of the same queries and keys, whose values stand side by side."""
        v, output = (torch.cat(pair, -1) for pair in ((self.v, other.v), (self.output, other.output)))
        return replace(other, v=v, output=output, outputs=(*self.outputs, *other.outputs))


@dataclass(frozen=True, eq=False)
class _Pending:
    """Queries that have met keys, and perhaps the weights that came of it."""

    q: Tensor
    k: Tensor
    raw: Tensor
    scores: Tensor | None = None
    weights: Tensor | None = None
    sink: bool = False
    further: tuple[tuple[Tensor, Tensor, Tensor], ...] = ()


class AttentionCalls(OperationMode):
    """A scope in which the last attention is kept.

    Args:
        cut: Whether what an attention puts out becomes a leaf, so that what follows depends on that alone.

    Attributes:
        last: It; None if there was none.
        earlier: Queries, keys and values of those before it.
    """

    def __init__(self, cut: bool = False) -> None:
        super().__init__()
        self._cut = cut
        self.last: AttentionCall | None = None
        self.earlier: list[tuple[Tensor, Tensor, Tensor]] = []
        self._pending: _Pending | None = None
        self._log_sum: Tensor | None = None
        self._returned: Tensor | None = None

    def _record(self, call: AttentionCall) -> Tensor:
        """The last one from now on; what the model goes on with."""
        if not self._cut:
            self.last = call
            return call.output
        output = _leaf(call.output)
        new = replace(call, output=output, outputs=(output,))
        if self.last is not None and _same_weights(self.last, new):
            new = self.last.beside(new)
        elif self.last is not None:
            self.earlier.append((self.last.q, self.last.k, self.last.v))
        self.last, self._returned = new, output.clone()  # the model may go on in place
        return self._returned

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
        if self._log_sum is not None and func in _TIMES and len(args) == 2 and args[0] is self._returned:
            return self._scaled(func, *args)
        found = func(*args, **named)
        if self._cut and func in _LOG_SUMS:
            return self._summed(args[0] if args else named["input"], found)
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
        """The fused call; its scores are computed again."""
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
        self._pending = None
        return self._record(AttentionCall(query, key, value, raw, scores, output))

    def _product(self, func: Callable[..., Any], left: Tensor, right: Tensor) -> Tensor:
        """Of weights with values, or of queries with keys."""
        pending, found = self._pending, func(left, right)
        if pending is not None and pending.scores is not None and _same(pending.weights, left):
            self._pending = None
            call = AttentionCall(pending.q, pending.k, right, pending.raw, pending.scores, found, pending.sink)
            return self._record(replace(call, further=pending.further))
        raw = _leaf(found)
        further = () if pending is None else (*pending.further, (pending.q, pending.k, pending.raw))
        self._pending = _Pending(left, right.transpose(-1, -2), raw, further=further)
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
        raw, pending = _leaf(left @ right), self._pending
        further = () if pending is None else (*pending.further, (pending.q, pending.k, pending.raw))
        self._pending = _Pending(left, right.transpose(-1, -2), raw, further=further)
        return beta * added + alpha * raw

    def _summed(self, scores: Tensor, found: Tensor) -> Tensor:
        """The logarithm of what softmax divides by, cut off: outputs may be multiplied with a function of it."""
        if self._pending is None or not scores.requires_grad or found.numel() * scores.shape[-1] != scores.numel():
            return found
        self._log_sum = _leaf(found)
        return self._log_sum.clone()

    def _scaled(self, func: Callable[..., Any], output: Tensor, factor: Any) -> Tensor:
        """Outputs times ``sigmoid(log_sum - s)``, which is a sink with the logit s."""
        last, log_sum, found = self.last, self._log_sum, func(output, factor)
        assert last is not None and log_sum is not None
        self._log_sum = None
        logit = _sink_logit(factor, log_sum)
        if logit is None or last.sink or len(last.outputs) > 1:
            return found
        made = _leaf(found)
        self.last = replace(last, scores=last.scores - logit[..., None], output=made, outputs=(made,), sink=True)
        return made.clone()

    def _weighed(self, scores: Tensor, weights: Tensor) -> None:
        """Rows of scores have become weights."""
        pending = self._pending
        if pending is None or not scores.requires_grad:
            return
        sink = scores.shape[-1] == pending.raw.shape[-1] + 1
        if sink:  # the last column, as where a learned number is put beside the scores
            scores, weights = scores[..., :-1] - scores[..., -1:], weights[..., :-1]
        if scores.numel() != pending.raw.numel():
            return
        (slope,) = torch.autograd.grad(scores.sum(), pending.raw, retain_graph=True, allow_unused=True)
        if slope is not None:
            self._pending = replace(pending, scores=scores, weights=weights, sink=sink)


def _same_weights(first: AttentionCall, second: AttentionCall) -> bool:
    """Whether two attentions follow each other with the same queries, keys and scores."""
    pairs = ((first.q, second.q), (first.k, second.k), (first.scores, second.scores))
    values = (first.v, second.v)
    return all(a.shape == b.shape and torch.equal(a, b) for a, b in pairs) and values[0].shape == values[1].shape


def _sink_logit(factor: object, log_sum: Tensor) -> Tensor | None:
    """``s`` if a factor and its first two derivatives are those of ``sigmoid(log_sum - s)``; else None."""
    if not isinstance(factor, Tensor) or not factor.requires_grad or factor.numel() != log_sum.numel():
        return None
    with torch.enable_grad():
        slope = entrywise_slope(factor, log_sum, graph=True)
        second = None if slope is None or not slope.requires_grad else entrywise_slope(slope, log_sum)
    if slope is None or second is None:
        return None
    f, slope = factor.detach().reshape(log_sum.shape), slope.detach()
    if not close(slope, f * (1 - f)) or not close(second.detach(), f * (1 - f) * (1 - 2 * f)):
        return None
    return log_sum.detach() - torch.logit(f)


def _same(weights: Tensor | None, left: Tensor) -> bool:
    """Whether these are the weights, perhaps in another shape."""
    return weights is not None and left.numel() == weights.numel() and torch.equal(left.reshape(weights.shape), weights)


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_()


_PRODUCTS = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm}
_SUMMED_PRODUCTS = {torch.baddbmm, Tensor.baddbmm}
_TIMES = {torch.mul, Tensor.mul, Tensor.__mul__}
_LOG_SUMS = {torch.logsumexp, Tensor.logsumexp}
_SOFTMAX = {nnf.softmax, torch.softmax, Tensor.softmax}


@dataclass(frozen=True, eq=False)
class ObservedAttention:
    """One attention by head.

    Attributes:
        weights: ``[s, h, i, j]``.
        visible: What each row may see, as truths, of a shape that expands to that of the weights.
        values: ``[s, h, j, r]``, perhaps with fewer heads.
        scores: What the weights are made of, scaled, ``[s, h, i, j]``; of no meaning where nothing is visible.
    """

    weights: Tensor
    visible: Tensor
    values: Tensor
    scores: Tensor


See = Callable[[ObservedAttention], None]

_HIDDEN = 0.25
"""Scores below this share of the lowest number are hidden by a mask: implementations add or fill in that number."""


class AttentionNotObserved(Exception):
    """A model that cannot be run while its attention is looked at; the text says why."""


class _ObserverFailed(Exception):
    """Not the model but the one who looks has failed."""


def observe_attention(problem: Problem, batch: Batch, see: See) -> None:
    """Run the model on a batch and show every attention to `see`, which keeps what it wants of it.

    Args:
        problem: From `hessianlens.problem`.
        batch: One of its batches.
        see: Is called once for every attention, in the order of the model.

    Raises:
        AttentionNotObserved: If an operation of the model fails where it is looked at.

    >>> import hessianlens as hl
    >>> model = hl.models.Transformer(layers=2, d_model=8, heads=2, d_mlp=16, dtype=torch.float64)
    >>> task = hl.tasks.Addition()
    >>> problem = hl.problem(model, task.batch(4, seed=0), task.cross_entropy)
    >>> observe_attention(problem, problem.data[0], lambda seen: print(tuple(seen.weights.shape)))
    (4, 2, 18, 18)
    (4, 2, 18, 18)
    """
    modules = problem.source.modules() if isinstance(problem.source, nn.Module) else ()
    own = [module for module in modules if isinstance(module, Attention)]
    guarded = partial(_guarded, see)
    try:
        with problem.scope(), torch.enable_grad(), _OwnAttention(own, guarded) if own else _ObservedCalls(guarded):
            problem.forward(problem.params, batch)
    except _ObserverFailed as failed:
        assert failed.__cause__ is not None
        raise failed.__cause__ from None
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        if isinstance(error, InputError) or lacks_memory(error):
            raise
        raise AttentionNotObserved(" ".join(f"{type(error).__name__}: {error}".split())[:200]) from error


def _guarded(see: See, seen: ObservedAttention) -> None:
    try:
        see(seen)
    except Exception as error:
        raise _ObserverFailed from error


def attention_names(problem: Problem, count: int) -> list[str]:
    """Names of the layers if there is one attention in each, else numbers."""
    found = dict.fromkeys(layer_of(name) for name in problem.blocks if ".attn." in name)
    layers = [layer for layer in found if layer is not None]
    return layers if len(layers) == count else [f"attention {number}" for number in range(count)]


class _ObservedCalls(AttentionCalls):
    """Shows each attention as soon as it is met, so that none has to be kept."""

    def __init__(self, see: See) -> None:
        self._see = see
        super().__init__()

    @property
    def last(self) -> AttentionCall | None:
        """None is kept."""
        return None

    @last.setter
    def last(self, call: AttentionCall | None) -> None:
        if call is not None:
            scores = call.scores.detach()
            visible = scores > _HIDDEN * torch.finfo(scores.dtype).min
            extended = torch.nn.functional.pad(scores, (0, 1)) if call.sink else scores
            weights = torch.softmax(extended, -1)[..., : scores.shape[-1]]
            self._see(ObservedAttention(*map(_by_head, (weights, visible, call.v.detach(), scores))))


def _by_head(tensor: Tensor) -> Tensor:
    return tensor.flatten(1, -3) if tensor.ndim > 3 else tensor[:, None]


class _OwnAttention(StateChange[None]):
    """Attention of the library's own models, whose activations are functions of its own: met where weights are made."""

    def __init__(self, own: Sequence[Attention], see: See) -> None:
        self.own, self.see = own, see

    def record(self) -> Restore:
        """No module has weights that are seen."""
        return self._unseen

    def change(self) -> None:
        """Every module shows its weights."""
        for module in self.own:
            module.__dict__["weights"] = partial(self._seen, module)

    def _seen(self, module: Attention, X: Tensor) -> Tensor:
        weights = Attention.weights(module, X)
        visible = torch.ones_like(weights, dtype=torch.bool)
        values, scores = module._mapped("V", X).detach(), module.scores(X).detach()
        self.see(ObservedAttention(weights.detach(), visible.tril() if module.causal else visible, values, scores))
        return weights

    def _unseen(self) -> None:
        for module in self.own:
            module.__dict__.pop("weights", None)
