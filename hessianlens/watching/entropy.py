"""How spread out the attention of every layer is, on the probe batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from hessianlens.attention import attention_entropy
from hessianlens.models.attention import Attention
from hessianlens.network.sites.calls import AttentionCalls, Call
from hessianlens.problems import Problem, layer_of

_HIDDEN = 0.25
"""Scores below this share of the lowest number are hidden by a mask: implementations add or fill in that number."""


@dataclass(frozen=True)
class Spread:
    """The attention of one layer.

    Attributes:
        entropy: Mean over sequences, heads and rows, in nats.
        lowest: The same of the head where it is lowest.
        share: Entropy over that of equal weights on all that a row may see; 1 where attention is uniform, 0 where every
            row looks at one token.
    """

    entropy: float
    lowest: float
    share: float


def attention_spreads(problem: Problem) -> dict[str, Spread]:
    """By layer, ``layer0.attn``; empty where attention is not softmax, or is not met.

    >>> import hessianlens as hl
    >>> model = hl.models.Transformer(layers=2, d_model=8, d_mlp=16, dtype=torch.float64)
    >>> task = hl.tasks.Addition()
    >>> found = attention_spreads(hl.problem(model, task.batch(4, seed=0), task.cross_entropy))
    >>> list(found), 0 < found["layer0.attn"].share <= 1
    (['layer0.attn', 'layer1.attn'], True)
    """
    sums: list[Tensor] = []
    sequences = 0
    for batch in problem.data:
        met = _met(problem, batch)
        if not met or (sums and len(met) != len(sums)):
            return {}
        weights = [float(one[0]) for one in met]
        sequences += int(weights[0])
        sums = met if not sums else [a + b for a, b in zip(sums, met, strict=True)]
    names = _names(problem, len(sums))
    return {name: _spread(total / sequences) for name, total in zip(names, sums, strict=True)}


def _spread(mean: Tensor) -> Spread:
    """From ``[1, entropy of equal weights, entropy of every head ...]``."""
    uniform, heads = float(mean[1]), mean[2:]
    entropy = float(heads.mean())
    return Spread(entropy, float(heads.min()), entropy / uniform if uniform > 0 else 0.0)


def _met(problem: Problem, batch: object) -> list[Tensor]:
    """The sums over sequences of every attention that the model calls, in order."""
    found: list[Tensor] = []
    own = problem.source if isinstance(problem.source, nn.Module) else None
    with problem.scope(), torch.enable_grad(), _Every(found), _own_attention(own, found):
        problem.forward(problem.params, batch)
    return found


class _Every(AttentionCalls):
    """Every attention, reduced to its entropies at once, so that no matrix of weights stays."""

    def __init__(self, found: list[Tensor]) -> None:
        self._found = found
        super().__init__()

    @property
    def last(self) -> Call | None:
        """None is kept."""
        return None

    @last.setter
    def last(self, call: Call | None) -> None:
        if call is not None:
            scores = call.scores.detach()
            visible = scores > _HIDDEN * torch.finfo(scores.dtype).min
            self._found.append(_reduced(torch.softmax(scores, -1), visible))


def _reduced(weights: Tensor, visible: Tensor) -> Tensor:
    """``[sequences, sum of entropies of equal weights, sums of entropies by head ...]`` of weights [b, h, i, j]."""
    weights = weights if weights.ndim > 3 else weights[:, None]
    sequences = weights.shape[0]
    entropy = attention_entropy(weights.detach()).double().mean(-1).sum(0)
    equal = visible.sum(-1).clamp(min=1).double().log().mean()
    return torch.cat([torch.stack([torch.tensor(float(sequences)).to(equal), sequences * equal]), entropy])


@contextmanager
def _own_attention(model: nn.Module | None, found: list[Tensor]) -> Iterator[None]:
    """The attention of the library's own models, whose softmax is a function of its own: met where weights are made."""
    modules = [] if model is None else [module for module in model.modules() if isinstance(module, Attention)]
    own = [module for module in modules if module.activation.fixed_sum]

    def seen(module: Attention, X: Tensor) -> Tensor:
        weights = Attention.weights(module, X)
        found.append(_reduced(weights, weights > 0))
        return weights

    for module in own:
        module.__dict__["weights"] = partial(seen, module)
    try:
        yield
    finally:
        for module in own:
            del module.__dict__["weights"]


def _names(problem: Problem, count: int) -> list[str]:
    """Names of layers if there is one attention in each, else numbers."""
    layers: Mapping[str, None] = dict.fromkeys(
        layer_of(name) or "" for name in problem.blocks if ".attn." in name and layer_of(name)
    )
    if len(layers) == count:
        return [f"{layer}.attn" for layer in layers]
    return [f"attention{number}" for number in range(count)]
