"""The attention layers of `hessianlens.models.Transformer` as a chain joined by piecewise linear maps."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from hessianlens.attention.layer import FactoredValueAttention
from hessianlens.derivatives.graph import once_only
from hessianlens.models.adapters.batches import inputs_of
from hessianlens.models.block import Block
from hessianlens.models.mlp import MLP
from hessianlens.models.transformer import Transformer
from hessianlens.network.chain.products import Link
from hessianlens.network.recognition import entrywise_slope
from hessianlens.network.sites.site import with_ones
from hessianlens.network.sites.toy import toy_heads
from hessianlens.problems import Batch


def find_chain(model: nn.Module, batch: Batch) -> tuple[Link, ...] | None:
    """Every attention layer at a batch; None unless one head a layer and piecewise linear maps between, as with ReLU.

    What stands behind the last layer is not looked at.
    """
    if not isinstance(model, Transformer) or not all(isinstance(b, Block) and _fits(b) for b in model.blocks):
        return None
    inputs = inputs_of(batch)
    links: list[Link] = []
    with torch.no_grad():
        stream = model.embed(inputs["tokens"] if isinstance(inputs, dict) else inputs)
        for block in model.blocks:
            assert isinstance(block, Block)
            last = len(links) == len(model.blocks) - 1
            link, stream = _link(block, stream, last)
            if link is None:
                return None
            links.append(link)
    return tuple(links)


def _fits(block: Block) -> bool:
    return block.norm is None and block.attention.query_key == "dual" and block.attention.heads == 1


def _link(block: Block, stream: Tensor, last: bool) -> tuple[Link | None, Tensor]:
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
    return Link(head, tokens, block.residual_scale, partial(_jacobian, block.mlp, slope)), y + block.mlp(y)


def _jacobian(mlp: MLP, slope: Tensor, chosen: slice) -> Tensor:
    """``1 + W_in diag(slope) W_out`` of every token of some sequences."""
    each = slope[chosen].flatten(0, 1)
    found = each.new_empty(len(each), len(mlp.W_in), len(mlp.W_in))
    W_in = mlp.W_in.T.contiguous()
    for token, own in enumerate(each):
        active = own.nonzero()[:, 0]
        torch.mm((W_in[active] * own[active, None]).T, mlp.W_out[active], out=found[token])
    found.diagonal(dim1=-2, dim2=-1).add_(1)
    return found.unflatten(0, slope[chosen].shape[:2])


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
