"""The matrices that carry data through the theorems: moments, `Z_1`, `Z_2`, the residual and the shuffle."""

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlab.paper.kronecker import identity, khatri_rao, kron, vec
from hessianlens.operators.commutation import commutation_matrix


def moment_1(X: Float[Tensor, "L d_V"], A: Float[Tensor, "L L"]) -> Float[Tensor, "L d_V"]:
    """First attention moment `M_1 = A X`; row `i` is the mean token under the weights `A_i` (Definition 3.1).

    Example:
        >>> moment_1(torch.tensor([[1.0], [3.0]]), torch.full((2, 2), 0.5)).T
        tensor([[2., 2.]])
    """
    return A @ X


def moment_2(X: Float[Tensor, "L d_V"], A: Float[Tensor, "L L"]) -> Float[Tensor, "L*d_V d_V"]:
    """Second central attention moment `M_2` (Definition 3.1).

    Block `i` is the covariance `sum_j A_ij c_ij c_ij^T`, where `c_ij = X_j - (M_1)_i` runs over tokens `j`.

    Example:
        >>> moment_2(torch.tensor([[1.0], [3.0]]), torch.full((2, 2), 0.5)).T
        tensor([[1., 1.]])
    """
    centred = X[None] - moment_1(X, A)[:, None]
    return torch.einsum("ij,ija,ijb->iab", A, centred, centred).reshape(X.numel(), X.shape[1])


def moment_3(X: Float[Tensor, "L d_V"], A: Float[Tensor, "L L"]) -> Float[Tensor, "L*d_V*d_V d_V"]:
    """Third central attention moment `M_3` (Definition 3.1).

    Block `i` is `sum_j A_ij c_ij kron c_ij c_ij^T`, where `c_ij = X_j - (M_1)_i` runs over tokens `j`.

    Example:
        >>> moment_3(torch.tensor([[1.0], [3.0]]), torch.tensor([[0.5, 0.5], [0.75, 0.25]])).T
        tensor([[0.0000, 0.7500]])
    """
    d = X.shape[1]
    centred = X[None] - moment_1(X, A)[:, None]
    third = torch.einsum("ij,ija,ijb,ijc->iabc", A, centred, centred, centred)
    return third.reshape(X.shape[0] * d * d, d)


def z_1(X: Float[Tensor, "L d_V"], dA_dT: Float[Tensor, "L*L L*L"]) -> Float[Tensor, "L*d_V d_V*d_V"]:
    """`Z_1 = (I_L kron X^T)(dA/dT)(X kron X)`, as Theorem 3.1 defines it.

    Args:
        X: The sequence, a token in each row.
        dA_dT: First derivative of the activation; for linear attention the identity `I_{L^2}` (erratum
            `section-4-1-identity`: printed with size `d_V^2`).

    Example:
        >>> X, A = torch.rand(3, 2), torch.softmax(torch.rand(3, 3), -1)
        >>> from hessianlab.paper.kronecker import softmax_jacobian
        >>> torch.allclose(z_1(X, softmax_jacobian(A)), z_1_from_moments(X, A), atol=1e-6)
        True
    """
    return kron(identity(X.shape[0], X), X.T) @ dA_dT @ kron(X, X)


def z_2(X: Float[Tensor, "L d_V"], d2A_dT2: Float[Tensor, "L*L*L*L L*L"]) -> Float[Tensor, "L*d_V*d_V*d_V d_V*d_V"]:
    """`Z_2 = (I_L kron X^T kron X^T kron X^T)(d2A/dT2)(X kron X)`, as Theorem 3.2 defines it.

    Args:
        X: The sequence, a token in each row.
        d2A_dT2: Second derivative of the activation, the Hessians of the entries of `A` stacked.

    Example:
        >>> X, A = torch.rand(3, 2), torch.softmax(torch.rand(3, 3), -1)
        >>> from hessianlab.paper.kronecker import softmax_second_derivative
        >>> torch.allclose(z_2(X, softmax_second_derivative(A)), z_2_from_moments(X, A), atol=1e-6)
        True
    """
    return kron(identity(X.shape[0], X), X.T, X.T, X.T) @ d2A_dT2 @ kron(X, X)


def z_1_from_moments(X: Float[Tensor, "L d_V"], A: Float[Tensor, "L L"]) -> Float[Tensor, "L*d_V d_V*d_V"]:
    """`Z_1 = X * M_2` for softmax attention (Remark 3.1); block `i` is `X_i^T kron (M_2)_i`.

    Example:
        >>> z_1_from_moments(torch.tensor([[1.0], [3.0]]), torch.full((2, 2), 0.5)).T
        tensor([[1., 3.]])
    """
    return khatri_rao(X, moment_2(X, A), row_blocks=X.shape[0])


def z_2_from_moments(
    X: Float[Tensor, "L d_V"], A: Float[Tensor, "L L"], printed: bool = False
) -> Float[Tensor, "rows cols"]:
    """`Z_2 = (I_L kron K_{d,d} kron I_d)(X * vec(X) * M_3)` for softmax attention (Remark 3.1, `d = d_V`).

    Block `i` of the triple product is `X_i^T kron X_i kron (M_3)_i = X_i X_i^T kron (M_3)_i`, so `Z_2` is
    `L d_V^3 x d_V^2`.

    Erratum `remark-3-1`: the printed second factor `X^T` has no cut into `L` block rows; it must be `vec(X)`.
    Erratum `remark-3-1-proof`: the last line of the proof calls this matrix `M_3`.

    Args:
        X: The sequence, a token in each row.
        A: The attention matrix.
        printed: Try the printed factor `X^T`.

    Raises:
        ValueError: With `printed=True`, as the block grids do not match.
        RuntimeError: With `printed=True` where `L` divides `d_V`: the blocks match, the product with `K` does not.

    Example:
        >>> z_2_from_moments(torch.tensor([[1.0], [3.0]]), torch.tensor([[0.5, 0.5], [0.75, 0.25]])).T
        tensor([[0.0000, 6.7500]])
        >>> z_2_from_moments(torch.rand(3, 2), torch.softmax(torch.rand(3, 3), -1), printed=True)
        Traceback (most recent call last):
        ...
        ValueError: khatri_rao: the right matrix of shape (2, 3) cannot be cut into 3 x 1 equal blocks
    """
    length, d = X.shape
    second = X.T if printed else vec(X)
    triple = khatri_rao(khatri_rao(X, second, row_blocks=length), moment_3(X, A), row_blocks=length)
    swap = commutation_matrix(d, d, X.dtype, X.device)
    return kron(identity(length, X), swap, identity(d, X)) @ triple


def duplicated_residual(delta: Float[Tensor, "Ld_V 1"], m: int) -> Float[Tensor, "{m} {m}*Ld_V"]:
    """`R_m = vec(F - Y)^T kron I_m`, the residual that weighs second derivatives (Theorem 3.2).

    Args:
        delta: The residual `vec(F - Y)`, a column (erratum `residual-orientation`: printed once as a row).
        m: Number of parameters on the row side of the block.

    Example:
        >>> duplicated_residual(torch.tensor([[2.0], [3.0]]), 2)
        tensor([[2., 0., 3., 0.],
                [0., 2., 0., 3.]])
    """
    return kron(delta.T, identity(m, delta))


def shuffling_matrix(
    d_V: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Float[Tensor, "{d_V}*{d_V}*{d_V} {d_V}"]:
    """`S = (I_d kron K_{d,d})(vec I_d kron I_d)` with `d = d_V` (Theorem 3.2).

    Entry `(a, b, c), e` is one if `a = c` and `b = e`, and zero otherwise.

    Example:
        >>> S = shuffling_matrix(3).reshape(3, 3, 3, 3)
        >>> torch.equal(S, torch.einsum("ac,be->abce", torch.eye(3), torch.eye(3)))
        True
    """
    eye = torch.eye(d_V, dtype=dtype, device=device)
    return kron(eye, commutation_matrix(d_V, d_V, dtype, device)) @ kron(vec(eye), eye)
