"""One query-key matrix (Lemma 4.1) and the split at the scores (Remark D.1, Lemma D.2) as printed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlab.paper.kronecker import identity, kron, softmax_jacobian
from hessianlab.paper.printed import PrintedAttention, PrintedLayer, require_one_dtype, require_shape, score_factor
from hessianlab.paper.theorems import score_product_matrix
from hessianlens.layer.query_key import t_outer_rank_bound


@dataclass(frozen=True, eq=False)
class PrintedSingleMatrix(PrintedLayer):
    """Softmax self-attention with `T = X W_QK X^T`, without scaling, and square loss (Section 4.2).

    Attributes:
        X: The sequence, a token in each row, `L x d_V`.
        W_QK: The single matrix, `d_V x d_V`.
        W_V: Value weights, `d_V x d_V`.
        Y: The target, `L x d_V`.

    Example:
        >>> setting = PrintedAttention.random(L=4, d_V=3, d_K=2)
        >>> torch.allclose(merge_query_key(setting).F, setting.F)
        True
    """

    X: Tensor
    W_QK: Tensor
    W_V: Tensor
    Y: Tensor

    def __post_init__(self) -> None:
        if self.X.ndim != 2:
            raise ValueError(f"X has shape {tuple(self.X.shape)}, expected two dimensions (L, d_V)")
        length, d_V = self.X.shape
        because = f"X is (L, d_V) = {(length, d_V)}"
        require_shape("W_QK", self.W_QK, "(d_V, d_V)", (d_V, d_V), because)
        require_shape("W_V", self.W_V, "(d_V, d_V)", (d_V, d_V), because)
        require_shape("Y", self.Y, "(L, d_V)", (length, d_V), because)
        require_one_dtype(X=self.X, W_QK=self.W_QK, W_V=self.W_V, Y=self.Y)

    @property
    def A(self) -> Float[Tensor, "L L"]:
        """The attention matrix."""
        return torch.softmax(self.X @ self.W_QK @ self.X.T, dim=-1)


def merge_query_key(setting: PrintedAttention) -> PrintedSingleMatrix:
    """The single-matrix layer with the same scores: `W_QK = W_Q W_K^T / (t sqrt(d_K))`.

    Example:
        >>> merge_query_key(PrintedAttention.random(L=4, d_V=3, d_K=2)).W_QK.shape
        torch.Size([3, 3])
    """
    return PrintedSingleMatrix(setting.X, setting.W_Q @ setting.W_K.T / setting.scale, setting.W_V, setting.Y)


def equation_22(setting: PrintedSingleMatrix) -> Float[Tensor, "Ld_V d_V_squared"]:
    """`dF/dW_QK = (I_L kron W_V^T X^T)(dA/dT)(X kron X)`, Equation (22).

    Example:
        >>> single = merge_query_key(PrintedAttention.random(L=4, d_V=3, d_K=2))
        >>> equation_22(single).shape
        torch.Size([12, 9])
    """
    X = setting.X
    left = kron(identity(setting.L, X), setting.W_V.T @ X.T)
    return left @ softmax_jacobian(setting.A) @ kron(X, X)


def lemma_4_1(
    setting: PrintedSingleMatrix, part: Literal["full", "outer", "functional"] = "full", printed: bool = False
) -> Float[Tensor, "d_V_squared d_V_squared"]:
    """The Hessian with respect to `W_QK` (Lemma 4.1).

    `2/(L d_V) (Z_1^T (I_L kron W_V W_V^T) Z_1 + (delta^T (I_L kron W_V^T) kron I_{d_V^2}) Z_2)`. The first
    summand is the outer product, the second the functional part; there is no T-functional part.

    Erratum `lemma-4-1`: the printed form leaves out the factor `2/(L d_V)` of the loss.

    Args:
        setting: The layer, its input and its target.
        part: Which summand to return, or "full" for both.
        printed: Leave out the loss factor, as printed.

    Example:
        >>> single = merge_query_key(PrintedAttention.random(L=4, d_V=3, d_K=2))
        >>> J = equation_22(single)
        >>> torch.allclose(lemma_4_1(single, "outer"), single.loss_factor * J.T @ J)
        True
        >>> torch.allclose(lemma_4_1(single, "outer", printed=True), single.loss_factor * J.T @ J)
        False
    """
    outer, functional = single_matrix_summands(setting)
    choices = {"full": outer + functional, "outer": outer, "functional": functional}
    if part not in choices:
        raise ValueError(f"unknown part {part!r}; expected 'full', 'outer' or 'functional'")
    return choices[part] if printed else setting.loss_factor * choices[part]


def single_matrix_summands(
    setting: PrintedLayer,
) -> tuple[Float[Tensor, "d_V_squared d_V_squared"], Float[Tensor, "d_V_squared d_V_squared"]]:
    """The two summands of Lemma 4.1, which are those of `U` in Remark D.1, without the loss factor.

    Example:
        >>> setting = PrintedAttention.random(L=4, d_V=3, d_K=2)
        >>> pairs = zip(single_matrix_summands(setting), single_matrix_summands(merge_query_key(setting)))
        >>> all(torch.allclose(two, one) for two, one in pairs)
        True
    """
    X, W_V, eye, Z_1 = setting.X, setting.W_V, identity(setting.L, setting.X), setting.Z_1
    outer = Z_1.T @ kron(eye, W_V @ W_V.T) @ Z_1
    functional = kron(setting.delta.T @ kron(eye, W_V.T), identity(setting.d_V**2, X)) @ setting.Z_2
    return outer, functional


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
