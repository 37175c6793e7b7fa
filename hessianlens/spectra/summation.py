"""Inner products of long vectors in single precision: about as exact as in double, without the conversion.

A matrix product adds millions of summands one after the other, which leaves three digits, and a conversion to double
takes longer than the sum. Pieces of some thousand summands keep six digits and are few enough to be added up in double;
PyTorch's own sums are pairwise.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlens.spectra.norms import lengths_of

PIECE_ENTRIES = 2**11
"""Summands that a matrix product adds up in single precision, one after the other."""
_CPU_PIECE_ENTRIES = 2**16
"""The same on a CPU, whose products keep many partial sums: pieces one by one, without a copy of a long vector."""
_SAFE_SQUARES = (1e-25, 1e25)
"""Sums of squares in single precision that neither overflow nor lose small summands."""


def inner_products(A: Float[Tensor, "i n"], B: Float[Tensor, "j n"]) -> Float[Tensor, "i j"]:
    """``A B^T`` in float64.

    >>> inner_products(torch.full((1, 2**20), 0.125), torch.ones(1, 2**20))
    tensor([[131072.]], dtype=torch.float64)
    """
    if A.dtype == torch.float64 or A.shape[1] < 2 * PIECE_ENTRIES:
        return A.double() @ B.double().T
    if A.device.type == "cpu":
        found = torch.zeros(len(A), len(B), dtype=torch.float64, device=A.device)
        for a, b in zip(A.split(_CPU_PIECE_ENTRIES, 1), B.split(_CPU_PIECE_ENTRIES, 1), strict=True):
            found += a @ b.T
        return found
    (a, rest), (b, other) = _pieces(A), _pieces(B)
    return (a.transpose(0, 1) @ b.permute(1, 2, 0)).sum(0, dtype=torch.float64) + rest.double() @ other.double().T


def paired_inner_products(A: Float[Tensor, "i j n"], B: Float[Tensor, "i 1 n"]) -> Float[Tensor, "i j"]:
    """``<a_ij, b_i>`` in float64.

    >>> paired_inner_products(torch.eye(2)[:, None], torch.tensor([[[3.0, 4.0]], [[5.0, 6.0]]]))
    tensor([[3.],
            [6.]], dtype=torch.float64)
    """
    if A.dtype == torch.float64 or A.shape[2] < 2 * PIECE_ENTRIES:
        return (A.double() @ B.double().mT)[..., 0]
    return torch.stack([inner_products(a, b)[:, 0] for a, b in zip(A, B, strict=True)])


def row_lengths(A: Float[Tensor, "i n"]) -> Float[Tensor, "i"]:
    """``|a_i|`` in float64, without overflow or underflow.

    >>> row_lengths(torch.tensor([[3e30, 4e30], [3.0, 4.0]]))
    tensor([5.0000e+30, 5.0000e+00], dtype=torch.float64)
    """
    squares = paired_inner_products(A[:, None], A[:, None])[:, 0]
    if bool(((squares > _SAFE_SQUARES[0]) & (squares < _SAFE_SQUARES[1])).all()):
        return squares.sqrt()
    return lengths_of(A.T)


def _pieces(A: Float[Tensor, "i n"]) -> tuple[Tensor, Tensor]:
    """Pieces of equal length, ``[i, piece, entry]``, and what is left."""
    whole = A.shape[1] // PIECE_ENTRIES * PIECE_ENTRIES
    return A[:, :whole].unflatten(1, (-1, PIECE_ENTRIES)), A[:, whole:]
