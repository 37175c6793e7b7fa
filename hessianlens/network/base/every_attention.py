"""Every attention of a network, cut behind its heads, with what makes its weights."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from hessianlens.attention.activations import Activation, Softmax
from hessianlens.attention.activations.softmax import SoftCapped
from hessianlens.attention.masks import Masking
from hessianlens.errors import Refusal
from hessianlens.models.attention import Attention
from hessianlens.network.base.attention_calls import AttentionCall, AttentionCalls
from hessianlens.network.base.dry_run import sequences_of
from hessianlens.network.base.hooks import Hooks
from hessianlens.network.base.operands import by_head, score_rule
from hessianlens.problems import Batch, Problem
from hessianlens.state_guard import ReplacedAttribute

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True, eq=False)
class RecordedAttention:
    """One attention by head; q, k and v are on the graph of what is in front of them.

    Attributes:
        site: Its place among the operations that take parameters, between two whole numbers.
        leaf: What the heads put out side by side, ``[sequence, position, feature]``; what follows depends on it alone.
        q: Queries, ``[sequence, head, i, e]``.
        k: Keys, ``[sequence, head, l, e]``; a sink has one of zeros at the end.
        v: Values, ``[sequence, head, l, f]``; the same.
        scores: ``[sequence, head, i, l]``.
        visible: Entries that take part.
        activation: From scores to weights.
        scale: The factor of products of queries and keys in the scores.
    """

    site: float
    leaf: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    scores: Tensor
    visible: Tensor
    activation: Activation
    scale: float

    def detached(self) -> RecordedAttention:
        """The same without the graph."""
        q, k, v = (one.detach() for one in (self.q, self.k, self.v))
        return replace(self, leaf=self.leaf.detach(), q=q, k=k, v=v)


class EveryAttention(ExitStack):
    """A scope in which every attention of a network is recorded and cut.

    Args:
        problem: From `hessianlens.problem`.
        batch: One batch of it.
        hooks: What watches the parameters at the same time.

    Attributes:
        found: The attentions, in order.
        refused: Places of attentions whose heads or scores are not known, with the reason.
    """

    def __init__(self, problem: Problem, batch: Batch, hooks: Hooks) -> None:
        super().__init__()
        self.found: list[RecordedAttention] = []
        self.refused: dict[float, Refusal] = {}
        self._problem, self._batch, self._hooks = problem, batch, hooks

    def __enter__(self) -> Self:
        super().__enter__()
        source = self._problem.source
        for module in source.modules() if isinstance(source, nn.Module) else ():
            if type(module) is Attention and module.query_key == "dual":
                self.enter_context(ReplacedAttribute(module, "head_outputs", partial(self._own, module)))
        self.enter_context(_Calls(self, max(1, sequences_of(self._batch))))
        return self

    @property
    def place(self) -> float:
        """Where the model is, among the operations that take parameters."""
        return self._hooks.sites - 0.5

    def add(
        self,
        heads: Tensor,
        operands: tuple[Tensor, Tensor, Tensor],
        scores: Tensor,
        visible: Tensor,
        activation: Activation,
        scale: float,
    ) -> Tensor:
        """Record an attention by what its heads put out, ``[sequence, head, i, f]``; the leaf in that form."""
        leaf = heads.detach().transpose(1, 2).flatten(2).requires_grad_()
        q, k, v = operands
        self.found.append(RecordedAttention(self.place, leaf, q, k, v, scores, visible, activation, scale))
        return leaf.unflatten(-1, (heads.shape[1], -1)).transpose(1, 2)

    def _own(self, module: Attention, X: Tensor) -> Tensor:
        """In place of a module's `head_outputs`: any activation."""
        q, k, v = (module._mapped(name, X) for name in "QKV")
        q, k, v = (one if one.ndim == 4 else one[None] for one in (q, k, v))
        with torch.no_grad():  # so that the attention is not seen once more at its operations
            scores = q @ k.mT / module.scale
            visible, _ = Masking(module.causal).resolve(1, q.shape[-2], q.dtype, q.device)
            visible = visible.expand(scores.shape)
            weights = module.activation.value(scores.flatten(0, 1), visible.flatten(0, 1)).reshape(scores.shape)
            output = weights @ v
        heads = self.add(output, (q, k, v), scores, visible, module.activation, 1 / module.scale)
        return heads.transpose(1, 2).flatten(2).reshape(*X.shape[:-1], -1)


class _Calls(AttentionCalls):
    """Softmax attention where models call it."""

    def __init__(self, every: EveryAttention, examples: int) -> None:
        super().__init__(cut=True)
        self._every, self._examples = every, examples

    def _record(self, call: AttentionCall) -> Tensor:
        taken = self._taken(call)
        if isinstance(taken, Refusal):
            self._every.refused[self._every.place] = taken
            return call.output
        q, k, v, raw, output = taken
        rule = score_rule(call.raw, call.scores, raw.shape)
        if isinstance(rule, Refusal) or call.further:
            found = rule if isinstance(rule, Refusal) else Refusal("its scores are sums of several products")
            self._every.refused[self._every.place] = found
            return call.output
        activation: Activation = Softmax() if rule.cap is None else SoftCapped(rule.cap)
        scores = rule.scale * raw.detach() if rule.bias is None else rule.scale * raw.detach() + rule.bias
        visible = rule.visible
        if call.sink:  # its logit is zero
            pad = nn.functional.pad
            k, v, scores = pad(k, (0, 0, 0, 1)), pad(v, (0, 0, 0, 1)), pad(scores, (0, 1))
            visible = pad(visible, (0, 1), value=True)
        heads = self._every.add(output, (q, k, v), scores, visible, activation, rule.scale)
        return heads.reshape(call.output.shape).clone()  # the model may go on in place

    def _taken(self, call: AttentionCall) -> Sequence[Tensor] | Refusal:
        """Queries, keys, values, products and outputs by head."""
        first = call.q.shape[0]
        sequences = first if call.q.ndim == 4 and first % self._examples == 0 else self._examples
        tensors = (call.q, call.k, call.v, call.raw, call.output)
        found = [one for tensor in tensors if (one := by_head(tensor, sequences)) is not None]
        if len(found) < len(tensors):
            return Refusal("its heads and sequences cannot be separated")
        heads = found[3].shape[1]
        return [one.expand(-1, heads, -1, -1) for one in found]

    def _summed(self, scores: Tensor, found: Tensor) -> Tensor:
        """A logarithm of sums may be part of the outputs: what depends on it is not cut from it."""
        return found
