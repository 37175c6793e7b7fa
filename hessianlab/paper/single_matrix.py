"""Attention with one matrix in the place of the query-key product (Section 4.2, Lemma 4.1)."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlab.paper.data_terms import z_1, z_2
from hessianlab.paper.kronecker import identity, kron, vec
from hessianlab.paper.printed import PrintedAttention, require_one_dtype, require_shape
from hessianlab.paper.softmax import softmax_jacobian, softmax_second_derivative


@dataclass(frozen=True, eq=False)
class PrintedSingleMatrix:
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
    def L(self) -> int:
        """Number of tokens."""
        return self.X.shape[0]

    @property
    def d_V(self) -> int:
        """Width of tokens and values."""
        return self.X.shape[1]

    @property
    def loss_factor(self) -> float:
        """`2 / (L d_V)`."""
        return 2 / (self.L * self.d_V)

    @property
    def A(self) -> Float[Tensor, "L L"]:
        """The attention matrix."""
        return torch.softmax(self.X @ self.W_QK @ self.X.T, dim=-1)

    @property
    def F(self) -> Float[Tensor, "L d_V"]:
        """The output of the layer."""
        return self.A @ self.X @ self.W_V

    @property
    def delta(self) -> Float[Tensor, "Ld_V 1"]:
        """The residual `vec(F - Y)`, a column."""
        return vec(self.F - self.Y)


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
    setting: PrintedSingleMatrix | PrintedAttention,
) -> tuple[Float[Tensor, "d_V_squared d_V_squared"], Float[Tensor, "d_V_squared d_V_squared"]]:
    """The two summands of Lemma 4.1, which are those of `U` in Remark D.1, without the loss factor.

    Example:
        >>> setting = PrintedAttention.random(L=4, d_V=3, d_K=2)
        >>> pairs = zip(single_matrix_summands(setting), single_matrix_summands(merge_query_key(setting)))
        >>> all(torch.allclose(two, one) for two, one in pairs)
        True
    """
    X, W_V, eye = setting.X, setting.W_V, identity(setting.L, setting.X)
    Z_1 = z_1(X, softmax_jacobian(setting.A))
    Z_2 = z_2(X, softmax_second_derivative(setting.A))
    outer = Z_1.T @ kron(eye, W_V @ W_V.T) @ Z_1
    functional = kron(setting.delta.T @ kron(eye, W_V.T), identity(setting.d_V**2, X)) @ Z_2
    return outer, functional
