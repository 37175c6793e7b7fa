"""One attention layer of a chain: its first derivatives, and tangents through it and back.

    T = X M X^T,    F = a(T) X W,    M = W_Q W_K^T / s,    W = W_V W_O

With a = X M^T, b = X M, Z = X W, g the gradient of the loss at F, e = J (g Z^T) that at T, and D the second derivative
of the activation along g Z^T, tangents dX of the tokens give

    dT = dX a^T + b dX^T,      dA = J dT,      dF = A dX W + dA Z,

and cotangents u of F, with the change of the gradient under dX,

    E = J (u Z^T + g W^T dX^T) + D dT
    keys:  A^T u W^T + dA^T g W^T + E^T b + e^T dX M,      queries:  E a + e dX M^T.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from hessianlab.chain import contractions as c
from hessianlab.chain.links import Link
from hessianlens.attention.state import HeadState


@dataclass(frozen=True, eq=False)
class LayerTangents:
    """Tangents at a layer: of its tokens [s, l, p, d], of those that are queries, of scores and of weights."""

    tokens: Tensor
    queries: Tensor
    scores: Tensor
    weights: Tensor


class Layer:
    """A layer at some sequences, at the query tokens of interest, with all that first derivatives need.

    Args:
        link: The layer.
        chosen: Sequences.
        state: The head there, at all tokens.
        kept: Query tokens of interest; None for all.
    """

    def __init__(self, link: Link, chosen: slice, state: HeadState, kept: Tensor | None) -> None:
        self.link, self.chosen, self.kept, self.width = link, chosen, kept, link.head.W_U.shape[1]
        self.state = (state if kept is None else state.at(kept)).centred()
        self.J = self.state.jacobian.to_dense().to(self.state.weights)
        M = link.head.W_Q @ link.head.W_K.T / self.state.scale
        self.M, self.W = M[: self.width, : self.width], (link.head.W_O @ link.head.W_U)[: self.width]
        self.a = (self.state.tokens @ M.T)[..., : self.width]
        self.b = (self.state.queries @ M)[..., : self.width]

    def linearise_gradient(self, g: Tensor) -> Tensor:
        """Fix the gradient g of the loss at the output, [s, i, d]; the gradient at the residual stream that enters."""
        self.g, self.D = g, self.state.curvature(g).to_dense().to(g)
        self.e = (self.state.vjp_to_weights(g)[:, :, None] @ self.J)[:, :, 0]
        self.vjp = g @ self.W.T
        at_tokens = self.state.weights.transpose(1, 2) @ self.vjp + self.e.transpose(1, 2) @ self.b
        at_queries = self.e @ self.a + self.link.residual * g
        return at_tokens + at_queries if self.kept is None else at_tokens.index_add(1, self.kept, at_queries)

    def linear(self, seen: Tensor, dtype: torch.dtype) -> TangentCoefficients:
        """What tangents meet here, in the precision that they have, at the tokens that something sees."""
        narrow = not bool(seen.all())
        keys: Tensor | slice = seen.nonzero()[:, 0] if narrow else slice(None)
        queries = keys if self.kept is None else slice(None)
        kept = self.kept if self.kept is None or not narrow else seen.cumsum(0)[self.kept] - 1
        J, D = (matrix[:, queries][..., keys, :][..., keys].to(dtype) for matrix in (self.J, self.D))
        return TangentCoefficients(
            A=self.state.weights[:, queries][..., keys].to(dtype),
            e=self.e[:, queries][..., keys].to(dtype),
            a=self.a[:, keys].to(dtype),
            b=self.b[:, queries].to(dtype),
            Z=self.state.values[:, keys].to(dtype),
            vjp=self.vjp[:, queries].to(dtype),
            J=J,
            D=D,
            M=self.M.to(dtype),
            W=self.W.to(dtype),
            kept=kept,
            residual=self.link.residual,
        )


@dataclass(frozen=True, eq=False)
class TangentCoefficients:
    """The coefficients of tangents at a layer, named as above; `kept` are the query tokens among all."""

    A: Tensor
    e: Tensor
    a: Tensor
    b: Tensor
    Z: Tensor
    vjp: Tensor
    J: Tensor
    D: Tensor
    M: Tensor
    W: Tensor
    kept: Tensor | None
    residual: float

    def at(self, chosen: slice) -> TangentCoefficients:
        """At some of the sequences."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return TangentCoefficients(
            **{name: value[chosen] if name in _BY_SEQUENCE else value for name, value in values.items()}
        )

    def forward(self, dX: Tensor) -> tuple[Tensor, LayerTangents]:
        """Tangents of what leaves the layer, its skip connection included, [s, i, p, d]."""
        queries = dX if self.kept is None else dX.index_select(1, self.kept)
        dT = c.inner_products(queries, self.a).add_(c.swap_tokens(c.inner_products(dX, self.b)))
        dA = c.rows(dT, self.J.transpose(-1, -2))
        dy = c.add_apply_matrix(queries * self.residual, c.mix_tokens(self.A, dX), self.W)
        return c.add_times(dy, dA, self.Z), LayerTangents(dX, queries, dT, dA)

    def outer(self, u: Tensor) -> Tensor:
        """Cotangents of the tokens from those of what leaves the layer, under fixed derivatives."""
        E = c.rows(c.inner_products(u, self.Z), self.J)
        found = c.mix_tokens(self.A.transpose(1, 2), c.apply_matrix(u, self.W.T))
        c.add_times(found, c.swap_tokens(E), self.b)
        return self._with_queries(found, c.add_times(u * self.residual, E, self.a))

    def functional(self, u: Tensor | None, moved: LayerTangents) -> Tensor:
        """The same with the change of the gradient under tangents; u is None where no cotangent comes from above."""
        at_weights = c.swap_tokens(c.inner_products(moved.tokens, self.vjp))
        if u is not None:
            at_weights = c.inner_products(u, self.Z).add_(at_weights)
        E = c.rows(at_weights, self.J).add_(c.rows(moved.scores, self.D))
        found = c.mix_tokens(self.e.transpose(1, 2), c.apply_matrix(moved.queries, self.M))
        if u is not None:
            c.add_mix_tokens(found, self.A.transpose(1, 2), c.apply_matrix(u, self.W.T))
        both = torch.cat([E, moved.weights], 1)
        c.add_times(found, c.swap_tokens(both), torch.cat([self.b, self.vjp], 1))
        at_queries = c.apply_matrix(c.mix_tokens(self.e, moved.tokens), self.M.T)
        if u is not None:
            at_queries.add_(u, alpha=self.residual)
        return self._with_queries(found, c.add_times(at_queries, E, self.a))

    def _with_queries(self, found: Tensor, at_queries: Tensor) -> Tensor:
        return found.add_(at_queries) if self.kept is None else found.index_add_(1, self.kept, at_queries)


_BY_SEQUENCE = frozenset({"A", "e", "a", "b", "Z", "vjp", "J", "D"})
