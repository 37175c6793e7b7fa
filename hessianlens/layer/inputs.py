"""Second derivatives of a softmax attention layer with respect to its inputs, for layers and embeddings before it.

With ``q_i = B^T x_i``, ``k_l = B x_l``, ``B = W_Q W_K^T / s`` the scores are ``T_il = q_i . x_l = x_i . k_l``, and

    dF_i/dx_k = A_ik (V + q_i u_ik^T) + [i = k] M_i,    u_ik = v_k - F_i,    M_i = sum_l A_il k_l u_il^T,

a small matrix for every pair of tokens. So with the loss's g and C of every token

    C^X_kl = sum_i (dF_i/dx_k) C_i (dF_i/dx_l)^T  +  sum_i g_i . d^2 F_i / dx_k dx_l

are three sums over triples of tokens, in place of an HVP for every position and feature.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, einsum

from hessianlens.attention import SelfAttention
from hessianlens.errors import InputError, expect


@dataclass(frozen=True, eq=False)
class TokenDerivatives:
    """First and second derivatives of a loss with respect to the tokens of one sequence that enter a layer.

    Attributes:
        gradient: ``dl/dx_k``.
        ggn: The Gauss-Newton part of ``d^2 l / dx_k dx_l``.
        functional: The rest.
    """

    gradient: Float[Tensor, "l d"]
    ggn: Float[Tensor, "l d l d"]
    functional: Float[Tensor, "l d l d"]

    @property
    def full(self) -> Float[Tensor, "l d l d"]:
        """The sum of both parts."""
        return self.ggn + self.functional


def input_curvature(
    layer: SelfAttention,
    X: Float[Tensor, "l d"],
    grad: Float[Tensor, "l f"],
    curvature: Float[Tensor, "l f f"],
    residual: bool = False,
) -> TokenDerivatives:
    """The curvature of a loss at the inputs of a softmax attention layer, ``F = A X W_V``, or ``X + F``.

    Args:
        layer: With any mask, bias, temperature and sink; without norms of queries and keys and without gates.
        X: One sequence.
        grad: ``g_i = dl/dF_i``.
        curvature: ``C_i = d^2 l / dF_i^2``; the loss couples no two tokens.
        residual: Whether the loss sees ``X + F`` in place of F.

    >>> layer = SelfAttention.random(2, dtype=torch.float64)
    >>> X, g = torch.eye(2, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64)
    >>> found = input_curvature(layer, X, g, torch.eye(2, dtype=torch.float64).expand(2, 2, 2))
    >>> found.ggn.shape, float(found.functional.norm())
    (torch.Size([2, 2, 2, 2]), 0.0)
    """
    _check(layer, X, grad, curvature, residual)
    return _Rows.of(layer, X, grad, curvature, residual).curvature()


def _check(layer: SelfAttention, X: Tensor, grad: Tensor, curvature: Tensor, residual: bool) -> None:
    plain = type(layer) is SelfAttention and all(
        getattr(layer, name, None) is None for name in ("query_norm", "key_norm", "gate")
    )
    if not plain or layer.activation != "softmax":
        raise InputError(f"layer: got {layer}, expected a SelfAttention with softmax, without norms and gates.")
    length, width = (*X.shape, 0)[:2]
    values = layer.W_V.shape[1]
    expect(X.shape == (length, len(layer.W_V)), f"X: got shape {tuple(X.shape)}, expected (L, {len(layer.W_V)}).")
    for name, given, shape in (("grad", grad, (length, values)), ("curvature", curvature, (length, values, values))):
        expect(given.shape == shape, f"{name}: got shape {tuple(given.shape)}, expected {shape}.")
    expect(
        not residual or values == width,
        f"residual: got values of width {values} beside tokens of width {width}; expected equal widths.",
    )


@dataclass(frozen=True, eq=False)
class _Rows:
    """What the rows of attention need; letters as in the module's text."""

    A: Tensor
    B: Tensor
    V: Tensor
    q: Tensor
    k: Tensor
    u: Tensor
    g: Tensor
    C: Tensor
    residual: bool

    @classmethod
    def of(cls, layer: SelfAttention, X: Tensor, g: Tensor, C: Tensor, residual: bool) -> _Rows:
        """A layer at a sequence; a sink's weight is left out, since it has no value."""
        A = layer.attend(X[None]).weights[0][:, : len(X)]
        B = layer.W_Q @ layer.W_K.T / (layer.temperature * layer.W_Q.shape[1] ** 0.5)
        v = X @ layer.W_V
        return cls(A, B, layer.W_V, X @ B, X @ B.T, v[None] - (A @ v)[:, None], g, C, residual)

    def curvature(self) -> TokenDerivatives:
        """Gradient and both parts."""
        slope = self.A * einsum("if,ilf->il", self.g, self.u)
        gradient = self.A.T @ self.g @ self.V.T + slope.T @ self.q + slope @ self.k
        return TokenDerivatives(gradient + self.g if self.residual else gradient, self._ggn(), self._functional(slope))

    def _ggn(self) -> Tensor:
        A, V, q, C = self.A, self.V, self.q, self.C
        Cu = self.u @ C
        w = A[..., None] * (Cu @ V.T)
        M = einsum("il,ilf,la->iaf", A, self.u, self.k)
        if self.residual:
            M = M + torch.eye(len(V), dtype=V.dtype, device=V.device)
        pairs = A[:, :, None] * A[:, None]
        found = _over_rows(pairs, V @ C @ V.T) + _over_rows(pairs * (Cu @ self.u.mT), _outer(q, q))
        half = einsum("il,ia,ikb->kalb", A, q, w)
        MC = M @ C
        own = A[:, None, :, None] * (MC @ V.T)[:, :, None] + einsum("il,iaf,ilf,ib->ialb", A, MC, self.u, q)
        half = half + own
        found = found + half + half.permute(2, 3, 0, 1)
        return _add_diagonal(found, MC @ M.mT)

    def _functional(self, slope: Tensor) -> Tensor:
        A, q, k = self.A, self.q, self.k
        h = self.g @ self.V.T
        both = _outer(q, h) + _outer(h, q)
        S = torch.diag_embed(slope) - slope[:, :, None] * A[:, None] - A[:, :, None] * slope[:, None]
        found = _over_rows(S, _outer(q, q)) - _over_rows(A[:, :, None] * A[:, None], both)
        Sk = S @ k
        centred = A[..., None] * (k[None] - (A @ k)[:, None])
        half = einsum("ila,ib->ialb", Sk, q) + einsum("il,ab->ialb", slope, self.B) + einsum("ila,ib->ialb", centred, h)
        found = found + half + half.permute(2, 3, 0, 1)
        return _add_diagonal(found, k.T @ Sk + einsum("ik,iab->kab", A, both))


def _outer(p: Tensor, q: Tensor) -> Tensor:
    return p[:, :, None] * q[:, None]


def _over_rows(weights: Tensor, matrices: Tensor) -> Tensor:
    """``sum_i w_ikl M_i`` as ``[k, a, l, b]``."""
    return einsum("ikl,iab->kalb", weights, matrices)


def _add_diagonal(blocks: Tensor, own: Tensor) -> Tensor:
    at = torch.arange(len(own), device=own.device)
    blocks[at, :, at] += own
    return blocks
