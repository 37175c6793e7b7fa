"""Lemma B.1 and Theorems 3.1 and 3.2: Jacobians, outer-product and functional Hessian as printed."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlab.paper.data_terms import duplicated_residual, shuffling_matrix
from hessianlab.paper.kronecker import identity, kron, softmax_jacobian
from hessianlab.paper.printed import Block, PrintedAttention, require_block, score_factor
from hessianlens.operators.commutation import commutation_matrix


def lemma_b_1(setting: PrintedAttention, block: Block) -> Float[Tensor, "Ld_V parameters"]:
    """`dF/dW` for one weight matrix, `vec(F)` by `vec(W)` (Lemma B.1), with `s = t sqrt(d_K)`.

    - V: `A X kron I_{d_V}`
    - Q: `(I_L kron W_V^T X^T)(dA/dT)(X kron X W_K) / s`
    - K: `(I_L kron W_V^T X^T)(dA/dT)(X W_Q kron X) K_{d_K,d_V} / s`, which the paper leaves out

    Args:
        setting: The layer and its input.
        block: "Q", "K" or "V".

    Example:
        >>> setting = PrintedAttention.random(L=4, d_V=3, d_K=2)
        >>> lemma_b_1(setting, "Q").shape
        torch.Size([12, 6])
        >>> import torch
        >>> from hessianlab.paper.kronecker import vec
        >>> torch.allclose(lemma_b_1(setting, "V") @ vec(setting.W_V), vec(setting.F))  # linear in W_V
        True
    """
    require_block(block)
    X, eye = setting.X, identity(setting.L, setting.X)
    if block == "V":
        return kron(setting.A @ X, identity(setting.d_V, X))
    if block == "Q":
        dT_dW = kron(X, X @ setting.W_K) / setting.scale
    else:
        swap = commutation_matrix(setting.d_K, setting.d_V, X.dtype, X.device)
        dT_dW = kron(X @ setting.W_Q, X) @ swap / setting.scale
    return kron(eye, setting.W_V.T @ X.T) @ softmax_jacobian(setting.A) @ dT_dW


def theorem_3_1(setting: PrintedAttention, row: Block, col: Block) -> Float[Tensor, "rows cols"]:
    """Block `H_o(W_row, W_col)` of the outer-product Hessian (Theorem 3.1).

    With `c = 2/(L d_V)`, `s = t sqrt(d_K)`, `P_Q = I_{d_V} kron W_K` and
    `P_K = (W_Q kron I_{d_V}) K_{d_K,d_V}`:

    - V, V: `c M_1^T M_1 kron I_{d_V}`
    - V, b: `c/s (M_1^T kron W_V^T) Z_1 P_b`
    - a, b: `c/s^2 P_a^T Z_1^T (I_L kron W_V W_V^T) Z_1 P_b`

    for `a` and `b` among Q and K; every other block is the transpose of one of these. The paper prints VV,
    QQ, VQ and QK; KK and VK follow with the same `P_K`. Erratum `theorem-3-1-proof` is about the proof of VQ
    only; erratum `section-3-1-sixth-power` gives the sixth power of the data in QQ back to this part.

    Args:
        setting: The layer, its input and its target.
        row: Block of the rows, "Q", "K" or "V".
        col: Block of the columns.

    Example:
        >>> setting = PrintedAttention.random(L=4, d_V=3, d_K=2)
        >>> from hessianlab.paper.theorems import lemma_b_1
        >>> gauss_newton = setting.loss_factor * lemma_b_1(setting, "Q").T @ lemma_b_1(setting, "K")
        >>> bool((theorem_3_1(setting, "Q", "K") - gauss_newton).norm() < 1e-12 * gauss_newton.norm())
        True
    """
    require_block(row, col)
    if row == col == "V":
        M_1 = setting.M_1
        return setting.loss_factor * kron(M_1.T @ M_1, identity(setting.d_V, M_1))
    if row == "V":
        left = kron(setting.M_1.T, setting.W_V.T)
        return setting.loss_factor / setting.scale * left @ setting.Z_1 @ score_factor(setting, col)
    if col == "V":
        return theorem_3_1(setting, "V", row).T
    Z_1 = setting.Z_1
    values = kron(identity(setting.L, Z_1), setting.W_V @ setting.W_V.T)
    middle = Z_1.T @ values @ Z_1
    sides = score_factor(setting, row), score_factor(setting, col)
    return setting.loss_factor / setting.scale**2 * sides[0].T @ middle @ sides[1]


def theorem_3_2(setting: PrintedAttention, row: Block, col: Block) -> Float[Tensor, "rows cols"]:
    """Block `H_f(W_row, W_col)` of the functional Hessian (Theorem 3.2).

    With `c = 2/(L d_V)`, `s = t sqrt(d_K)`, `R_m = vec(F - Y)^T kron I_m`, `P_Q = I_{d_V} kron W_K` and
    `P_K = (W_Q kron I_{d_V}) K_{d_K,d_V}`:

    - V, V: zero (erratum `equation-5`: listed as constant)
    - V, b: `c/s R_{d_V^2} (I_L kron S) Z_1 P_b`
    - Q, Q and K, K: `c/s^2 R_{d_V d_K} (I_L kron W_V^T kron P_a^T) Z_2 P_a`
    - Q, K: the sum of `theorem_3_2_query_key`

    Every other block is the transpose of one of these. The paper prints VV, QQ, VQ and QK; KK and VK follow
    with the same `P_K`.

    Args:
        setting: The layer, its input and its target.
        row: Block of the rows, "Q", "K" or "V".
        col: Block of the columns.

    Example:
        >>> setting = PrintedAttention.random(L=4, d_V=3, d_K=2)
        >>> at_the_target = PrintedAttention(setting.X, setting.W_Q, setting.W_K, setting.W_V, Y=setting.F)
        >>> theorem_3_2(setting, "Q", "Q").norm() > 0, theorem_3_2(at_the_target, "Q", "Q").norm() == 0
        (tensor(True), tensor(True))
    """
    require_block(row, col)
    d_V, X = setting.d_V, setting.X
    if row == col == "V":
        return torch.zeros(d_V**2, d_V**2, dtype=X.dtype, device=X.device)
    if row == "V":
        spread = kron(identity(setting.L, X), shuffling_matrix(d_V, X.dtype, X.device))
        weighted = duplicated_residual(setting.delta, d_V**2) @ spread @ setting.Z_1
        return setting.loss_factor / setting.scale * weighted @ score_factor(setting, col)
    if row == col:
        return _second_softmax_derivative(setting, row, col)
    if (row, col) == ("Q", "K"):
        softmax_part, product_part = theorem_3_2_query_key(setting)
        return softmax_part + product_part
    return theorem_3_2(setting, col, row).T


def theorem_3_2_query_key(
    setting: PrintedAttention,
) -> tuple[Float[Tensor, "rows cols"], Float[Tensor, "rows cols"]]:
    """The two summands of `H_f(W_Q, W_K)` in Theorem 3.2.

    First `c/s^2 R_{d_V d_K} (I_L kron W_V^T kron P_Q^T) Z_2 P_K`, from the second derivative of the softmax;
    then `(c/s R_{d_V} (I_L kron W_V^T kron I_{d_V})(Z_1 kron I_{d_V}) S) kron I_{d_K}`, from the product of
    the two weight matrices in the scores. The second is the off-diagonal block of the T-functional Hessian
    (Remark D.1). The letters are those of `theorem_3_2`.

    Example:
        >>> setting = PrintedAttention.random(L=4, d_V=3, d_K=2)
        >>> softmax_part, product_part = theorem_3_2_query_key(setting)
        >>> torch.equal(softmax_part + product_part, theorem_3_2(setting, "Q", "K"))
        True
    """
    product = setting.loss_factor / setting.scale * score_product_matrix(setting)
    return _second_softmax_derivative(setting, "Q", "K"), kron(product, identity(setting.d_K, product))


def score_product_matrix(setting: PrintedAttention) -> Float[Tensor, "d_V d_V"]:
    """`B = R_{d_V} (I_L kron W_V^T kron I_{d_V})(Z_1 kron I_{d_V}) S` of Theorem 3.2 and Remark D.1.

    Row and column are the input indices of `W_Q` and `W_K`. Times the loss factor, `B` is the gradient of the
    loss with respect to the single matrix of Section 4.2 at the same scores.

    Example:
        >>> score_product_matrix(PrintedAttention.random(L=4, d_V=3, d_K=2)).shape
        torch.Size([3, 3])
    """
    d_V, X = setting.d_V, setting.X
    eye = identity(d_V, X)
    values = kron(identity(setting.L, X), setting.W_V.T, eye)
    shuffled = kron(setting.Z_1, eye) @ shuffling_matrix(d_V, X.dtype, X.device)
    return duplicated_residual(setting.delta, d_V) @ values @ shuffled


def _second_softmax_derivative(setting: PrintedAttention, row: Block, col: Block) -> Float[Tensor, "rows cols"]:
    left, right = score_factor(setting, row), score_factor(setting, col)
    values = kron(identity(setting.L, left), setting.W_V.T, left.T)
    residual = duplicated_residual(setting.delta, setting.d_V * setting.d_K)
    return setting.loss_factor / setting.scale**2 * residual @ values @ setting.Z_2 @ right
