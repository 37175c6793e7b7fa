"""Hessian blocks of linear models and of attention, measured, and written in Sigma, Omega and the weights.

``Sigma = X^T X / L`` and ``Omega = X^T (F - Y) / L``.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, kron, nn

from hessianlens.attention import SelfAttention
from hessianlens.layer import attention_hessian
from hessianlens.losses import SquareLoss
from hessianlens.models.adapters import problem
from hessianlens.network import functional, ggn
from hessianlens.operators.commutation import commutation_matrix

Blocks = Mapping[tuple[str, str], Tensor]
"""Dense blocks by part and name."""


class _TwoMatrices(nn.Module):
    """``F = X W_1 W_2``, the linear MLP with matrices on the right, as everywhere in the formulas."""

    def __init__(self, first: Tensor, second: Tensor) -> None:
        super().__init__()
        self.W_1, self.W_2 = nn.Parameter(first), nn.Parameter(second)

    def forward(self, X: Tensor) -> Tensor:
        return X @ self.W_1 @ self.W_2


def _mlp_blocks(X: Tensor, R: Tensor, weights: list[Tensor]) -> Blocks:
    """The linear MLP with residual R, from matrix-free products."""
    first, second = weights[0], weights[1].T.contiguous()
    asked = problem(_TwoMatrices(first, second), (X, X @ first @ second - R), "square")
    found: dict[tuple[str, str], Tensor] = {}
    for part, operator in (("outer", ggn), ("functional", functional)):
        for row, column in ("11", "22", "12"):
            block = operator(asked, f"W_{row}", f"W_{column}", method="hvp")
            found[part, row + column] = block @ torch.eye(block.shape[1], dtype=X.dtype)
    return found


def _mlp_factorised(X: Tensor, R: Tensor, weights: list[Tensor]) -> Blocks:
    length, width = X.shape[0], X.shape[1]
    first, second = weights[0], weights[1].T.contiguous()
    sigma, omega = X.T @ X / length, X.T @ R / length
    one = torch.eye(first.shape[1], dtype=X.dtype)
    hidden = first.shape[1]
    # [(a, b), (c, e)] = Omega[a, e] delta_bc: a Kronecker product with its column letters exchanged.
    mixed = torch.einsum("ae,bc->abce", omega, one).reshape(width * hidden, hidden * width)
    outer = {
        "11": kron(sigma, second @ second.T),
        "22": kron(first.T @ sigma @ first, torch.eye(width, dtype=X.dtype)),
        "12": kron(sigma @ first, second),
    }
    factor = 2 / width
    zero = {name: torch.zeros_like(outer[name]) for name in ("11", "22")}
    return {("outer", n): factor * b for n, b in outer.items()} | {
        ("functional", n): factor * b for n, b in {**zero, "12": mixed}.items()
    }


def _attention_blocks(X: Tensor, R: Tensor, weights: list[Tensor], activation: str = "linear") -> Blocks:
    """Attention with residual R, in closed form."""
    layer = SelfAttention(*weights, activation=activation)
    H = attention_hessian(layer, X, SquareLoss(layer(X) - R))
    names = ("QQ", "KK", "VV", "VQ", "VK", "QK")
    return {(part, n): H.part(part)[n[0], n[1]].to_dense() for part in ("outer", "functional") for n in names}


def _softmax_blocks(X: Tensor, R: Tensor, weights: list[Tensor]) -> Blocks:
    return _attention_blocks(X, R, weights, "softmax")


def _attention_factorised(X: Tensor, R: Tensor, weights: list[Tensor]) -> Blocks:
    """Remark 4.1 with every data term gathered into Sigma and Omega, the unprinted key blocks included."""
    W_Q, W_K, W_V = weights
    (length, width), hidden = X.shape, W_Q.shape[1]
    sigma, omega = X.T @ X / length, X.T @ R / length
    values, seen = sigma @ W_V @ W_V.T @ sigma, sigma @ W_K @ W_Q.T @ sigma
    swap = commutation_matrix(hidden, width, X.dtype)
    outer = {
        "QQ": kron(sigma, W_K.T @ values @ W_K),
        "KK": kron(values, W_Q.T @ sigma @ W_Q),
        "VV": kron(seen @ W_Q @ W_K.T @ sigma, torch.eye(width, dtype=X.dtype)),
        "VQ": kron(seen, W_V.T @ sigma @ W_K),
        "VK": kron(seen @ W_Q, W_V.T @ sigma) @ swap,
        "QK": kron(sigma @ W_Q, W_K.T @ values) @ swap,
    }
    one = torch.eye(hidden, dtype=X.dtype)
    inner = {
        "VQ": torch.einsum("ae,cb->abce", sigma @ W_K, omega),
        "VK": torch.einsum("ac,eb->abce", sigma, W_Q.T @ omega),
        "QK": torch.einsum("ac,be->abce", omega @ W_V.T @ sigma, one),
    }
    twice = 2 * length**2 / (width * hidden)
    once = 2 * length / (width * hidden**0.5)
    found = {("outer", n): twice * b for n, b in outer.items()}
    found |= {("functional", n): torch.zeros_like(outer[n]) for n in ("QQ", "KK", "VV")}
    return found | {("functional", n): once * b.reshape(outer[n].shape) for n, b in inner.items()}


BLOCKS_OF = {
    "linear MLP": _mlp_blocks,
    "linear attention": _attention_blocks,
    "softmax attention": _softmax_blocks,
}
FACTORISED = {"linear MLP": _mlp_factorised, "linear attention": _attention_factorised}
