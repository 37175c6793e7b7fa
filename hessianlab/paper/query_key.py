"""The query-key part of the Hessian, split at the scores (Appendix D: Remark D.1, Lemma D.2)."""

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlab.paper.functional import score_product_matrix
from hessianlab.paper.kronecker import identity, kron
from hessianlab.paper.printed import PrintedAttention, score_factor
from hessianlab.paper.single_matrix import single_matrix_summands
from hessianlens.theory.query_key import t_outer_rank_bound


def remark_d_1_u(setting: PrintedAttention) -> Float[Tensor, "d_V_squared d_V_squared"]:
    """`U = Z_1^T (I_L kron W_V W_V^T) Z_1 + (delta^T (I_L kron W_V^T) kron I_{d_V^2}) Z_2` (Remark D.1).

    `2/(L d_V) U` is the single-matrix Hessian of Lemma 4.1 at the same scores.

    Example:
        >>> U = remark_d_1_u(PrintedAttention.random(L=4, d_V=3, d_K=2))
        >>> torch.allclose(U, U.T)
        True
    """
    outer, functional = single_matrix_summands(setting)
    return outer + functional


def remark_d_1_v(setting: PrintedAttention) -> Float[Tensor, "d_V_squared parameters"]:
    """`V = [(W_Q kron I_{d_V}) K_{d_K,d_V}, I_{d_V} kron W_K]` (Remark D.1).

    The first columns belong to `W_K`, the last to `W_Q` (erratum `remark-d-1`).

    Example:
        >>> remark_d_1_v(PrintedAttention.random(L=4, d_V=3, d_K=2)).shape
        torch.Size([9, 12])
    """
    return torch.cat([score_factor(setting, "K"), score_factor(setting, "Q")], dim=1)


def remark_d_1_b(setting: PrintedAttention) -> Float[Tensor, "d_V d_V"]:
    """`B = R_{d_V} (I_L kron W_V^T kron I_{d_V})(Z_1 kron I_{d_V}) S` (Remark D.1).

    Rows belong to `W_Q`, columns to `W_K`.

    Example:
        >>> setting = PrintedAttention.random(L=4, d_V=3, d_K=2)
        >>> at_the_target = PrintedAttention(setting.X, setting.W_Q, setting.W_K, setting.W_V, Y=setting.F)
        >>> remark_d_1_b(at_the_target).norm()
        tensor(0., dtype=torch.float64)
    """
    return score_product_matrix(setting)


def t_outer_product(setting: PrintedAttention, printed: bool = False) -> Float[Tensor, "parameters parameters"]:
    """T-outer-product Hessian `2/(L d_V) V^T U V / s^2`, order `[W_K; W_Q]` (Remark D.1).

    Erratum `remark-d-1`: the printed order is `[W_Q; W_K]`, which the printed `V` does not have, and the loss
    factor is missing. Use `query_first` for the order `[W_Q; W_K]`. Erratum `section-4-3-temperature`: the
    explicit factor is `1/t^2`, but `U` moves with `t` too.

    Args:
        setting: The layer, its input and its target.
        printed: Leave out the loss factor, as printed.

    Example:
        >>> setting = PrintedAttention.random(L=4, d_V=3, d_K=2)
        >>> int(torch.linalg.matrix_rank(t_outer_product(setting))) <= lemma_d_2(d_V=3, d_K=2)
        True
    """
    V = remark_d_1_v(setting)
    hessian = V.T @ remark_d_1_u(setting) @ V / setting.scale**2
    return hessian if printed else setting.loss_factor * hessian


def t_functional(setting: PrintedAttention, printed: bool = False) -> Float[Tensor, "parameters parameters"]:
    """T-functional Hessian `2/(L d_V) [[0, B^T], [B, 0]] kron I_{d_K} / s`, order `[W_K; W_Q]` (Remark D.1).

    Its eigenvalues are plus and minus the singular values of `2/(L d_V) B / s`, each `d_K` times.

    Errata `remark-d-1` and `section-4-3-temperature`: as for `t_outer_product`, with the factor `1/t`.

    Args:
        setting: The layer, its input and its target.
        printed: Leave out the loss factor, as printed.

    Example:
        >>> H = t_functional(PrintedAttention.random(L=4, d_V=3, d_K=2))
        >>> eigenvalues = torch.linalg.eigvalsh(H)
        >>> torch.allclose(eigenvalues, -eigenvalues.flip(0))
        True
    """
    B = remark_d_1_b(setting)
    zero = torch.zeros_like(B)
    hollow = torch.cat([torch.cat([zero, B.T], dim=1), torch.cat([B, zero], dim=1)], dim=0)
    hessian = kron(hollow, identity(setting.d_K, B)) / setting.scale
    return hessian if printed else setting.loss_factor * hessian


def query_first(matrix: Float[Tensor, "parameters parameters"]) -> Float[Tensor, "parameters parameters"]:
    """A query-key matrix in the order `[W_Q; W_K]`, from one in the order `[W_K; W_Q]`, and back.

    Example:
        >>> query_first(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        tensor([[4., 3.],
                [2., 1.]])
    """
    half = matrix.shape[0] // 2
    return matrix.roll((half, half), dims=(0, 1))


def lemma_d_2(d_V: int, d_K: int) -> int:
    """Largest possible rank of the T-outer-product Hessian (Lemma D.2).

    `2 d_K d_V - d_K^2` if `d_K < d_V`, and `d_V^2` otherwise: the rank of `V` for weights of full rank.

    Example:
        >>> lemma_d_2(d_V=4, d_K=1), lemma_d_2(d_V=4, d_K=4), lemma_d_2(d_V=4, d_K=9)
        (7, 16, 16)
    """
    return t_outer_rank_bound(d_V, d_K)
