"""Attention as a function of what its queries, keys and values are made of: cotangents, and second derivatives.

With ``q_i = W_Q^T x_i``, ``k_l = W_K^T y_l``, ``v_l = W_V^T z_l``, scores ``T_il = c q_i . k_l + b_il``, weights
``A = a(T)`` and ``F_i = sum_l A_il v_l``, a change of x_i moves ``T_il`` by ``c p_l = c W_Q k_l``, and one of y_l by
``c r_i = c W_K q_i``. So a cotangent m of F, with ``E_i = c J_i^T V m_i``, comes back as

    x_i:  sum_l E_il p_l            y_l:  sum_i E_il r_i            z_l:  sum_i A_il W_V m_i

and where a curvature C behind the attention couples no two positions, ``S_i = c^2 J_i^T V C_i V^T J_i`` and
``B_i = c J_i^T V C_i W_V^T``, the Gauss-Newton part in front of it is

    x_i, x_i:  P^T S_i P        y_l, y_j:  sum_i S_i[l,j] r_i r_i^T        z_l, z_j:  sum_i A_il A_ij W_V C_i W_V^T
    x_i, y_l:  (P^T S_i)_l r_i^T    x_i, z_l:  P^T B_i A_il        y_l, z_j:  sum_i r_i B_i[l] A_ij

With ``D_i = c^2 D_i(V g_i)`` and ``t_i = c J_i^T V g_i`` for the gradient g of F, the second derivative of ``g . F`` is

    x_i, x_i:  P^T D_i P        y_l, y_j:  sum_i D_i[l,j] r_i r_i^T        z_l, z_j:  0
    x_i, y_l:  (P^T D_i)_l r_i^T + t_il W_Q W_K^T
    x_i, z_l:  c (P^T J_i^T)_l (W_V g_i)^T             y_l, z_j:  c sum_i J_i[j,l] r_i (W_V g_i)^T
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor, einsum

from hessianlens.attention.activations import Activation
from hessianlens.attention.rows import RowMatrices

ByOperand = dict[str, Tensor]
"""Something at what the queries, keys and values are made of, under "q", "k" and "v"."""
Between = tuple[tuple[str, str], Tensor]
"""Two of them, and the matrix between them, ``[s, position, feature, position, feature]``."""


@dataclass(frozen=True, eq=False)
class AttentionCore:
    """Some heads, at some sequences each, from what their queries, keys and values are made of.

    Attributes:
        p: ``W_Q k_l``; a sink's key is zero.
        r: ``W_K q_i``.
        v: Values; that of a sink is zero.
        scores: T.
        visible: Entries that take part.
        activation: What makes weights of scores.
        scale: c, the factor of the products of queries and keys in the scores.
        joint: ``W_Q W_K^T``; None for the identity.
        value_map: ``W_V``; None for the identity.

    >>> from hessianlens.attention.activations import as_activation
    >>> q, k, v = torch.zeros(3, 1, 2, 2)
    >>> core = AttentionCore(k, q, v, q @ k.mT, torch.ones(1, 2, 2, dtype=torch.bool), as_activation("softmax"))
    >>> core.vjp(torch.ones(1, 2, 2, 1))["v"].flatten().tolist()
    [1.0, 1.0, 1.0, 1.0]
    """

    p: Float[Tensor, "s l e"]
    r: Float[Tensor, "s i e"]
    v: Float[Tensor, "s l f"]
    scores: Float[Tensor, "s i l"]
    visible: Bool[Tensor, "s i l"]
    activation: Activation
    scale: float = 1.0
    joint: Float[Tensor, "#s e h"] | None = None
    value_map: Float[Tensor, "#s z f"] | None = None

    def through(
        self, queries: Float[Tensor, "#s x e"], keys: Float[Tensor, "#s y e"], values: Float[Tensor, "#s z f"]
    ) -> AttentionCore:
        """The same from the inputs of these maps on, where it starts with queries, keys and values themselves."""
        p, r = self.p @ queries.mT, self.r @ keys.mT
        return replace(self, p=p, r=r, joint=queries @ keys.mT, value_map=values)

    @cached_property
    def weights(self) -> Float[Tensor, "s i l"]:
        """``A``."""
        return self.activation.value(self.scores, self.visible)

    @cached_property
    def _jacobian(self) -> RowMatrices:
        return self.activation.jacobian(self.scores, self.visible)

    def _at_values(self, cotangents: Tensor) -> Tensor:
        """``W_V m``, for cotangents ``[s, i, f, x]``."""
        return cotangents if self.value_map is None else self.value_map[:, None] @ cotangents

    def _at_scores(self, cotangents: Tensor) -> Tensor:
        """``c J_i^T V m_i``, ``[s, i, l, x]``."""
        return self._jacobian.transpose().apply(self.v[:, None] @ cotangents).mul_(self.scale)

    def vjp(self, cotangents: Float[Tensor, "s i f x"]) -> ByOperand:
        """Cotangents of F, any number x of them, ``[s, position, feature, x]``."""
        E, count = self._at_scores(cotangents), cotangents.shape[-1]
        values = self.weights.mT @ self._at_values(cotangents).flatten(2)
        keys = self.r.mT @ E.flatten(2)
        return {
            "q": self.p.mT[:, None] @ E,
            "k": keys.unflatten(-1, (-1, count)).transpose(1, 2),
            "v": values.unflatten(-1, (-1, count)),
        }

    def vjp_by_position(self, cotangents: Float[Tensor, "s i f x"]) -> ByOperand:
        """The same for cotangents of one position each, ``[s, position, feature, i, x]``."""
        E = self._at_scores(cotangents)
        return {
            "q": each_alone(self.p.mT[:, None] @ E),
            "k": einsum("sie,silx->sleix", self.r, E),
            "v": einsum("sil,sifx->slfix", self.weights, self._at_values(cotangents)),
        }

    def ggn(self, curvature: Float[Tensor, "s i f f"]) -> Iterator[Between]:
        """The Gauss-Newton part from a curvature that couples no two positions, pair by pair of operands.

        Pairs of different operands come once.

        Args:
            curvature: C, at what the head puts out.
        """
        width = self.v.shape[-1]
        eye = torch.eye(width, dtype=curvature.dtype, device=curvature.device).expand(*curvature.shape[:2], -1, -1)
        E, basis = self._at_scores(curvature), self._at_scores(eye)
        S = E @ basis.mT
        PS, A, r = self.p.mT[:, None] @ S, self.weights, self.r
        B, C = E, curvature
        if self.value_map is not None:
            B, C = (one @ self.value_map.mT[:, None] for one in (E, self._at_values(curvature)))
        yield ("q", "q"), each_alone(PS @ self.p[:, None])
        yield ("k", "k"), _over_rows(S, r, r)
        yield ("v", "v"), _over_pairs(A, A, C)
        yield ("q", "k"), einsum("siej,sid->siejd", PS, r)
        yield ("q", "v"), einsum("sief,sij->siejf", self.p.mT[:, None] @ B, A)
        yield ("k", "v"), _last_over_rows(r, B, A)

    def second_derivative(self, gradient: Float[Tensor, "s i f"]) -> Iterator[Between]:
        """``d^2 (g . F)``, pair by pair of operands; pairs of different ones come once."""
        c, p, r = self.scale, self.p, self.r
        w = gradient @ self.v.mT
        g = gradient if self.value_map is None else gradient @ self.value_map.mT
        D = self.activation.curvature(self.scores, self.visible, w)
        slope = c * self._jacobian.transpose().apply_rows(w[None])[0]
        ones = torch.eye(p.shape[1], dtype=p.dtype, device=p.device)[None, None]
        DP = c**2 * D.apply(p[:, None])
        crossed = einsum("sile,sid->sield", DP, r)
        if self.joint is None:
            crossed.diagonal(dim1=2, dim2=4).add_(slope[..., None])
        else:
            crossed += slope[:, :, None, :, None] * self.joint[:, None, :, None]
        yield ("q", "q"), each_alone(p.mT[:, None] @ DP)
        yield ("k", "k"), _over_rows(c**2 * D.apply(ones), r, r)
        yield ("q", "k"), crossed
        yield ("q", "v"), einsum("sile,sif->sielf", c * self._jacobian.apply(p[:, None]), g)
        yield ("k", "v"), _over_rows(c * self._jacobian.transpose().apply(ones), r, g)


def each_alone(matrices: Float[Tensor, "s i e x"]) -> Float[Tensor, "s i e i x"]:
    """Matrices of positions that are not coupled, among zeros."""
    length = matrices.shape[1]
    found = matrices.new_zeros(*matrices.shape[:3], length, matrices.shape[3])
    found.diagonal(dim1=1, dim2=3).copy_(matrices.movedim(1, -1))
    return found


def _over_rows(matrices: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """``sum_i M_i[l,j] p_i r_i^T``, ``[s, l, e, j, f]``."""
    outer = (left[..., None] * right[:, :, None]).flatten(2)
    return _pairs_by_features(matrices.flatten(2).mT @ outer, matrices.shape[2:], (left.shape[-1], right.shape[-1]))


def _over_pairs(left: Tensor, right: Tensor, matrices: Tensor) -> Tensor:
    """``sum_i a_il b_ij C_i``, ``[s, l, e, j, f]``."""
    outer = (left[..., None] * right[:, :, None]).flatten(2)
    return _pairs_by_features(outer.mT @ matrices.flatten(2), (left.shape[-1], right.shape[-1]), matrices.shape[2:])


def _pairs_by_features(found: Tensor, positions: tuple[int, ...], features: tuple[int, ...]) -> Tensor:
    return found.unflatten(-1, tuple(features)).unflatten(1, tuple(positions)).transpose(2, 3)


def _last_over_rows(left: Tensor, matrices: Tensor, weights: Tensor) -> Tensor:
    """``sum_i r_i B_i[l] a_ij``, ``[s, l, e, j, f]``."""
    outer = (left[:, :, :, None, None] * matrices[:, :, None]).flatten(2)  # [s, i, e l f]
    found = weights.mT @ outer
    return found.unflatten(-1, (left.shape[-1], *matrices.shape[2:])).permute(0, 3, 2, 1, 4)
