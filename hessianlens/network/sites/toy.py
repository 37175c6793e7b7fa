"""The last attention layer of `hessianlens.models.Transformer`, any activation, with the rest of it as functions."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from hessianlens.attention.layer import MultiHeadAttention
from hessianlens.errors import Refusal
from hessianlens.models.adapters.batches import inputs_of
from hessianlens.models.attention import Attention
from hessianlens.models.block import TransformerBlock
from hessianlens.models.transformer import Transformer
from hessianlens.network.linear_maps.grouping import Grouping
from hessianlens.network.linear_maps.uses import Kind, Use
from hessianlens.network.sites.site import AttentionSite, Behind, HeadProjection, heads_of, with_ones
from hessianlens.problems import Batch, Problem


def frozen_copy(problem: Problem) -> Transformer | None:
    """A copy of the problem's model that holds the problem's own parameters; None for any other model."""
    if not isinstance(problem.source, Transformer):
        return None
    # Parameters are handed over, not copied: a copy of the model costs no more than its other attributes.
    handed = {
        id(parameter): nn.Parameter(problem.params[name], requires_grad=False)
        for name, parameter in problem.source.named_parameters()
    }
    try:
        model = copy.deepcopy(problem.source, handed).to(device=problem.device, dtype=problem.dtype)
    except (RuntimeError, TypeError):  # some models hold what cannot be copied, such as outputs with their graph
        return None
    return model.eval()


def toy_site(model: Transformer, batch: Batch) -> AttentionSite | Refusal:
    """The site, for two query-key matrices a head; a refusal where there is none."""
    if len(model.blocks) == 0:
        return Refusal("it has no attention")
    last, block = len(model.blocks) - 1, model.blocks[-1]
    assert isinstance(block, TransformerBlock)
    attention = block.attention
    if attention.query_key != "dual":
        return Refusal("its queries and keys are one matrix")
    inputs = inputs_of(batch)
    residual = model.residual(inputs["tokens"] if isinstance(inputs, dict) else inputs)
    X = block.attention_input(residual)
    projections = _projections(attention, f"blocks.{last}.attention.")
    shift = 0 if attention.b_O is None else attention.b_O

    def narrowed(positions: Tensor | slice) -> Behind:
        entering = residual[:, positions]
        return lambda F: model.unembed(block.join(F + shift, entering))

    return AttentionSite(
        toy_heads(attention),
        with_ones(X) if attention.b_V is not None else X,
        projections,
        Grouping(*X.shape[:2]),
        narrowed(slice(None)),
        narrowed,
    )


def _projections(attention: Attention, prefix: str) -> dict[str, HeadProjection]:
    features = torch.arange(attention.heads * attention.d_head, device="cpu").reshape(attention.heads, -1)
    biased = attention.b_V is not None
    return {
        name: HeadProjection(
            Use(f"{prefix}W_{name.upper()}", Kind.IN_OUT, 0, None, ()),
            Use(f"{prefix}b_{name.upper()}", Kind.SHIFT, 0, None, ()) if biased and name != "o" else None,
            features,
            of_inputs=name == "o",
        )
        for name in "qkvo"
    }


def toy_heads(attention: Attention) -> MultiHeadAttention:
    """The heads of an attention module."""
    weights = {
        name: getattr(attention, f"W_{name.upper()}").chunk(attention.heads, int(name != "o")) for name in "qkvo"
    }
    biases = {name: getattr(attention, f"b_{name.upper()}") for name in "qkv"}
    return heads_of(
        weights,
        {name: None if b is None else [row[None] for row in b.chunk(attention.heads)] for name, b in biases.items()},
        dict.fromkeys("qkvo", 1),
        options={
            "activation": attention.activation,
            "causal": attention.causal,
            "temperature": attention.temperature,
        },
    )
