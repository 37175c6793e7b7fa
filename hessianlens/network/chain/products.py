"""Curvature products of every attention layer of a stack whose layers are joined by piecewise linear maps.

With one head a layer and a position-wise, piecewise linear map (residual, ReLU MLP) behind each but the last,

    h' = phi(rho h + F(h)),      F = a(X M X^T) X W,      M = W_Q W_K^T / s,  W = W_V W_O,

second derivatives live in the attention layers and behind the last of them. A tangent of a weight enters as a tangent
of that layer's F, is carried up and comes back down twice: as ``J^T C J v`` (Gauss-Newton) and as the change of the
gradient under fixed loss derivatives (functional). On the way

    dT = dX a^T + b dX^T with a = X M^T, b = X M,      dF = dA Z + A dX W,      dphi = a d x d matrix a token:

each step is a fraction of what the layer itself costs, and all vectors of all blocks of a layer go together. Sequences
are independent of each other and are taken a few at a time, so that the matrices of their tokens stay small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlens.attention.layer import FactoredValueAttention
from hessianlens.losses import TokenCurvature, UncoupledCurvature
from hessianlens.losses.curvature import FactoredTokenCurvature
from hessianlens.network.last_attention.behind import PositionDerivatives

_CHUNK_BYTES = 2**22
"""Room for the Jacobians of a map between layers, or of a row of weights, at the sequences in work."""


@dataclass(frozen=True, eq=False)
class Link:
    """One attention layer of the stack and the map behind it.

    Attributes:
        head: Its head; W_O is the model's value and W_U its output matrix, biases are a last row.
        tokens: What enters, (B, L, d), with a last column of ones if there are biases.
        residual: rho, factor of the skip connection around the attention.
        jacobian: From a range of sequences to ``dphi/dy``, [s, L, d, d], acting on rows; None for the identity.
    """

    head: FactoredValueAttention
    tokens: Tensor
    residual: float
    jacobian: Callable[[slice], Tensor] | None


@dataclass(frozen=True, eq=False)
class Vectors:
    """Vectors to multiply one block of a layer with.

    Attributes:
        name: The parameter of the head: Q, K, O or U.
        rows: Its rows that make up the block.
        values: ``[vector, row, column]``.
    """

    name: str
    rows: slice
    values: Tensor


class _Layer:
    """An attention layer at some sequences, at the query tokens of interest, with all that first derivatives need."""

    def __init__(self, link: Link, chosen: slice, kept: Tensor | None) -> None:
        X = link.tokens[chosen]
        evaluated = link.head.attend(X)
        self.state = (evaluated if kept is None else evaluated.at(kept)).centred()
        self.link, self.kept, self.width = link, kept, link.head.W_U.shape[1]
        self.tokens = X
        self.A, self.Z = self.state.weights, self.state.values
        self.J = self.state.jacobian.to_dense().to(self.A)
        M = link.head.W_Q @ link.head.W_K.T / self.state.scale
        self.M = M[: self.width, : self.width]
        self.a = (self.state.tokens @ M.T)[..., : self.width]
        self.b = (self.state.queries @ M)[..., : self.width]
        self.W = (link.head.W_O @ link.head.W_U)[: self.width]

    def linearise_gradient(self, g: Tensor) -> None:
        """Fix the loss gradient g at the output, [s, i, d], around which the functional part is taken."""
        self.g, self.D = g, self.state.curvature(g).to_dense().to(g)
        self.e = _rows(self.state.pulled_back(g)[:, :, None], self.J)[:, :, 0]
        self.pulled = g @ self.W.T

    def at_queries(self, tokens: Tensor) -> Tensor:
        """The query tokens of interest among all tokens."""
        return tokens if self.kept is None else tokens[:, self.kept]

    def add_at_queries(self, tokens: Tensor, queries: Tensor, factor: float = 1.0) -> Tensor:
        """Add to the query tokens of interest, in place."""
        if self.kept is None:
            return tokens.add_(queries, alpha=factor)
        return tokens.index_add_(1, self.kept, queries, alpha=factor)

    def forward(self, dX: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``dT``, ``dA`` and ``dF`` of tangents [s, l, p, d] of the tokens."""
        dT = _each(self.at_queries(dX), self.a).add_(_swapped(_each(dX, self.b)))
        dA = _rows(dT, self.J.transpose(-1, -2))
        return dT, dA, (_mixed(self.A, dX) @ self.W).add_(_times(dA, self.Z))

    def backward(self, u: Tensor | None, moved: tuple[Tensor, Tensor, Tensor] | None = None) -> Tensor:
        """Cotangents [s, l, p, d] of the tokens from those of the output.

        With `moved`, tangents (dX, dT, dA), the change of the gradient under them comes on top.
        """
        at_weights, at_keys = None, None
        if u is not None:
            at_weights, at_keys = _each(u, self.Z), _mixed(self.A.transpose(1, 2), u)
        if moved is not None:
            dX, dT, dA = moved
            at_weights = _sum(at_weights, _swapped(_each(dX, self.pulled)))
            at_keys = _sum(at_keys, _times(_swapped(dA), self.g))
        assert at_weights is not None and at_keys is not None
        E = _rows(at_weights, self.J)
        if moved is not None:
            E.add_(_rows(dT, self.D))
        found = (at_keys @ self.W.T).add_(_times(_swapped(E), self.b))
        at_queries = _times(E, self.a)
        if moved is not None:
            found.add_(_mixed(self.e.transpose(1, 2), self.at_queries(dX)) @ self.M)
            at_queries.add_(_mixed(self.e, dX) @ self.M.T)
        return self.add_at_queries(found, at_queries)

    def enter(self, vectors: Vectors) -> tuple[Tensor, Tensor | None]:
        """``dF`` of tangents of a weight, and ``dT`` where it enters through the scores."""
        dW, head, scale = vectors.values, self.link.head, self.state.scale
        X = self.tokens[..., vectors.rows]
        if vectors.name == "U":
            return _applied(self.A @ (self.tokens @ head.W_O), dW), None
        if vectors.name == "O":
            return _applied(self.A @ X, dW) @ head.W_U, None
        if vectors.name == "Q":
            dT = _each(_applied(X, dW), self.state.score_ports["Q"].matrix) / scale
        else:
            dT = _swapped(_each(_applied(X, dW), self.tokens @ head.W_Q)) / scale
        return _times(_rows(dT, self.J.transpose(-1, -2)), self.Z), dT

    def leave(self, vectors: Vectors, u: Tensor, dT: Tensor | None) -> Tensor:
        """The product on the weight, ``[vector, row, column]``, from cotangents u of the output.

        With `dT` the activation's own second derivative along it comes on top.
        """
        head, scale = self.link.head, self.state.scale
        X = self.tokens[..., vectors.rows]
        if vectors.name == "U":
            return _collected(self.A @ (self.tokens @ head.W_O), u)
        if vectors.name == "O":
            return _collected(self.A @ X, u @ head.W_U.T)
        E = _rows(_each(u, self.Z), self.J)
        if dT is not None:
            E = E + _rows(dT, self.D)
        if vectors.name == "Q":
            return _collected(X, _times(E, self.state.score_ports["Q"].matrix) / scale)
        return _collected(X, _times(_swapped(E), self.tokens @ head.W_Q) / scale)


class _Stack:
    """The layers at some sequences, from number `first` on, with the loss gradient at the output of each."""

    def __init__(self, links: Sequence[Link], chosen: slice, found: PositionDerivatives, first: int) -> None:
        kept, self.first = found.positions, first
        self.layers = [
            _Layer(link, chosen, kept if n == len(links) - 1 else None) for n, link in enumerate(links) if n >= first
        ]
        self.jacobians = [None if k.link.jacobian is None else k.link.jacobian(chosen) for k in self.layers[:-1]]
        self.ggn = _sequences(found.ggn, chosen)
        self.head = None if found.head is None else found.head[chosen]
        last = self.layers[-1]
        last.linearise_gradient(found.gradient[chosen])
        for n in reversed(range(len(self.layers) - 1)):
            above = self.layers[n + 1]
            g = above.backward(above.g[:, :, None])
            self.layers[n].linearise_gradient(self._down(n, self._with_skip(above, g, above.g[:, :, None]))[:, :, 0])

    def _with_skip(self, layer: _Layer, found: Tensor, u: Tensor) -> Tensor:
        """Add what goes around the attention."""
        return layer.add_at_queries(found, u, layer.link.residual)

    def _down(self, n: int, u: Tensor) -> Tensor:
        J = self.jacobians[n]
        return u if J is None else u @ J.transpose(-1, -2)

    def products(self, number: int, blocks: Sequence[Vectors]) -> list[tuple[Tensor, Tensor]]:
        """Gauss-Newton and functional products of blocks of a layer."""
        own = self.layers[number - self.first]
        entered = [own.enter(block) for block in blocks]
        ggn, functional = self._there_and_back(number - self.first, torch.cat([dF for dF, _ in entered], 2))
        widths = [len(block.values) for block in blocks]
        sides = zip(blocks, entered, ggn.split(widths, 2), functional.split(widths, 2), strict=True)
        return [(own.leave(block, G, None), own.leave(block, F, dT)) for block, (_, dT), G, F in sides]

    def _there_and_back(self, bottom: int, dy: Tensor) -> tuple[Tensor, Tensor]:
        """Tangents of a layer's output carried up, and both parts of the curvature's answer carried down to it."""
        moves = {}
        for n, layer in enumerate(self.layers[bottom + 1 :], bottom + 1):
            J = self.jacobians[n - 1]
            dh = dy if J is None else dy @ J
            dT, dA, dF = layer.forward(dh)
            moves[n] = (dh, dT, dA)
            dy = dF.add_(layer.at_queries(dh), alpha=layer.link.residual)
        ggn: Tensor = _curved(self.ggn, dy)
        functional = None if self.head is None else dy @ self.head
        for n in reversed(moves):
            layer = self.layers[n]
            ggn = self._down(n - 1, self._with_skip(layer, layer.backward(ggn), ggn))
            back = layer.backward(functional, moves[n])
            functional = self._down(n - 1, back if functional is None else self._with_skip(layer, back, functional))
        assert functional is not None
        return ggn, functional


def chain_products(
    links: Sequence[Link], found: PositionDerivatives, blocks: Mapping[int, Sequence[Vectors]]
) -> dict[int, list[tuple[Tensor, Tensor]]]:
    """Products of the diagonal blocks of layers below the last with vectors: Gauss-Newton and functional part.

    Args:
        links: The attention layers, in order.
        found: Derivatives of the network behind the last one.
        blocks: Vectors of blocks, by number of the layer.
    """
    totals: dict[int, list[tuple[Tensor, Tensor]]] = {}
    with torch.no_grad():
        for chosen in _chunks(links):
            stack = _Stack(links, chosen, found, min(blocks))
            for number, vectors in blocks.items():
                products = stack.products(number, vectors)
                if number not in totals:
                    totals[number] = products
                    continue
                for total, more in zip(totals[number], products, strict=True):
                    total[0].add_(more[0])
                    total[1].add_(more[1])
    return totals


def _chunks(links: Sequence[Link]) -> Iterator[slice]:
    X = links[0].tokens
    sequences, length, width = X.shape
    step = max(1, _CHUNK_BYTES // (length * max(width, length) ** 2 * X.element_size()))
    for start in range(0, sequences, step):
        yield slice(start, min(start + step, sequences))


def _sequences(curvature: UncoupledCurvature, chosen: slice) -> UncoupledCurvature:
    if isinstance(curvature, FactoredTokenCurvature):
        return FactoredTokenCurvature(curvature.left[chosen], curvature.right[chosen])
    assert isinstance(curvature, TokenCurvature)
    return TokenCurvature(curvature.matrices[chosen])


def _curved(curvature: UncoupledCurvature, dy: Tensor) -> Tensor:
    """``C_i dy_i`` for tangents [s, i, p, d]."""
    if isinstance(curvature, FactoredTokenCurvature):
        return (dy @ curvature.right) @ curvature.left.transpose(-1, -2)
    assert isinstance(curvature, TokenCurvature)
    return dy @ curvature.matrices


# Tangents are [sequence, token, vector, feature]; the functions below say which axis is summed.


def _sum(one: Tensor | None, other: Tensor) -> Tensor:
    return other if one is None else one.add_(other)


def _each(tangents: Tensor, rows: Tensor) -> Tensor:
    """``[s, i, p, j]``: inner products of tangents [s, i, p, d] with rows [s, j, d]."""
    return (tangents.flatten(1, 2) @ rows.transpose(1, 2)).unflatten(1, tangents.shape[1:3])


def _times(scores: Tensor, rows: Tensor) -> Tensor:
    """``[s, i, p, d]``: sums of rows [s, j, d] weighted by scores [s, i, p, j]."""
    return (scores.flatten(1, 2) @ rows).unflatten(1, scores.shape[1:3])


def _mixed(weights: Tensor, tangents: Tensor) -> Tensor:
    """``[s, i, p, d]``: sums of tangents [s, j, p, d] weighted by weights [s, i, j]."""
    return (weights @ tangents.flatten(2)).unflatten(2, tangents.shape[2:])


def _rows(scores: Tensor, matrices: Tensor) -> Tensor:
    """Scores [s, i, p, j] times a matrix [s, i, j, l] of each query token."""
    return scores @ matrices


def _swapped(scores: Tensor) -> Tensor:
    """``[s, j, p, i]`` from ``[s, i, p, j]``."""
    return scores.transpose(1, 3)


def _applied(rows: Tensor, matrices: Tensor) -> Tensor:
    """``[s, i, p, c]``: rows [s, i, r] times matrices [p, r, c]."""
    flat = rows @ matrices.transpose(0, 1).flatten(1)
    return flat.unflatten(-1, (len(matrices), -1))


def _collected(rows: Tensor, cotangents: Tensor) -> Tensor:
    """``[p, r, c]``: the transpose of `_applied`, summed over sequences and tokens."""
    flat = rows.flatten(0, 1).T @ cotangents.flatten(0, 1).flatten(1)
    return flat.unflatten(-1, cotangents.shape[2:]).transpose(0, 1)
