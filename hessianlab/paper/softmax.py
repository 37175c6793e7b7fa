"""First and second derivative of the row-wise softmax in the paper's layout (Equation (19), Lemma C.1)."""

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlab.paper.kronecker import block_diagonal, identity, khatri_rao, kron


def softmax_jacobian(A: Float[Tensor, "L L"]) -> Float[Tensor, "L*L L*L"]:
    """`dA/dT = blockdiag_i(diag(A_i) - A_i A_i^T)`, Equation (19).

    Args:
        A: The attention matrix `softmax(T)`; `A_i` is its row `i`, the weights of query `i`.

    Returns:
        The derivative of `vec(A)` by `vec(T)`. Entry `(i, j), (k, l)` vanishes unless `i = k`.

    Example:
        >>> A = torch.full((2, 2), 0.5)
        >>> softmax_jacobian(A)[:2, :2]
        tensor([[ 0.2500, -0.2500],
                [-0.2500,  0.2500]])
    """
    return block_diagonal(torch.diag_embed(A) - torch.einsum("ij,il->ijl", A, A))


def softmax_entry_hessians(row: Float[Tensor, " L"]) -> Float[Tensor, "L*L L"]:
    """`d2 A_ij / dT_i dT_i` for the entries `j` of one attention row `i`, stacked (Lemma C.1).

    Block `j` is `A_ij (2 A_i A_i^T + e_j e_j^T - diag(A_i) - e_j A_i^T - A_i e_j^T)`.

    Args:
        row: The attention row `A_i`.

    Example:
        >>> softmax_entry_hessians(torch.tensor([0.25, 0.75])).sum(0)  # the entries of a row sum to one
        tensor([0., 0.])
    """
    length = row.shape[0]
    e = identity(length, row)
    outer = torch.outer(row, row)
    blocks = (
        2 * outer
        + torch.einsum("ja,jb->jab", e, e)
        - torch.diag(row)
        - torch.einsum("ja,b->jab", e, row)
        - torch.einsum("a,jb->jab", row, e)
    )
    return (row[:, None, None] * blocks).reshape(length * length, length)


def softmax_second_derivative(A: Float[Tensor, "L L"]) -> Float[Tensor, "L*L*L*L L*L"]:
    """`d2A/dT2 = blockdiag_i(D_i)`, Lemma C.1, with `D_i` the Khatri-Rao product of Equation (23).

    `D_i = (1_L kron e_i) * (d2 A_i / dT_i dT_i)` is `L^3 x L` and `*` runs over the `L` entries of row `i`.
    The Hessians of the entries of `A`, each `L^2 x L^2`, are stacked in row-major order.

    Erratum `lemma-c-1`: the printed left-hand side is the second derivative of `F`; the statement and its
    proof are about `A`.

    Args:
        A: The attention matrix `softmax(T)`.

    Example:
        >>> T = torch.tensor([[0.0, 1.0], [2.0, 0.5]], dtype=torch.float64)
        >>> exact = torch.func.hessian(lambda T: torch.softmax(T, -1))(T).reshape(16, 4)
        >>> torch.allclose(softmax_second_derivative(torch.softmax(T, -1)), exact)
        True
    """
    length = A.shape[0]
    ones = torch.ones(length, 1, dtype=A.dtype, device=A.device)
    units = identity(length, A)
    blocks = [
        khatri_rao(kron(ones, units[:, i : i + 1]), softmax_entry_hessians(A[i]), row_blocks=length)
        for i in range(length)
    ]
    return block_diagonal(torch.stack(blocks))
