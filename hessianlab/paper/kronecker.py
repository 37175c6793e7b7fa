"""Kronecker products, `vec`, derivatives of softmax by rows, and the identities that the paper uses."""

from __future__ import annotations

from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlens.operators.commutation import commutation_matrix


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


def equation_13(A: Float[Tensor, "n m"], printed: bool = False) -> Float[Tensor, "rows 1"]:
    """Right-hand side of Equation (13): `vec(A) = (A kron I_m) vec(I_m)` for `A` of shape `n x m`.

    Erratum `equation-13`: the printed right-hand side is `(A kron I_n) vec(A)`, which has `n^2` entries.

    Args:
        A: The matrix to vectorise.
        printed: Evaluate the printed right-hand side instead of the corrected one.

    Example:
        >>> A = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> equation_13(A).T
        tensor([[1., 2., 3., 4.]])
        >>> equation_13(A, printed=True).T
        tensor([[ 7., 10., 15., 22.]])
    """
    n, m = A.shape
    if printed:
        return kron(A, identity(n, A)) @ vec(A)
    return kron(A, identity(m, A)) @ vec(identity(m, A))


def equation_16(X: Float[Tensor, "n q"], Y: Float[Tensor, "p r"]) -> Float[Tensor, "n*p*q*r n*q"]:
    """`d(X kron Y)/dX = (I_n kron K_{p,q} kron I_r)(I_{nq} kron vec Y)`, Equation (16).

    Example:
        >>> X, Y = torch.rand(2, 3), torch.rand(3, 2)
        >>> torch.allclose(equation_16(X, Y) @ vec(X), vec(kron(X, Y)))
        True
    """
    (n, q), (p, r) = X.shape, Y.shape
    swap = commutation_matrix(p, q, X.dtype, X.device)
    return kron(identity(n, X), swap, identity(r, X)) @ kron(identity(n * q, X), vec(Y))


def equation_17(X: Float[Tensor, "n q"], Y: Float[Tensor, "p r"]) -> Float[Tensor, "n*p*q*r p*r"]:
    """`d(X kron Y)/dY = (I_n kron K_{p,q} kron I_r)(vec X kron I_{pr})`, Equation (17).

    Example:
        >>> X, Y = torch.rand(2, 3), torch.rand(3, 2)
        >>> torch.allclose(equation_17(X, Y) @ vec(Y), vec(kron(X, Y)))
        True
    """
    (n, q), (p, r) = X.shape, Y.shape
    swap = commutation_matrix(p, q, X.dtype, X.device)
    return kron(identity(n, X), swap, identity(r, X)) @ kron(vec(X), identity(p * r, X))


def index_swap_matrix(
    M: int, N: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Float[Tensor, "{M}*{N} {M}*{N}"]:
    """`K(M, N)` of Lemma B.2: entry `(nm), (m'n')` is one if `n = n'` and `m = m'`, and zero otherwise.

    Erratum `lemma-b-2`: this matrix is `K_{N,M}` in the convention of Equation (18), so the two arguments
    change places between the two notations.

    Args:
        M: Range of the index that comes first before the swap.
        N: Range of the index that comes second before the swap.
        dtype: Type of the entries; torch's default floating type if omitted.
        device: Where the matrix lives; torch's default device if omitted.

    Example:
        >>> torch.equal(index_swap_matrix(2, 3), commutation_matrix(3, 2))
        True
        >>> torch.equal(index_swap_matrix(2, 3), commutation_matrix(2, 3))
        False
    """
    same_m = torch.eye(M, dtype=dtype, device=device)
    same_n = torch.eye(N, dtype=dtype, device=device)
    return torch.einsum("np,mq->nmqp", same_n, same_m).reshape(M * N, M * N)


def equation_20(
    M: int, N: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> tuple[Float[Tensor, "{M}*{M}*{N} {N}"], Float[Tensor, "{M}*{M}*{N} {N}"]]:
    """Both sides of Equation (20) in Lemma B.2, which are equal.

    Left `(I_M kron K(M,N))(vec I_M kron I_N)`, right `(K(N,M) kron I_M)(I_N kron vec I_M)`.

    Example:
        >>> left, right = equation_20(2, 3)
        >>> torch.equal(left, right)
        True
    """
    eye_m = torch.eye(M, dtype=dtype, device=device)
    eye_n = torch.eye(N, dtype=dtype, device=device)
    left = kron(eye_m, index_swap_matrix(M, N, dtype, device)) @ kron(vec(eye_m), eye_n)
    right = kron(index_swap_matrix(N, M, dtype, device), eye_m) @ kron(eye_n, vec(eye_m))
    return left, right


def lemma_b_3(A: Float[Tensor, "m n"]) -> tuple[Float[Tensor, "m*m*n n"], Float[Tensor, "m*m*n n"]]:
    """Both sides of Lemma B.3, which are equal.

    Left `(I_m kron K_{m,n})(vec A kron A)`, right `(A kron A kron I_n)(I_n kron K_{n,n})(vec I_n kron I_n)`.

    Example:
        >>> left, right = lemma_b_3(torch.rand(2, 3))
        >>> torch.allclose(left, right)
        True
    """
    m, n = A.shape
    eye = identity(n, A)
    left = kron(identity(m, A), commutation_matrix(m, n, A.dtype, A.device)) @ kron(vec(A), A)
    shuffle = kron(eye, commutation_matrix(n, n, A.dtype, A.device)) @ kron(vec(eye), eye)
    return left, kron(A, A, eye) @ shuffle
