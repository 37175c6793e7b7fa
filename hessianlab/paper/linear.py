"""Linear self-attention, the control model without softmax (Remark 4.1)."""

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlab.paper.data_terms import duplicated_residual, shuffling_matrix
from hessianlab.paper.kronecker import identity, kron, vec
from hessianlab.paper.printed import Block, PrintedAttention, require_block
from hessianlens.operators.commutation import commutation_matrix


def intra_sequence_covariance(X: Float[Tensor, "L d_V"]) -> Float[Tensor, "d_V d_V"]:
    """`Sigma_XX = X^T X / L`, not centred (Remark 4.1).

    Example:
        >>> intra_sequence_covariance(torch.tensor([[1.0], [3.0]]))
        tensor([[5.]])
    """
    return X.T @ X / X.shape[0]


def linear_output(setting: PrintedAttention) -> Float[Tensor, "L d_V"]:
    """`F = T X W_V`: the layer of the setting with the identity in place of the softmax.

    Example:
        >>> linear_output(PrintedAttention.random(L=4, d_V=3, d_K=2)).shape
        torch.Size([4, 3])
    """
    return setting.T @ setting.X @ setting.W_V


def remark_4_1_outer(setting: PrintedAttention, row: Block, col: Block) -> Float[Tensor, "rows cols"]:
    """Block `H_o(W_row, W_col)` of linear attention (Remark 4.1).

    With `Sigma = X^T X / L`, `s = t sqrt(d_K)` and the common factor `2 L^2 / (d_V s^2)`:

    - VV: `Sigma W_K W_Q^T Sigma W_Q W_K^T Sigma kron I_{d_V}`
    - QQ: `Sigma kron W_K^T Sigma W_V W_V^T Sigma W_K`
    - VQ: `Sigma W_K W_Q^T Sigma kron W_V^T Sigma W_K`
    - QK: `(Sigma W_Q kron W_K^T Sigma W_V W_V^T Sigma) K_{d_K,d_V}`
    - KK: `Sigma W_V W_V^T Sigma kron W_Q^T Sigma W_Q`, not printed
    - VK: `(Sigma W_K W_Q^T Sigma W_Q kron W_V^T Sigma) K_{d_K,d_V}`, not printed

    Every other block is the transpose of one of these. Erratum `section-4-1-identity`: here `dA/dT` is
    `I_{L^2}`, printed with size `d_V^2`.

    Args:
        setting: Input, weights and target; its softmax is not used.
        row: Block of the rows, "Q", "K" or "V".
        col: Block of the columns.

    Example:
        >>> setting = PrintedAttention.random(L=4, d_V=3, d_K=2)
        >>> bool(torch.linalg.eigvalsh(remark_4_1_outer(setting, "Q", "Q")).min() > -1e-12)
        True
    """
    require_block(row, col)
    C, W_Q, W_K, W_V = intra_sequence_covariance(setting.X), setting.W_Q, setting.W_K, setting.W_V
    swap = commutation_matrix(setting.d_K, setting.d_V, C.dtype, C.device)
    values = C @ W_V @ W_V.T @ C
    attended = C @ W_K @ W_Q.T @ C
    match row, col:
        case "V", "V":
            block = kron(attended @ W_Q @ W_K.T @ C, identity(setting.d_V, C))
        case "Q", "Q":
            block = kron(C, W_K.T @ values @ W_K)
        case "K", "K":
            block = kron(values, W_Q.T @ C @ W_Q)
        case "V", "Q":
            block = kron(attended, W_V.T @ C @ W_K)
        case "V", "K":
            block = kron(attended @ W_Q, W_V.T @ C) @ swap
        case "Q", "K":
            block = kron(C @ W_Q, W_K.T @ values) @ swap
        case _:
            return remark_4_1_outer(setting, col, row).T
    return 2 * setting.L**2 / (setting.d_V * setting.scale**2) * block


def remark_4_1_functional(setting: PrintedAttention, row: Block, col: Block) -> Float[Tensor, "rows cols"]:
    """Block `H_f(W_row, W_col)` of linear attention (Remark 4.1).

    With `delta = vec(F - Y)` of the linear layer and the common factor `2 / (d_V s)`:

    - VV, QQ, KK: zero
    - VQ: `(delta^T kron I_{d_V^2})(I_L kron S)(X kron Sigma W_K)`
    - QK: `(delta^T (X kron W_V^T Sigma) kron I_{d_V}) S kron I_{d_K}`, the last Kronecker product taken last
    - VK: `(delta^T kron I_{d_V^2})(I_L kron S)(X W_Q kron Sigma) K_{d_K,d_V}`, not printed

    Every other block is the transpose of one of these.

    Args:
        setting: Input, weights and target; its softmax is not used.
        row: Block of the rows, "Q", "K" or "V".
        col: Block of the columns.

    Example:
        >>> setting = PrintedAttention.random(L=4, d_V=3, d_K=2)
        >>> bool(remark_4_1_functional(setting, "Q", "Q").any())
        False
        >>> bool(remark_4_1_functional(setting, "Q", "K").any())
        True
    """
    require_block(row, col)
    X, d_V, d_K = setting.X, setting.d_V, setting.d_K
    if row == col:
        size = d_V * (d_V if row == "V" else d_K)
        return torch.zeros(size, size, dtype=X.dtype, device=X.device)
    if (row, col) not in (("V", "Q"), ("V", "K"), ("Q", "K")):
        return remark_4_1_functional(setting, col, row).T
    C = intra_sequence_covariance(X)
    delta = vec(linear_output(setting) - setting.Y)
    S = shuffling_matrix(d_V, X.dtype, X.device)
    if row == "Q":
        weighted = kron(delta.T @ kron(X, setting.W_V.T @ C), identity(d_V, X)) @ S
        block = kron(weighted, identity(d_K, X))
    else:
        swap = commutation_matrix(d_K, d_V, X.dtype, X.device)
        data = kron(X, C @ setting.W_K) if col == "Q" else kron(X @ setting.W_Q, C) @ swap
        block = duplicated_residual(delta, d_V**2) @ kron(identity(setting.L, X), S) @ data
    return 2 / (d_V * setting.scale) * block
