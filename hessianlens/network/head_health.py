"""Attention heads of a model: their quantities in one forward pass, and alarms for heads that go wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from hessianlens.display import Cells, DisplayableRows, Grid, Picture, short
from hessianlens.errors import RankError, Refusal, check_choice, expect
from hessianlens.network.base.attention_calls import (
    AttentionNotObserved,
    attention_names,
    observe_attention,
)
from hessianlens.network.head_sums import HeadSums
from hessianlens.problems import Problem, check_problem
from hessianlens.sizes import number_of
from hessianlens.state_guard import restores_state

LARGE_LOGIT = 50.0
"""Scores from which on rows are one-hot in single precision, and training has been seen to diverge."""
COLLAPSED_SHARE = 0.05
"""Share of the entropy of equal weights below which attention has collapsed."""
VANISHED_JACOBIAN = 1e-3
"""Norm of softmax's Jacobian below which a head's queries and keys get next to no gradient."""
SINK_WEIGHT = 0.8
"""Mean weight on the first token from which on a head does little else."""


@dataclass(frozen=True)
class LayerAttentionMeans:
    """The attention of one layer, over all sequences.

    Attributes:
        entropy: Mean over heads and rows, in nats.
        lowest: The same of the head where it is lowest.
        share: Entropy over that of equal weights on all that a row may see; 1 where attention is uniform, 0 where every
            row looks at one token.
        saturated: Share of rows, among those that see more than one token, with more than 99 % on one.
    """

    entropy: float
    lowest: float
    share: float
    saturated: float


@dataclass(frozen=True)
class HeadHealth:
    """One head; the attributes are those of the table in `head_sums`.

    Attributes:
        layer: Its layer.
        head: Its number.
        entropy: In nats; NaN where weights are no distribution, as are the next two.
        share: Entropy over that of equal weights.
        effective: Effective number of tokens.
        largest_logit: Largest score in size, over all rows and sequences.
        sink: Mean weight on the first token.
        saturated: Share of rows with more than 99 % on one token.
        largest_weight: Mean of the largest weight of a row.
        jacobian: Mean norm of softmax's Jacobian; NaN where weights are no distribution.
        mean: Mean norm of the mean value.
        spread: Mean trace of the second moment of the values.
        skew: Mean norm of the contracted third moment of the values.
    """

    layer: str
    head: int
    entropy: float
    share: float
    effective: float
    largest_logit: float
    sink: float
    saturated: float
    largest_weight: float
    jacobian: float
    mean: float
    spread: float
    skew: float

    @property
    def name(self) -> str:
        """As blocks of heads are called, ``layer0.attn.head3``."""
        return f"{self.layer}.attn.head{self.head}"

    def alarms(self) -> list[HeadAlarm]:
        """What is wrong with it by itself, the gravest first."""
        numbers = [(rule, float(getattr(self, rule.quantity))) for rule in ALARM_RULES]
        return [HeadAlarm(rule, self.name, value) for rule, value in numbers if rule.holds(value)]


@dataclass(frozen=True)
class AlarmRule:
    """When a head is in trouble, and usual remedy.

    Attributes:
        kind: A name.
        quantity: The attribute of `HeadHealth` that it looks at.
        threshold: Its limit.
        above: Whether what is above the limit is in trouble.
        remedy: What helps.
    """

    kind: str
    quantity: str
    threshold: float
    above: bool
    remedy: str

    def holds(self, value: float) -> bool:
        """Whether a head with this number is in trouble."""
        return value > self.threshold if self.above else value < self.threshold


ALARM_RULES = (
    AlarmRule(
        "large logits",
        "largest_logit",
        LARGE_LOGIT,
        True,
        "normalise queries and keys (QK-norm), rescale W_Q and W_K where their product grows (qk-clip), or cap scores",
    ),
    AlarmRule(
        "vanished Jacobian",
        "jacobian",
        VANISHED_JACOBIAN,
        False,
        "its queries and keys no longer learn: lower their learning rate earlier, or normalise them",
    ),
    AlarmRule(
        "entropy collapse",
        "share",
        COLLAPSED_SHARE,
        False,
        "lower the learning rate of its queries and keys, or normalise them (QK-norm)",
    ),
    AlarmRule(
        "attention sink",
        "sink",
        SINK_WEIGHT,
        True,
        "usual in trained language models; a learned sink or softmax-off-by-one has a place for it without a value",
    ),
)
"""The gravest first."""


@dataclass(frozen=True)
class HeadAlarm:
    """A head that is in trouble.

    >>> HeadAlarm(ALARM_RULES[0], "layer3.attn.head2", 81.0)
    large logits: layer3.attn.head2 (largest logit 81, threshold 50); normalise queries and keys ...
    """

    rule: AlarmRule
    head: str
    value: float
    since: int | None = None

    def __repr__(self) -> str:
        what = self.rule.quantity.replace("_", " ")
        since = "" if self.since is None else f" since step {self.since}"
        numbers = f"{what} {short(self.value)}, threshold {self.rule.threshold:g}"
        return f"{self.rule.kind}: {self.head}{since} ({numbers}); {self.rule.remedy}"

    __str__ = __repr__


class AttentionHealth(DisplayableRows):
    """Entropy, logits and moments of all heads of a model, in order.

    Attributes:
        heads: The heads.
        left_out: What is missing, and why.
    """

    def __init__(self, heads: Sequence[HeadHealth], left_out: Sequence[str] = ()) -> None:
        self.heads, self.left_out = tuple(heads), tuple(left_out)

    @cached_property
    def layers(self) -> dict[str, LayerAttentionMeans]:
        """Means by layer; layers whose weights are no distribution are left out."""
        by_layer: dict[str, list[HeadHealth]] = {}
        for head in self.heads:
            by_layer.setdefault(head.layer, []).append(head)
        return {
            name: LayerAttentionMeans(
                entropy=_mean([h.entropy for h in heads]),
                lowest=min(h.entropy for h in heads),
                share=_mean([h.share for h in heads]),
                saturated=_mean([h.saturated for h in heads]),
            )
            for name, heads in by_layer.items()
            if all(math.isfinite(h.entropy) for h in heads)
        }

    def alarms(self) -> list[HeadAlarm]:
        """Every head over a threshold, the gravest first."""
        order = {rule.kind: k for k, rule in enumerate(ALARM_RULES)}
        return sorted((alarm for h in self.heads for alarm in h.alarms()), key=lambda alarm: order[alarm.rule.kind])

    def _records(self) -> list[dict[str, Any]]:
        return [asdict(head) for head in self.heads]

    def __repr__(self) -> str:
        alarms = self.alarms()
        found = "\n".join(f"  {alarm}" for alarm in alarms[:_SHOWN])
        more = f"\n  and {len(alarms) - _SHOWN} more" if len(alarms) > _SHOWN else ""
        return f"AttentionHealth of {number_of(len(self.heads), 'head')}, {number_of(len(alarms), 'alarm')}" + (
            f"\n{found}{more}" if found else ""
        )

    def _cells(self) -> Cells:
        columns = ["head", *(name.replace("_", " ") for name in _NUMBERS)]
        return columns, [[h.name, *(short(getattr(h, name)) for name in _NUMBERS)] for h in self.heads]

    def _picture(self, asked: bool) -> Picture | None:
        """Entropies over those of equal weights, by layer and head."""
        if not self.heads:
            return None
        return self.grid("share", "entropy over that of equal weights")

    def grid(self, quantity: str, label: str) -> Grid:
        """One number per head as a heat map.

        Args:
            quantity: An attribute of `HeadHealth`.
            label: What it is.
        """
        check_choice("quantity", quantity, _NUMBERS)
        expect(bool(self.heads), "grid: there is nothing to draw, no attention was seen in this model.")
        layers = list(dict.fromkeys(head.layer for head in self.heads))
        most = 1 + max(head.head for head in self.heads)
        known = {(h.layer, h.head): float(getattr(h, quantity)) for h in self.heads}
        values = [[known.get((layer, k)) for k in range(most)] for layer in layers]
        return Grid(tuple(layers), tuple(f"head {k}" for k in range(most)), values, label, log=False)


_NUMBERS = tuple(name for name in HeadHealth.__dataclass_fields__ if name not in ("layer", "head"))
_SHOWN = 8
"""Alarms that are written out."""


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


@restores_state
def attention_health(problem: Problem) -> AttentionHealth:
    """Entropy, largest logit, sink, Jacobian norm and moments of every attention head, from one pass over the data.

    Args:
        problem: From `hessianlens.problem`.

    >>> import torch, hessianlens as hl
    >>> model = hl.models.Transformer(layers=2, heads=2, d_model=8, d_mlp=16, dtype=torch.float64)
    >>> task = hl.tasks.Addition()
    >>> health = attention_health(hl.problem(model, task.batch(4, seed=0), task.cross_entropy))
    >>> health, 0 < health.heads[0].share <= 1
    (AttentionHealth of 4 heads, 0 alarms, True)
    """
    check_problem(problem).finish_model_check()
    try:
        found = problem.ranks.all_gather("what attention looks at", lambda: _local_sums(problem))
    except RankError as error:  # the others were interrupted: nothing else depends on this
        return AttentionHealth((), [f"Attention: {error}"])
    layers: list[HeadSums] = []
    for seen in found:
        if isinstance(seen, Refusal):
            return AttentionHealth((), [f"Attention: the model does not run with hooks ({seen})."])
        for number, added in enumerate(seen):
            layers[number : number + 1] = [layers[number].plus(added) if number < len(layers) else added]
    if not layers:
        return AttentionHealth((), ["Attention: none was seen in this model."])
    names = attention_names(problem, len(layers))
    heads = [
        HeadHealth(name, number, **means)
        for name, layer in zip(names, layers, strict=True)
        for number, means in enumerate(layer.means())
    ]
    vague = [name for name, layer in zip(names, layers, strict=True) if not layer.is_distribution]
    return AttentionHealth(
        heads, [f"Entropy of attention in {name}: its weights are no distribution." for name in vague]
    )


def _local_sums(problem: Problem) -> list[HeadSums] | Refusal:
    """Sums over the sequences of this rank, by layer; a refusal where attention cannot be looked at."""
    layers: list[HeadSums] = []
    for batch in problem.data:
        seen: list[HeadSums] = []
        try:
            observe_attention(problem, batch, lambda attention: seen.append(HeadSums.of(attention)))  # noqa: B023
        except AttentionNotObserved as unseen:
            return Refusal(str(unseen))
        layers = [a.plus(b) for a, b in zip(layers, seen, strict=True)] if layers else seen
    return layers
