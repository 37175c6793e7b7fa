"""Queries and keys that are more than rotated products: behind a norm, of several maps, or of tokens of their own.

Between the linear maps and the attention stands a smooth function of every position. Its Jacobian and its second
derivative along a given gradient are found by autograd through the few operations there, whatever they are called:

    dq_n = sum_p M_n^p dz_n^p,      sum_e w_ne d^2 q_ne / dz^p dz^r = D_n^pr

with ``z^p`` what the maps put out, cut from what is in front of them. The closed forms take any such M and D.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as nnf

from hessianlens.attention.head import RawScores
from hessianlens.attention.layer import FactoredValueAttention, MultiHeadAttention
from hessianlens.attention.sides import InputCurvature, Side
from hessianlens.attention.state import ScorePort
from hessianlens.attention.token_maps import MatrixMap
from hessianlens.attention.tokens import KeyTokens
from hessianlens.derivatives.difference import random_like
from hessianlens.errors import Refusal
from hessianlens.memory import SAFE_SHARE, available_bytes
from hessianlens.network.base.recognition import Grouping
from hessianlens.network.routes.last_attention.operands import (
    NO_SOURCE,
    features_by_head,
    grouping_of,
    refuse_positions,
    vjp_by_position,
)
from hessianlens.network.routes.last_attention.site import CLOSED_FORM, with_ones
from hessianlens.sizes import readable


@dataclass(frozen=True, eq=False)
class SmoothSource:
    """One of the maps that queries or keys come from.

    Attributes:
        site: The map.
        leaf: What it puts out.
        features: Its outputs that a head takes, ``[piece, p]``.
        heads: Heads to a piece, which are neighbours.
        grouping: Positions of the map by sequence.
    """

    site: int
    leaf: Tensor
    features: Tensor
    heads: int
    grouping: Grouping

    def of_head(self, head: int) -> Tensor:
        """Outputs that a head takes."""
        return self.features[head // self.heads].to(self.leaf.device)


@dataclass(frozen=True, eq=False)
class SmoothOperand:
    """Queries or keys of all heads as a function of what their maps put out.

    Attributes:
        rows: ``[sequence, head, position, e]``, on the graph of the leaves.
        sources: The maps.
        curved: Whether some second derivative is not zero.
    """

    rows: Tensor
    sources: tuple[SmoothSource, ...]
    curved: bool

    def maps(self) -> list[list[Tensor]]:
        """``M_n`` by source and head, ``[sequence, position, e, p]``; heads that share nothing are found together."""
        found: list[list[Tensor]] = []
        for source in self.sources:
            heads, width = range(self.rows.shape[1]), self.rows.shape[3]
            disjoint = source.heads == 1 and len(set(source.features.flatten().tolist())) == source.features.numel()
            rounds = [list(heads)] if disjoint else [[head] for head in heads]
            by_head: dict[int, Tensor] = {}
            for together in rounds:
                rows = [self._vjp(source, together, e) for e in range(width)]
                for head in together:
                    by_head[head] = torch.stack([row[..., source.of_head(head)] for row in rows], 2)
            found.append([by_head[head] for head in heads])
        return found

    def _vjp(self, source: SmoothSource, heads: Sequence[int], e: int) -> Tensor:
        cotangent = torch.zeros_like(self.rows)
        cotangent[:, list(heads), :, e] = 1
        return source.grouping.arrange(vjp_by_position(self.rows, source.leaf, cotangent))


@dataclass(frozen=True, eq=False)
class GraphCurvature(InputCurvature):
    """Second derivatives by autograd, through the graph from some leaves to the queries or keys of one head.

    Attributes:
        names: Of the parameters, by source.
        sources: The maps.
        rows: ``[sequence, position, e]``, on the graph of the leaves.
        head: The head.
        kept: Positions that count; None for all.
    """

    names: tuple[str, ...]
    sources: tuple[SmoothSource, ...]
    rows: Tensor
    head: int
    kept: Tensor | None = None

    def along(self, cotangents: Float[Tensor, "s n k"]) -> dict[tuple[str, str], Float[Tensor, "s n p r"]]:
        """One double backward for every output of the maps that the head takes."""
        length = self.rows.shape[1]
        w = cotangents[:, :length]
        if self.kept is not None:
            w = torch.zeros_like(self.rows)
            w[:, self.kept] = cotangents
        with torch.enable_grad():
            found = self._along(w.detach())
        if cotangents.shape[1] <= length:
            return found
        return {names: nnf.pad(D, _BELOW_MATRICES) for names, D in found.items()}  # a sink has no key

    def _along(self, w: Tensor) -> dict[tuple[str, str], Tensor]:
        leaves, found = [source.leaf for source in self.sources], dict[tuple[str, str], Tensor]()
        slopes = torch.autograd.grad((self.rows * w).sum(), leaves, create_graph=True, retain_graph=True)
        for i, slope in enumerate(slopes):
            if not slope.requires_grad:
                continue
            columns = [self._second(slope[..., feature].sum(), i) for feature in self.sources[i].of_head(self.head)]
            for j in range(i, len(leaves)):
                found[self.names[i], self.names[j]] = torch.stack([column[j - i] for column in columns], 2)
        return found

    def _second(self, slope: Tensor, first: int) -> list[Tensor]:
        """By source from this one on, ``[s, n, p]``."""
        sources = self.sources[first:]
        leaves = [source.leaf for source in sources]
        grads = torch.autograd.grad(slope, leaves, retain_graph=True, allow_unused=True, materialize_grads=True)
        found = []
        for source, grad in zip(sources, grads, strict=True):
            by_sequence = source.grouping.arrange(grad.reshape(-1, grad.shape[-1]))[..., source.of_head(self.head)]
            found.append(by_sequence if self.kept is None else by_sequence[:, self.kept])
        return found

    def at(self, kept: Int[Tensor, " n"]) -> GraphCurvature:
        """That of some positions only."""
        return replace(self, kept=kept if self.kept is None else self.kept[kept])


def smooth_operand(taken: Tensor, leaves: Mapping[int, Tensor]) -> SmoothOperand | Refusal:
    """Queries or keys as a function of what their maps put out; a refusal where it mixes positions.

    Args:
        taken: ``[sequence, head, position, e]``.
        leaves: What the maps before it put out, by site.
    """
    if not taken.requires_grad:
        return NO_SOURCE
    slopes = torch.autograd.grad(taken, list(leaves.values()), random_like(taken), retain_graph=True, allow_unused=True)
    used = [site for site, slope in zip(leaves, slopes, strict=True) if slope is not None and bool(slope.any())]
    sources = []
    for site in used:
        found = features_by_head(taken, leaves[site])
        if isinstance(found, Refusal):
            return found
        grouping = grouping_of(taken, leaves[site])
        if grouping is None:
            return refuse_positions(taken, leaves[site])
        sources.append(SmoothSource(site, leaves[site], *found, grouping))
    if not sources:
        return NO_SOURCE
    operand = SmoothOperand(taken, tuple(sources), is_curved(taken, [source.leaf for source in sources]))
    widths = [source.features.shape[1] for source in sources]
    numbers = taken[..., 0].numel() * sum(p * (taken.shape[3] + operand.curved * p) for p in widths)
    held = numbers * taken.element_size()
    free = available_bytes(taken.device)
    if held > SAFE_SHARE * free:
        return Refusal(f"need {readable(held)} for their derivatives, and {readable(free)} are free")
    return operand


def is_curved(taken: Tensor, leaves: Sequence[Tensor]) -> bool:
    """Whether some second derivative is not zero."""
    with torch.enable_grad():
        slopes = torch.autograd.grad(taken, leaves, random_like(taken), create_graph=True, retain_graph=True)
    bent = [slope for slope in slopes if slope.requires_grad]
    if not bent:
        return False
    drawn = [random_like(slope) for slope in bent]
    found = torch.autograd.grad(bent, leaves, drawn, retain_graph=True, allow_unused=True)
    return any(each is not None and bool(each.any()) for each in found)


def _sides(operand: SmoothOperand, names: Sequence[str], inputs: Sequence[Tensor]) -> list[Side]:
    """Queries or keys of every head.

    Args:
        operand: All of them.
        names: Of the parameters, by source.
        inputs: What every source is multiplied with, ``[sequence, position, .]``.
    """
    maps, found = operand.maps(), []
    rows = operand.rows.detach()
    for head in range(rows.shape[1]):
        curvature = (
            GraphCurvature(tuple(names), operand.sources, operand.rows[:, head], head) if operand.curved else None
        )
        own = {name: MatrixMap(maps[k][head]) for k, name in enumerate(names)}
        found.append(
            Side(rows[:, head], dict(zip(names, inputs, strict=True)), own, curvature if operand.curved else None)
        )
    return found


@dataclass(frozen=True, eq=False, repr=False)
class SmoothAttention(FactoredValueAttention):
    """A head at one batch, whose queries and keys are given with their derivatives.

    Attributes:
        queries: Queries.
        keys: Keys, perhaps of another number of positions.
        content: Tokens that the values are made of, ``[sequence, position, d]``.
        further: Weights behind queries and keys beside W_Q and W_K, by name.
    """

    queries: Side
    keys: Side
    content: Tensor
    further: Mapping[str, Tensor]

    @property
    def parameters(self) -> dict[str, Tensor]:
        """All weights."""
        return super().parameters | dict(self.further)

    def _check_shapes(self) -> None:
        """They are those of the network."""

    def _key_tokens(self, X: Tensor, X_kv: Tensor | None) -> KeyTokens:
        return KeyTokens.of(self.content, self.sink is not None)

    def _raw_scores(self, X: Tensor, keys: KeyTokens) -> RawScores:
        q, k = self.queries, self._with_sink_key(self.keys)
        ports = {name: ScorePort(u, "x", 0, k.rows, "k", query_turn=q.maps[name]) for name, u in q.inputs.items()}
        ports |= {name: ScorePort(q.rows, "q", 1, u, "x", key_turn=k.maps[name]) for name, u in k.inputs.items()}
        scale = self.temperature * q.rows.shape[-1] ** 0.5
        return RawScores(q.rows @ k.rows.mT, scale, ports, ("Q", "K"), q, k)

    def _with_sink_key(self, keys: Side) -> Side:
        """Keys with a row of zeros for a sink, if there is one."""
        if self.sink is None:
            return keys
        maps = {name: MatrixMap(nnf.pad(own.matrices(), _BELOW_MATRICES)) for name, own in keys.maps.items() if own}
        inputs = {name: nnf.pad(u, _BELOW) for name, u in keys.inputs.items()}
        return replace(keys, rows=nnf.pad(keys.rows, _BELOW), inputs=inputs, maps=maps)


_BELOW, _BELOW_MATRICES = (0, 0, 0, 1), (0, 0, 0, 0, 0, 1)
"""One more token."""


def smooth_heads(
    operands: Mapping[str, SmoothOperand],
    pieces: Mapping[str, Sequence[Tensor]],
    rows: Mapping[str, Sequence[Tensor] | None],
    tokens: Mapping[str, Tensor],
    heads: Mapping[str, int],
    options: Sequence[Mapping[str, Any]],
) -> tuple[MultiHeadAttention, Tensor]:
    """The layer, and what enters its queries.

    Args:
        operands: Queries and keys.
        pieces: Matrices of all maps, by name: q, k, v, o, and further ones as q2.
        rows: Biases, one row a piece, where they exist.
        tokens: What every map is multiplied with.
        heads: Heads that share a piece.
        options: Activation, mask, temperature and whatever else each head takes.
    """
    biased = any(own is not None for own in rows.values())
    inputs = {name: with_ones(X) if biased else X for name, X in tokens.items()}
    weights = {name: _extended(own, rows.get(name), biased and name != "o") for name, own in pieces.items()}
    by_head = {name: [w for w in own for _ in range(heads[name])] for name, own in weights.items()}
    sides = {}
    for name, operand in operands.items():
        own = [other for other in inputs if other.startswith(name)]
        sides[name] = _sides(operand, [CLOSED_FORM[other] for other in own], [inputs[other] for other in own])
    further = [name for name in by_head if len(name) > 1]
    found = [
        SmoothAttention(
            by_head["q"][h],
            by_head["k"][h],
            by_head["v"][h],
            by_head["o"][h],
            queries=sides["q"][h],
            keys=sides["k"][h],
            content=inputs["v"],
            further={CLOSED_FORM[name]: by_head[name][h] for name in further},
            **options[h],
        )
        for h in range(len(options))
    ]
    return MultiHeadAttention(found), inputs["q"]


def _extended(pieces: Sequence[Tensor], rows: Sequence[Tensor] | None, biased: bool) -> list[Tensor]:
    """Weights with a last row for their bias, zero where they have none."""
    if not biased:
        return list(pieces)
    own = rows or [piece.new_zeros(1, piece.shape[1]) for piece in pieces]
    return [torch.cat([piece, row]) for piece, row in zip(pieces, own, strict=True)]
