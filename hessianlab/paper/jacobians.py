"""First derivatives of the layer (Lemma B.1)."""

from jaxtyping import Float
from torch import Tensor

from hessianlab.paper.kronecker import identity, kron
from hessianlab.paper.printed import Block, PrintedAttention, require_block
from hessianlab.paper.softmax import softmax_jacobian
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
