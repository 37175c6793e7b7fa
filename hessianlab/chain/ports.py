"""How vectors of a block enter their layer of a chain, and how cotangents leave it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlab.chain import contractions as c
from hessianlab.chain.layer import Layer, TangentCoefficients


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


class Port:
    """The vectors of a block at a group of sequences.

    Every one is a matrix dW that meets a row per token: ``x dW`` for queries and keys, which goes on to the scores, and
    ``(A X) dW`` for values and outputs, which goes on to the layer's output. These, and the sums over tokens on the way
    back, are one product each for all sequences of the group.

    Args:
        layer: The layer.
        vectors: Of one of its blocks.
        seen: Tokens that something sees.
        dtype: Of tangents.
    """

    def __init__(self, layer: Layer, vectors: Vectors, seen: Tensor, dtype: torch.dtype) -> None:
        head, state, X = layer.link.head, layer.state, layer.link.tokens[layer.chosen]
        self.name, self.count, self.partner, self.readout = vectors.name, len(vectors.values), None, None
        if vectors.name == "Q":
            rows, self.partner = X[..., vectors.rows], state.score_ports["Q"].matrix / state.scale
        elif vectors.name == "K":
            rows, self.partner = X[..., vectors.rows], X @ head.W_Q / state.scale
        elif vectors.name == "O":
            rows, self.readout = state.weights @ X[..., vectors.rows], head.W_U.to(dtype)
        else:
            rows = state.weights @ (X @ head.W_O)
        self.partner = None if self.partner is None else self.partner[:, seen].to(dtype)
        self.rows = rows[:, seen].to(dtype)
        values = vectors.values.to(dtype)
        self.applied = c.apply_matrices(self.rows, values if self.readout is None else values @ self.readout)
        self.left = tuple(torch.empty_like(self.applied) for _ in range(2))

    def enter(self, linear: TangentCoefficients, chosen: slice) -> tuple[Tensor, Tensor | None]:
        """Tangents of the layer's output, and of its scores where the block enters through them."""
        applied = self.applied[chosen]
        if self.partner is None:
            return applied, None
        dT = c.inner_products(applied, self.partner[chosen])
        dT = dT if self.name == "Q" else c.swap_tokens(dT).contiguous()
        return c.times(c.rows(dT, linear.J.transpose(-1, -2)), linear.Z), dT

    def leave(self, linear: TangentCoefficients, chosen: slice, both: tuple[Tensor, Tensor], dT: Tensor | None) -> None:
        """Keep the cotangents of both parts; the activation's own second derivative along dT comes on top of one."""
        for u, into, own in zip(both, self.left, (None, dT), strict=True):
            if self.partner is None:
                into[chosen] = u
                continue
            E = c.rows(c.inner_products(u, linear.Z), linear.J)
            if own is not None:
                E.add_(c.rows(own, linear.D))
            into[chosen] = c.times(E if self.name == "Q" else c.swap_tokens(E), self.partner[chosen])

    def products(self) -> tuple[Tensor, Tensor]:
        """Both parts of the products, ``[vector, row, column]``, in all sequences of the group."""
        found = [c.apply_transposed(self.rows, u) for u in self.left]
        first, second = found if self.readout is None else [product @ self.readout.T for product in found]
        return first, second
