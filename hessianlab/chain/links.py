"""The attention layers of `hessianlens.models.Transformer` as a chain joined by piecewise linear maps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hessianlens.attention.layer import FactoredValueAttention
from hessianlens.derivatives.graph import once_only
from hessianlens.models.adapters.batches import inputs_of
from hessianlens.models.block import MLP, TransformerBlock
from hessianlens.models.transformer import Transformer
from hessianlens.network.base.recognition import entrywise_slope
from hessianlens.network.routes.last_attention.site import toy_heads, with_ones
from hessianlens.problems import Batch


@dataclass(frozen=True, eq=False)
class Slopes:
    """``phi(y) = y + MLP(y)`` to first order, at every token.

    Attributes:
        W_in: Of the MLP, [d, h].
        W_out: The same, [h, d].
        slope: Derivative of the activation at every hidden unit, (B, L, h); constant around the point.
    """

    W_in: Tensor
    W_out: Tensor
    slope: Tensor

    def vjp(self, u: Tensor, chosen: slice) -> Tensor:
        """Cotangents [s, L, d] of what enters some sequences, from those of what leaves them."""
        return u + ((u @ self.W_out.T) * self.slope[chosen]) @ self.W_in.T

    def matrices(self, chosen: slice, tokens: Tensor | slice, dtype: torch.dtype) -> Tensor:
        """``1 + W_in diag(slope) W_out`` of some tokens of some sequences, [s, l, d, d], acting on rows."""
        slopes = self.slope[chosen][:, tokens]
        each, width = slopes.flatten(0, 1), len(self.W_in)
        plain = bool(((each == 0) | (each == 1)).all())
        both = torch.cat([self.W_in.T, self.W_out], 1).to(dtype)
        found = both.new_empty(len(each), width, width)
        for token, own in enumerate(each):
            # Most units of a ReLU are off or on: those that are off cost nothing, those that are on no product.
            active = own.nonzero()[:, 0]
            rows = both.index_select(0, active)
            left = rows[:, :width] if plain else rows[:, :width] * own.index_select(0, active)[:, None].to(dtype)
            torch.mm(left.T, rows[:, width:], out=found[token])
        found.diagonal(dim1=-2, dim2=-1).add_(1)
        return found.unflatten(0, slopes.shape[:2])


@dataclass(frozen=True, eq=False)
class Link:
    """One attention layer of the stack and the map behind it.

    Attributes:
        head: Its head; W_O is the model's value and W_U its output matrix, biases are a last row.
        tokens: What enters, (B, L, d), with a last column of ones if there are biases.
        residual: rho, factor of the skip connection around the attention.
        downstream: The map between this layer and the next; None for the identity.
    """

    head: FactoredValueAttention
    tokens: Tensor
    residual: float
    downstream: Slopes | None


def find_chain(model: nn.Module, batch: Batch) -> tuple[Link, ...] | None:
    """Every attention layer at a batch; None unless one head per layer and piecewise linear maps between, as with ReLU.

    What stands behind the last layer is not looked at.
    """
    if not isinstance(model, Transformer) or not all(
        isinstance(b, TransformerBlock) and _fits(b) for b in model.blocks
    ):
        return None
    inputs = inputs_of(batch)
    links: list[Link] = []
    with torch.no_grad():
        stream = model.embed(inputs["tokens"] if isinstance(inputs, dict) else inputs)
        for block in model.blocks:
            assert isinstance(block, TransformerBlock)
            last = len(links) == len(model.blocks) - 1
            link, stream = _link(block, stream, last)
            if link is None:
                return None
            links.append(link)
    return tuple(links)


def _fits(block: TransformerBlock) -> bool:
    return block.norm is None and block.attention.query_key == "dual" and block.attention.heads == 1


def _link(block: TransformerBlock, stream: Tensor, last: bool) -> tuple[Link | None, Tensor]:
    """The link, and the residual stream behind it."""
    (head,) = toy_heads(block.attention).heads
    assert isinstance(head, FactoredValueAttention)
    tokens = with_ones(stream) if block.attention.b_V is not None else stream
    if last:
        return Link(head, tokens, block.residual_scale, None), stream
    shift = 0 if block.attention.b_O is None else block.attention.b_O
    y = block.residual_scale * stream + (head(tokens) + shift)
    if block.mlp is None:
        return Link(head, tokens, block.residual_scale, None), y
    slope = _slope(block.mlp, y)
    if slope is None:
        return None, y
    downstream = Slopes(block.mlp.W_in, block.mlp.W_out, slope)
    return Link(head, tokens, block.residual_scale, downstream), y + block.mlp(y)


def _slope(mlp: MLP, y: Tensor) -> Tensor | None:
    """Derivative of the activation at every hidden unit; None unless it acts on each alone and is piecewise linear."""
    with torch.enable_grad():
        hidden = (y @ mlp.W_in + mlp.b_in).detach().requires_grad_()
        out = mlp.activation(hidden)
        if once_only(out):
            return None
        slope = entrywise_slope(out, hidden, graph=True)
        if slope is None or not slope.requires_grad:
            return slope
        bend = entrywise_slope(slope, hidden)
    return slope.detach() if bend is not None and not bool(bend.any()) else None
