"""How spread out the attention of every layer is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from hessianlens.attention import attention_entropy
from hessianlens.errors import RankError, Refusal
from hessianlens.network.base.attention_calls import AttentionUnseen, attention_names, see_attention
from hessianlens.problems import Problem
from hessianlens.state_guard import restores_state

SATURATED = 0.99
"""A row that puts more than this on one token is saturated: its softmax hardly has a derivative."""


@dataclass(frozen=True)
class Spread:
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


class Spreads(dict[str, Spread]):
    """How spread out attention is, by layer, and what could not be measured.

    Attributes:
        left_out: What is missing, and why.
    """

    def __init__(self, found: Mapping[str, Spread], left_out: Sequence[str] = ()) -> None:
        super().__init__(found)
        self.left_out = tuple(left_out)


@restores_state
def attention_spreads(problem: Problem) -> Spreads:
    """By layer; layers whose weights are no distribution are left out, and all where attention is not met.

    >>> import hessianlens as hl
    >>> model = hl.models.Transformer(layers=2, d_model=8, d_mlp=16, dtype=torch.float64)
    >>> task = hl.tasks.Addition()
    >>> found = attention_spreads(hl.problem(model, task.batch(4, seed=0), task.cross_entropy))
    >>> list(found), 0 < found["layer0"].share <= 1, found["layer0"].saturated, found.left_out
    (['layer0', 'layer1'], True, 0.0, ())
    """
    try:
        found = problem.ranks.shared("how spread out attention is", lambda: _local_sums(problem))
    except RankError as error:  # the others were interrupted: nothing else depends on this
        return Spreads({}, [f"Attention: {error}"])
    sums: dict[int, Tensor] = {}
    for met in found:
        if isinstance(met, Refusal):
            return Spreads({}, [f"Attention: the model cannot be run while it is looked at ({met})."])
        for number, added in met.items():
            sums[number] = sums[number] + added if number in sums else added
    if not sums:
        return Spreads({}, ["Attention: none was seen in this model."])
    names = attention_names(problem, len(sums))
    sound = {number: total for number, total in sums.items() if bool(total.isfinite().all())}
    left_out = [
        f"Entropy of attention in {names[number]}: its weights are no distribution."
        for number in sums
        if number not in sound
    ]
    return Spreads({names[number]: _spread(total) for number, total in sound.items()}, left_out)


def _local_sums(problem: Problem) -> dict[int, Tensor] | Refusal:
    """Sums over the sequences of this process, by layer; a refusal where attention cannot be looked at."""
    sums: dict[int, Tensor] = {}
    for batch in problem.data:
        met: list[Tensor] = []
        try:
            see_attention(problem, batch, partial(_see, met))
        except AttentionUnseen as unseen:
            return Refusal(str(unseen))
        for number, found in enumerate(met):
            sums[number] = sums[number] + found if number in sums else found
    return sums


def _see(met: list[Tensor], weights: Tensor, visible: Tensor, values: Tensor) -> None:
    met.append(_sums(weights, visible))


def _sums(weights: Tensor, visible: Tensor) -> Tensor:
    """``[sequences, entropy of equal weights, saturated rows, rows, entropies of heads ...]``, summed over sequences.

    Weights that are no distribution have no entropy.
    """
    sequences = weights.shape[0]
    seen = visible.expand_as(weights).sum(-1)
    equal = seen.clamp(min=1).double().log().mean()
    several = seen > 1
    saturated = ((weights.max(-1).values > SATURATED) & several).sum()
    sound = bool((weights >= 0).all()) and bool((weights.sum(-1) - 1).abs()[seen > 0].max() < 1e-3)
    heads = weights.shape[1]
    entropy = attention_entropy(weights).double().mean(-1).sum(0) if sound else weights.new_full((heads,), torch.nan)
    counts = [equal.new_tensor(float(sequences)), sequences * equal, saturated, several.sum()]
    return torch.cat([torch.stack([c.double().cpu() for c in counts]), entropy.double().cpu()])


def _spread(total: Tensor) -> Spread:
    sequences, equal, saturated, rows = (float(value) for value in total[:4])
    heads = total[4:] / sequences
    entropy = float(heads.mean())
    return Spread(
        entropy,
        float(heads.min()),
        entropy * sequences / equal if equal > 0 else 0.0,
        saturated / rows if rows else 0.0,
    )
