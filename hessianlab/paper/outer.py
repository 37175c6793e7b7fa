"""The outer-product Hessian of softmax attention (Theorem 3.1)."""

from jaxtyping import Float
from torch import Tensor

from hessianlab.paper.kronecker import identity, kron
from hessianlab.paper.printed import Block, PrintedAttention, require_block, score_factor


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
        >>> from hessianlab.paper.jacobians import lemma_b_1
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
