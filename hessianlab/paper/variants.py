"""Variants of the printed layer: linear attention without softmax (Remark 4.1), and several heads (Appendix E)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlab.paper.data_terms import duplicated_residual, shuffling_matrix
from hessianlab.paper.kronecker import identity, kron, vec
from hessianlab.paper.printed import Block, PrintedAttention, require_block, require_shape
from hessianlab.paper.theorems import lemma_b_1, theorem_3_2
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


@dataclass(frozen=True, eq=False)
class PrintedMultiHead:
    """`F = sum_h A^h X W_V^h` with square loss, every head with weights of its own (Appendix E).

    Attributes:
        X: The sequence, a token in each row, `L x d_V`.
        W_Q: Query weights, `H x d_V x d_K`, one matrix for each head.
        W_K: Key weights, `H x d_V x d_K`.
        W_V: Value weights, `H x d_V x d_V`.
        Y: The target, `L x d_V`.

    Example:
        >>> one = PrintedAttention.random(L=4, d_V=3, d_K=2)
        >>> twice = [W.expand(2, -1, -1) for W in (one.W_Q, one.W_K, one.W_V)]
        >>> torch.allclose(PrintedMultiHead(one.X, *twice, one.Y).F, 2 * one.F)
        True
    """

    X: Tensor
    W_Q: Tensor
    W_K: Tensor
    W_V: Tensor
    Y: Tensor

    def __post_init__(self) -> None:
        if self.W_Q.ndim != 3:
            raise ValueError(f"W_Q has shape {tuple(self.W_Q.shape)}, expected three dimensions (H, d_V, d_K)")
        heads, d_V, d_K = self.W_Q.shape
        because = f"W_Q is (H, d_V, d_K) = {(heads, d_V, d_K)}"
        require_shape("W_K", self.W_K, "(H, d_V, d_K)", (heads, d_V, d_K), because)
        require_shape("W_V", self.W_V, "(H, d_V, d_V)", (heads, d_V, d_V), because)
        for weights in zip(self.W_Q, self.W_K, self.W_V, strict=True):
            PrintedAttention(self.X, *weights, self.Y)

    @property
    def heads(self) -> int:
        """Number of heads `H`."""
        return self.W_Q.shape[0]

    @property
    def loss_factor(self) -> float:
        """`2 / (L d_V)`."""
        return 2 / self.X.numel()

    @property
    def F(self) -> Float[Tensor, "L d_V"]:
        """The output of the layer."""
        return torch.stack([self._alone(head).F for head in range(self.heads)]).sum(0)

    def head(self, head: int) -> PrintedAttention:
        """One head, with the target lowered by what the other heads put out.

        Its residual is then the residual of the whole layer, and Theorems 3.1 and 3.2 on it are the blocks of
        that head within the layer.
        """
        alone = self._alone(head)
        others = self.F - alone.F
        return PrintedAttention(self.X, alone.W_Q, alone.W_K, alone.W_V, self.Y - others)

    def _alone(self, head: int) -> PrintedAttention:
        return PrintedAttention(self.X, self.W_Q[head], self.W_K[head], self.W_V[head], self.Y)


def remark_e_1(setting: PrintedMultiHead, head: int, block: Block) -> Float[Tensor, "Ld_V parameters"]:
    """`dF/dW^h = dF^h/dW^h`: Lemma B.1 on head `h` alone (Remark E.1).

    Args:
        setting: The layer and its input.
        head: The head `h`, counted from zero.
        block: "Q", "K" or "V".

    Example:
        >>> one = PrintedAttention.random(L=4, d_V=3, d_K=2)
        >>> setting = PrintedMultiHead(one.X, one.W_Q[None], one.W_K[None], one.W_V[None], one.Y)
        >>> torch.allclose(remark_e_1(setting, 0, "Q"), lemma_b_1(one, "Q"))
        True
    """
    return lemma_b_1(setting.head(head), block)


def multi_head_outer(
    setting: PrintedMultiHead, row: tuple[int, Block], col: tuple[int, Block]
) -> Float[Tensor, "rows cols"]:
    """`H_o` between two blocks, each named by head and letter: `2/(L d_V) (dF/dW_row)^T (dF/dW_col)`.

    Example:
        >>> one = PrintedAttention.random(L=4, d_V=3, d_K=2)
        >>> twice = [W.expand(2, -1, -1) for W in (one.W_Q, one.W_K, one.W_V)]
        >>> multi_head_outer(PrintedMultiHead(one.X, *twice, one.Y), (0, "V"), (1, "Q")).shape
        torch.Size([9, 6])
    """
    return setting.loss_factor * remark_e_1(setting, *row).T @ remark_e_1(setting, *col)


def multi_head_functional(
    setting: PrintedMultiHead, row: tuple[int, Block], col: tuple[int, Block]
) -> Float[Tensor, "rows cols"]:
    """`H_f` between two blocks, each named by head and letter: Theorem 3.2 within a head, zero between heads.

    Example:
        >>> one = PrintedAttention.random(L=4, d_V=3, d_K=2)
        >>> twice = [W.expand(2, -1, -1) for W in (one.W_Q, one.W_K, one.W_V)]
        >>> setting = PrintedMultiHead(one.X, *twice, one.Y)
        >>> multi_head_functional(setting, (0, "Q"), (1, "K")).abs().max()
        tensor(0., dtype=torch.float64)
    """
    require_block(row[1], col[1])
    if row[0] == col[0]:
        return theorem_3_2(setting.head(row[0]), row[1], col[1])
    sizes = {"Q": setting.W_Q[0].numel(), "K": setting.W_K[0].numel(), "V": setting.W_V[0].numel()}
    return torch.zeros(sizes[row[1]], sizes[col[1]], dtype=setting.X.dtype, device=setting.X.device)
