"""Numbered identities of Appendices A and B that the later statements rest on."""

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlab.paper.kronecker import identity, kron, vec
from hessianlens.operators.commutation import commutation_matrix


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
