"""Products of matrices and of block matrices, and the row-major vec they are written for (Appendix A)."""

from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor


def vec(matrix: Float[Tensor, "n m"]) -> Float[Tensor, "n*m 1"]:
    """Row-major vectorisation `vec_r`, as a column: entry `(i, j)` goes to position `i * m + j`.

    Example:
        >>> vec(torch.tensor([[1.0, 2.0], [3.0, 4.0]])).T
        tensor([[1., 2., 3., 4.]])
    """
    return matrix.reshape(-1, 1)


def kron(*factors: Float[Tensor, "_ _"]) -> Float[Tensor, "rows cols"]:
    """Kronecker product of any number of matrices (Definition A.1; the order of evaluation is free, Eq. (8)).

    Example:
        >>> A, X, B = torch.rand(2, 3), torch.rand(3, 4), torch.rand(4, 5)
        >>> torch.allclose(vec(A @ X @ B), kron(A, B.T) @ vec(X))
        True
    """
    # torch.kron refuses some transposed views; .contiguous() leaves those of a single row as they are.
    copies = (factor.clone(memory_format=torch.contiguous_format) for factor in factors)
    return reduce(torch.kron, copies)


def identity(size: int, like: Tensor) -> Float[Tensor, "{size} {size}"]:
    """The identity `I_size` with the type and the device of another tensor.

    Example:
        >>> identity(2, like=torch.zeros(5, dtype=torch.float64))
        tensor([[1., 0.],
                [0., 1.]], dtype=torch.float64)
    """
    return torch.eye(size, dtype=like.dtype, device=like.device)


def block_diagonal(blocks: Float[Tensor, "n p q"]) -> Float[Tensor, "n*p n*q"]:
    """`blockdiag(A_1, ..., A_n)`: the matrices `A_i` along the diagonal, zeros elsewhere.

    Example:
        >>> block_diagonal(torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]]))
        tensor([[1., 2., 0., 0.],
                [0., 0., 3., 4.]])
    """
    return torch.block_diag(*blocks)


def khatri_rao(
    A: Float[Tensor, "n m"], B: Float[Tensor, "p q"], row_blocks: int, col_blocks: int = 1
) -> Float[Tensor, "rows cols"]:
    """Khatri-Rao product `A * B`: block `(i, j)` is `A_ij kron B_ij` (Definition A.2).

    Both matrices are cut into the same grid of `row_blocks x col_blocks` equal blocks.

    Args:
        A: Left block matrix.
        B: Right block matrix.
        row_blocks: Number of blocks from top to bottom, in `A` and in `B`.
        col_blocks: Number of blocks from left to right, in `A` and in `B`.

    Raises:
        ValueError: If one of the matrices cannot be cut into that grid.

    Example:
        >>> A, B = torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0, 1.0], [1.0, 2.0]])
        >>> khatri_rao(A, B, row_blocks=2)
        tensor([[1., 1.],
                [2., 4.]])
    """
    grid_a = _blocks(A, row_blocks, col_blocks, "left")
    grid_b = _blocks(B, row_blocks, col_blocks, "right")
    product = torch.einsum("ijab,ijcd->iacjbd", grid_a, grid_b)
    rows, cols = A.shape[0] * B.shape[0] // row_blocks, A.shape[1] * B.shape[1] // col_blocks
    return product.reshape(rows, cols)


def _blocks(
    matrix: Float[Tensor, "n m"], row_blocks: int, col_blocks: int, side: str
) -> Float[Tensor, "{row_blocks} {col_blocks} p q"]:
    rows, cols = matrix.shape
    if rows % row_blocks or cols % col_blocks:
        raise ValueError(
            f"khatri_rao: the {side} matrix of shape {(rows, cols)} cannot be cut into "
            f"{row_blocks} x {col_blocks} equal blocks"
        )
    grid = matrix.reshape(row_blocks, rows // row_blocks, col_blocks, cols // col_blocks)
    return grid.transpose(1, 2)
