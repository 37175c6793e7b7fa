"""Multi-head attention as a sum of heads (Appendix E, Remark E.1)."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlab.paper.printed import Block, PrintedAttention, require_block, require_shape
from hessianlab.paper.theorems import lemma_b_1, theorem_3_2


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
