"""How spread out the attention of every layer is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from hessianlens.attention import attention_entropy
from hessianlens.errors import RankError
from hessianlens.network.sites.every import attention_names, see_attention
from hessianlens.problems import Problem

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


def attention_spreads(problem: Problem) -> dict[str, Spread]:
    """By layer; empty where attention is not met, layers with negative weights left out.

    >>> import hessianlens as hl
    >>> model = hl.models.Transformer(layers=2, d_model=8, d_mlp=16, dtype=torch.float64)
    >>> task = hl.tasks.Addition()
    >>> found = attention_spreads(hl.problem(model, task.batch(4, seed=0), task.cross_entropy))
    >>> list(found), 0 < found["layer0"].share <= 1, found["layer0"].saturated
    (['layer0', 'layer1'], True, 0.0)
    """
    try:
        found = problem.ranks.shared("how spread out attention is", lambda: _met(problem))
    except RankError:  # the others were interrupted: nothing else depends on this
        return {}
    if any(met is None for met in found):
        return {}
    sums: dict[int, Tensor] = {}
    for met in found:
        for number, added in (met or {}).items():
            sums[number] = sums[number] + added if number in sums else added
    names = attention_names(problem, len(sums))
    return {names[number]: _spread(total) for number, total in sums.items() if bool(total.isfinite().all())}


def _met(problem: Problem) -> dict[int, Tensor] | None:
    """Sums over the sequences of this process, by layer; None where attention is not met."""
    sums: dict[int, Tensor] = {}
    for batch in problem.data:
        met: list[Tensor] = []
        try:
            see_attention(problem, batch, partial(_see, met))
        except Exception:  # whatever a model does that is looked at while it runs: nothing else depends on this
            return None
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
    entropy = attention_entropy(weights).double().mean(-1).sum(0) if sound else torch.full((heads,), torch.nan)
    counts = [torch.tensor(float(sequences)), sequences * equal, saturated, several.sum()]
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
