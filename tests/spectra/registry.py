"""Every kind of operator that the estimators must handle, with its dense matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from curvlinops import HessianLinearOperator
from curvlinops.examples import OuterProductLinearOperator, TensorLinearOperator
from torch import Tensor

import hessianlens as hl
from tests.variants import DOUBLE, randn, self_attention, square_loss, tokens

Made = tuple[Any, Tensor]


def symmetric(n: int = 12, seed: int = 0) -> Tensor:
    """An indefinite matrix with a flat spectrum."""
    A = randn(n, n, seed=seed)
    return (A + A.T) / 2


def low_rank(n: int = 12, rank: int = 4, seed: int = 1) -> Made:
    c, A = torch.linspace(-1, 2, rank, dtype=DOUBLE), randn(n, rank, seed=seed)
    return OuterProductLinearOperator(c, A), A @ torch.diag(c) @ A.T


def with_spectrum(eigenvalues: Tensor, seed: int = 2) -> Tensor:
    Q, _ = torch.linalg.qr(randn(len(eigenvalues), len(eigenvalues), seed=seed))
    A = Q @ torch.diag(eigenvalues) @ Q.T
    return (A + A.T) / 2


def matrix(A: Tensor) -> Callable[[], Made]:
    return lambda: (A, A)


def wrapped(A: Tensor) -> Callable[[], Made]:
    return lambda: (TensorLinearOperator(A), A)


def structured(part: str, row: str, column: str) -> Callable[[], Made]:
    def make() -> Made:
        X = tokens(2)
        op = hl.attention_hessian(self_attention(), X, square_loss(X)).part(part)[row, column]
        return op, op.to_dense()

    return make


def structured_whole() -> Made:
    X = tokens(None)
    op = hl.attention_hessian(self_attention(2), X, square_loss(X)).full[:]
    return op, op.to_dense()


def hessian_of_a_network() -> Made:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh(), torch.nn.Linear(2, 1)).double()
    data = [(randn(6, 2), randn(6, 1, seed=1))]
    params = list(model.parameters())
    op = HessianLinearOperator(model, torch.nn.MSELoss(), params, data, check_deterministic=False)
    return op, op @ torch.eye(op.shape[0], dtype=DOUBLE)


SYMMETRIC: dict[str, Callable[[], Made]] = {
    "symmetric matrix": matrix(symmetric()),
    "symmetric operator": wrapped(symmetric(9, seed=3)),
    "low rank": low_rank,
    "diagonal": wrapped(torch.diag(torch.arange(-3.0, 5.0, dtype=DOUBLE))),
    "multiple of the identity": matrix(2.5 * torch.eye(7, dtype=DOUBLE)),
    "zero": wrapped(torch.zeros(6, 6, dtype=DOUBLE)),
    "one by one": matrix(torch.full((1, 1), -3.0, dtype=DOUBLE)),
    "tiny entries": matrix(1e-30 * symmetric(8)),
    "structured block": structured("full", "Q", "Q"),
    "structured indefinite block": structured("functional", "K", "K"),
    "structured grid": structured_whole,
    "Hessian of a network": hessian_of_a_network,
    "single precision": matrix(symmetric(10).float()),
}
SQUARE = {
    **SYMMETRIC,
    "unsymmetric": wrapped(randn(8, 8, seed=4)),
    "structured unsymmetric": structured("full", "Q", "K"),
}
ANY = {
    **SQUARE,
    "tall": wrapped(randn(9, 5, seed=5)),
    "wide": matrix(randn(4, 11, seed=6)),
    "rectangular zero": wrapped(torch.zeros(3, 5, dtype=DOUBLE)),
    "structured rectangular": structured("full", "V", "Q"),
}


class Counting:
    """An operator that counts the vectors it multiplies, and remembers the widest product."""

    def __init__(self, A: Tensor) -> None:
        self.A, self.vectors, self.widest = A, 0, 0
        self.shape, self.dtype, self.device = A.shape, A.dtype, A.device

    def __matmul__(self, V: Tensor) -> Tensor:
        self.vectors += V.shape[1]
        self.widest = max(self.widest, V.shape[1])
        return self.A @ V


def rtol(dense: Tensor) -> float:
    return 1e-10 if dense.dtype == torch.float64 else 1e-4
