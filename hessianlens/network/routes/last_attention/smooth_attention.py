"""Heads whose queries, keys or values are given with their derivatives, and a layer of them from a network's pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as nnf

from hessianlens.attention.head import RawScores
from hessianlens.attention.layer import FactoredValueAttention, MultiHeadAttention
from hessianlens.attention.sides import Side
from hessianlens.attention.state import ScorePort, ValuePort
from hessianlens.attention.token_maps import MatrixMap
from hessianlens.attention.tokens import KeyTokens
from hessianlens.network.routes.last_attention.site import CLOSED_FORM, with_ones
from hessianlens.network.routes.last_attention.smooth import BELOW_MATRICES, GraphCurvature, SmoothOperand


@dataclass(frozen=True, eq=False, repr=False)
class SmoothAttention(FactoredValueAttention):
    """A head at one batch, whose queries, keys and perhaps values are given with their derivatives.

    Attributes:
        queries: Queries.
        keys: Keys, perhaps of another number of positions; without parameters where these are not of this layer alone.
        content: Tokens that the values are made of, ``[sequence, position, d]``.
        further: Weights behind queries, keys and values beside W_Q, W_K and W_O, by name.
        values: Values in front of W_U; None where they are tokens times W_O.
    """

    queries: Side
    keys: Side
    content: Tensor
    further: Mapping[str, Tensor]
    values: Side | None = None

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        """Parameters that are of this layer alone."""
        own = {*self.queries.inputs, *self.keys.inputs, *(("O",) if self.values is None else self.values.inputs)}
        return (*(name for name in ("Q", "K", "O") if name in own), "U")

    @property
    def parameters(self) -> dict[str, Tensor]:
        """All weights."""
        return super().parameters | dict(self.further)

    @property
    def keys_shift_alike(self) -> bool:
        """Whether a bias of the keys adds the same vector to all of them."""
        turn = self.keys.maps.get("K")
        if turn is None or self.keys.curvature is not None:
            return False
        matrices = turn.matrices()
        return bool((matrices == matrices[:1, :1]).all())

    def _check_shapes(self) -> None:
        """They are those of the network."""

    def _key_tokens(self, X: Tensor, X_kv: Tensor | None) -> KeyTokens:
        return KeyTokens.of(self.content, self.sink is not None)

    def _raw_scores(self, X: Tensor, keys: KeyTokens) -> RawScores:
        q, k = self.queries, self._with_sink_row(self.keys)
        ports = {name: ScorePort(u, "x", 0, k.rows, "k", query_turn=q.maps[name]) for name, u in q.inputs.items()}
        ports |= {name: ScorePort(q.rows, "q", 1, u, "x", key_turn=k.maps[name]) for name, u in k.inputs.items()}
        scale = self.temperature * q.rows.shape[-1] ** 0.5
        return RawScores(q.rows @ k.rows.mT, scale, ports, ("Q", "K") if k.inputs else None, q, k)

    def _value_side(self) -> Side | None:
        return None if self.values is None else self._with_sink_row(self.values)

    def _value_map(self, X: Tensor) -> Tensor:
        values = self._value_side()
        return super()._value_map(X) if values is None else values.rows @ self.W_U

    def _value_ports(self, X: Tensor, A: Tensor) -> tuple[dict[str, ValuePort], tuple[str, str] | None]:
        values = self._value_side()
        if values is None:
            return super()._value_ports(X, A)
        weights = self.parameters
        ports = {
            name: ValuePort(u, "x", A, "m", weights[name].shape[1], self.W_U, "W_U", turn=values.maps[name])
            for name, u in values.inputs.items()
        }
        return ports | {"U": ValuePort(values.rows, "v", A, "mv", self.d_v)}, ("O", "U") if values.inputs else None

    def _with_sink_row(self, side: Side) -> Side:
        """Keys or values with a row of zeros for a sink, if there is one."""
        if self.sink is None:
            return side
        maps = {name: MatrixMap(nnf.pad(own.matrices(), BELOW_MATRICES)) for name, own in side.maps.items() if own}
        inputs = {name: nnf.pad(u, _BELOW) for name, u in side.inputs.items()}
        links = tuple(replace(link, jacobian=nnf.pad(link.jacobian, BELOW_MATRICES)) for link in side.links)
        return replace(side, rows=nnf.pad(side.rows, _BELOW), inputs=inputs, maps=maps, links=links)


_BELOW = (0, 0, 0, 1)
"""One more token."""


def smooth_heads(
    operands: Mapping[str, SmoothOperand],
    pieces: Mapping[str, Sequence[Tensor]],
    rows: Mapping[str, Sequence[Tensor] | None],
    tokens: Mapping[str, Tensor],
    heads: Mapping[str, Sequence[int]],
    options: Sequence[Mapping[str, Any]],
) -> tuple[MultiHeadAttention, Tensor]:
    """The layer, and what enters its queries.

    Args:
        operands: Queries and keys, and values where they are more than tokens times a matrix.
        pieces: Matrices of all maps, by name: q, k, v, o, and further ones as q2.
        rows: Biases, one row a piece, where they exist.
        tokens: What every map is multiplied with.
        heads: The piece of every head.
        options: Activation, mask, temperature and whatever else each head takes.
    """
    biased = any(own is not None for own in rows.values())
    inputs = {name: with_ones(X) if biased else X for name, X in tokens.items()}
    weights = {name: _extended(own, rows.get(name), biased and name != "o") for name, own in pieces.items()}
    by_head = {name: [own[piece] for piece in heads[name]] for name, own in weights.items()}
    sides = {name: _sides(operand, [o for o in inputs if o[0] == name], inputs) for name, operand in operands.items()}
    further = [name for name in by_head if len(name) > 1]
    none = inputs["q"].new_zeros(1, 1)  # in place of the weights of another layer
    content = inputs["v"] if "v" in inputs else none.expand(*_shape(operands["v"]), 1)
    found = [
        SmoothAttention(
            by_head["q"][h],
            by_head["k"][h] if "k" in by_head else none,
            by_head["v"][h] if "v" in by_head else none,
            by_head["o"][h],
            queries=sides["q"][h],
            keys=sides["k"][h],
            values=sides["v"][h] if "v" in sides else None,
            content=content,
            further={CLOSED_FORM[name]: by_head[name][h] for name in further},
            **options[h],
        )
        for h in range(len(options))
    ]
    return MultiHeadAttention(found), inputs["q"]


def _shape(operand: SmoothOperand) -> tuple[int, int]:
    """Sequences and positions."""
    return operand.rows.shape[0], operand.rows.shape[2]


def _sides(operand: SmoothOperand, own: Sequence[str], inputs: Mapping[str, Tensor]) -> list[Side]:
    """Queries, keys or values of every head.

    Args:
        operand: All of them.
        own: What their maps are called, by source.
        inputs: What every map is multiplied with, ``[sequence, position, .]``.
    """
    names = [CLOSED_FORM[name] for name in own]
    maps, links, found = operand.maps(), operand.links(names, [inputs[name].shape[-1] for name in own]), []
    rows = operand.rows.detach()
    for head in range(rows.shape[1]):
        curvature = GraphCurvature(tuple(names), operand.sources, operand.rows[:, head], head)
        found.append(
            Side(
                rows[:, head],
                {name: inputs[o] for name, o in zip(names, own, strict=True)},
                {name: MatrixMap(maps[k][head]) for k, name in enumerate(names)},
                curvature if operand.curved else None,
                links[head],
            )
        )
    return found


def _extended(pieces: Sequence[Tensor], rows: Sequence[Tensor] | None, biased: bool) -> list[Tensor]:
    """Weights with a last row for their bias, zero where they have none."""
    if not biased:
        return list(pieces)
    own = rows or [piece.new_zeros(1, piece.shape[1]) for piece in pieces]
    return [torch.cat([piece, row]) for piece, row in zip(pieces, own, strict=True)]
