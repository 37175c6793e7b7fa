"""Norms of the parts of a query, key or value block of a last attention layer of several heads.

With ``D_n = W_O C_n W_O^T`` the curvature at what the heads put out, by pairs of heads,

    queries  sum_n x_n x_n^T (x) K^h^T M_n^hh' K^h',    M_n^hh' = J_n^h^T V^h D_n^hh' V^h'^T J_n^h' (+ own, for h = h')
    keys     sum_n q_n^h q_n^h'^T (x) X^T M_n^hh' X
    values   sum_n m_n^h m_n^h'^T (x) D_n^hh'

and the square of a norm is the sum over pairs of heads. Nothing larger than the length of a sequence or the width of a
head is multiplied by pairs of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from hessianlens.attention.layer import FactoredValueAttention, MultiHeadAttention
from hessianlens.attention.state import HeadState
from hessianlens.losses import TokenCurvature, UncoupledCurvature
from hessianlens.losses.curvature_forms import FactoredTokenCurvature
from hessianlens.network.routes.last_attention.grams import (
    LARGEST_BYTES,
    norms_of_parts,
    scale_each_to_unit_maximum,
    score_products,
    weighted_gram,
)
from hessianlens.network.routes.last_attention.positionwise import PositionDerivatives
from hessianlens.operators.exponent_scaling import scale_to_unit_maximum


class HeadNorms:
    """The heads of a layer, and the curvature at what they put out.

    Args:
        layer: The layer with the network's weights.
        X: Tokens that enter it, (B, L, d).
        derivatives: Of the network behind it.
    """

    def __init__(self, layer: MultiHeadAttention, X: Tensor, derivatives: PositionDerivatives) -> None:
        self.layer, self.X, self.derivatives = layer, X, derivatives
        self._scores: dict[tuple[int, int], Tensor] = {}

    @cached_property
    def _heads(self) -> list[HeadState]:
        return [head.attend(self.X).at(self.derivatives.positions).centred() for head in self.layer.heads]

    @cached_property
    def _curvature(self) -> tuple[_AtHeads, _AtHeads | None]:
        """D of the Gauss-Newton part and of the rest."""
        readouts = [head.value_ports["O"].readout for head in self._heads]
        W = [w for w in readouts if w is not None]
        found = self.derivatives
        rest = None if found.head is None else _at_heads(TokenCurvature(found.head), W)
        return _at_heads(found.ggn, W), rest

    def norms(self, name: str, pieces: Sequence[Sequence[int]], rows: slice) -> dict[str, float] | None:
        """Norms of the ggn, functional and full part of a block with itself; None where this way does not apply.

        Args:
            name: The parameter: Q, K, O (that is v) or U.
            pieces: Pieces of the block, as the heads that share each.
            rows: Rows of the parameter that belong to the block.
        """
        heads = [h for piece in pieces for h in piece]
        alone = len(heads) == len(pieces)
        plain = all(type(head) is FactoredValueAttention for head in self.layer.heads)
        if name not in ("O", "U") and any(head.query_curvature or head.key_curvature for head in self._heads):
            return None
        with torch.no_grad():
            if name == "Q" and alone:
                found = self._queries(heads, rows)
            elif name == "K" and alone and plain:
                found = self._keys(heads, rows)
            else:
                found = self._values(pieces, rows) if name == "O" else None
        if found is None:
            return None
        inner, largest = found
        there = (largest != 0).double()
        return norms_of_parts(inner, there, torch.float64) if bool(inner.isfinite().all()) else None

    def _queries(self, heads: Sequence[int], rows: slice) -> tuple[Tensor, Tensor] | None:
        first = self._heads[heads[0]]
        x, size = scale_to_unit_maximum(first.score_ports["Q"].vector[..., rows].flatten(0, 1))
        if 2 * first.scores.numel() * first.scores.shape[-1] * x.element_size() > LARGEST_BYTES:
            return None
        weights = (x @ x.T).square()
        total, largest = _Sum(), torch.zeros(2, dtype=torch.float64, device="cpu")
        for h, other, times in _pairs(heads):
            ports = [self._heads[k].score_ports["Q"] for k in (h, other)]
            K, L = (port.matrices_at(0, first.scores.shape[1])[:, None] for port in ports)
            small = (K.transpose(-1, -2) @ self._score_matrices(h, other) @ L).transpose(0, 1).flatten(1, 2).flatten(2)
            G, sizes = scale_each_to_unit_maximum(small, dims=(1, 2))
            total.add(_own_products(weights, G), sizes * size**2, times)
            largest = torch.maximum(largest, sizes.cpu())
        return total.inner, largest

    def _keys(self, heads: Sequence[int], rows: slice) -> tuple[Tensor, Tensor] | None:
        first = self._heads[heads[0]]
        P = first.score_ports["K"].matrix[..., rows]
        total, largest = _Sum(), torch.zeros(2, dtype=torch.float64, device="cpu")
        if not bool(P.any()):  # a bias moves all scores of a row alike
            return total.inner, largest
        length = first.scores.shape[-1]
        if length > P.shape[-1] or 2 * first.scores.numel() * length * P.element_size() > LARGEST_BYTES:
            return None
        P, size = scale_to_unit_maximum(P)
        vectors = {h: scale_to_unit_maximum(self._heads[h].score_ports["K"].vector) for h in heads}
        for h, other, times in _pairs(heads):
            M, sizes = scale_each_to_unit_maximum(self._score_matrices(h, other), dims=(0, 2, 3, 4))
            (p, length_p), (q, length_q) = vectors[h], vectors[other]
            total.add(score_products(p, q, P, M), sizes * size**2 * length_p * length_q, times)
            largest = torch.maximum(largest, sizes.cpu())
        return total.inner, largest

    def _score_matrices(self, h: int, other: int) -> Tensor:
        """``M_n`` of a pair of heads, ``[sequence, part, i, l, m]``; kept for keys and biases."""
        if (h, other) not in self._scores:
            found = self._curvature_at_scores(h, other)
            if (len(self._scores) + 1) * found.numel() * found.element_size() > LARGEST_BYTES:
                return found
            self._scores[h, other] = found
        return self._scores[h, other]

    def _curvature_at_scores(self, h: int, other: int) -> Tensor:
        mine, theirs = self._heads[h], self._heads[other]
        V, U = (head.value_ports["U"].content[:, None] for head in (mine, theirs))
        left, right = mine.jacobian.transpose(), theirs.jacobian.transpose()
        ggn, rest = self._curvature

        def at_scores(D: Tensor) -> Tensor:
            half = left.apply(V @ D @ U.transpose(-1, -2))
            return right.apply(half.transpose(-1, -2)).transpose(-1, -2)

        outer = at_scores(ggn.block(h, other))
        functional = torch.zeros_like(outer) if rest is None else at_scores(rest.block(h, other))
        if h == other:
            functional = functional + mine.curvature(self.derivatives.gradient).to_dense().to(functional)
        return torch.stack([outer, functional], 1) / (mine.scale * theirs.scale)

    def _values(self, pieces: Sequence[Sequence[int]], rows: slice) -> tuple[Tensor, Tensor] | None:
        heads = [h for piece in pieces for h in piece]
        m = {h: scale_to_unit_maximum(self._heads[h].value_ports["O"].vector[..., rows].flatten(0, 1)) for h in heads}
        total, largest = _Sum(), torch.zeros(2, dtype=torch.float64, device="cpu")
        for piece, other, times in _pairs(pieces):
            found = {(h, g): self._value_matrices(h, g) for h in piece for g in other}
            for (h, g), (G, sizes) in found.items():
                largest = torch.maximum(largest, sizes.cpu())
                for (k, e), (H, others) in found.items():
                    grams = [m[x][0] @ m[y][0].T for x, y in ((h, k), (g, e))]
                    weights, scale = grams[0] * grams[1], m[h][1] * m[g][1] * m[k][1] * m[e][1]
                    if (h, g) == (k, e):
                        inner = _own_products(weights, G)
                    else:
                        inner = torch.stack([torch.stack([weighted_gram(weights, a, b, False) for b in H]) for a in G])
                    total.add_scaled(inner * torch.outer(sizes, others) * scale, times)
        return total.inner, largest

    def _value_matrices(self, h: int, other: int) -> tuple[Tensor, Tensor]:
        """``D_n`` of a pair of heads, flat, ``[part, n, entry]`` of largest entry 1, and those entries."""
        parts = [None if part is None else part.block(h, other).flatten(0, 1).flatten(1) for part in self._curvature]
        assert parts[0] is not None
        known = [torch.zeros_like(parts[0]) if part is None else part for part in parts]
        return scale_each_to_unit_maximum(torch.stack(known), dims=(1, 2))


@dataclass(frozen=True, eq=False)
class _AtHeads:
    """``left_n right_n^T`` by pairs of heads; both ``[sequence, n, features of all heads, .]``, or only the product.

    Attributes:
        width: Features of a head.
    """

    width: int
    whole: Tensor | None = None
    left: Tensor | None = None
    right: Tensor | None = None

    def block(self, h: int, other: int) -> Tensor:
        """``[sequence, n, e, f]``."""
        rows, columns = (slice(k * self.width, (k + 1) * self.width) for k in (h, other))
        if self.whole is not None:
            return self.whole[..., rows, columns]
        assert self.left is not None and self.right is not None
        return self.left[..., rows, :] @ self.right[..., columns, :].transpose(-1, -2)


def _at_heads(curvature: UncoupledCurvature, readouts: Sequence[Tensor]) -> _AtHeads:
    W, width = torch.cat(list(readouts)), readouts[0].shape[0]
    if isinstance(curvature, FactoredTokenCurvature):
        return _AtHeads(width, left=W @ curvature.left, right=W @ curvature.right)
    assert isinstance(curvature, TokenCurvature)
    return _AtHeads(width, W @ curvature.matrices @ W.T)


def _own_products(weights: Tensor, G: Tensor) -> Tensor:
    """Inner products ``[part, part]`` of a sum over tokens with itself, whose weights are symmetric."""
    ggn, functional = G
    mixed = weighted_gram(weights, ggn, functional, symmetric=False)
    own = [weighted_gram(weights, part, part, symmetric=True) for part in (ggn, functional)]
    return torch.stack([own[0], mixed, mixed, own[1]]).reshape(2, 2)


def _pairs(items: Sequence[int] | Sequence[Sequence[int]]) -> Iterator[tuple[Any, ...]]:
    """Pairs in one order, with how often they count."""
    for number, first in enumerate(items):
        for second in items[number:]:
            yield first, second, 1 if second is first else 2


class _Sum:
    """A sum of inner products in double precision."""

    def __init__(self) -> None:
        self.inner = torch.zeros(2, 2, dtype=torch.float64, device="cpu")

    def add(self, inner: Tensor, sizes: Tensor, times: int) -> None:
        """Inner products of parts of largest entry one."""
        self.add_scaled(inner * torch.outer(sizes, sizes), times)

    def add_scaled(self, inner: Tensor, times: int) -> None:
        """Inner products."""
        self.inner += times * inner.double().cpu()
