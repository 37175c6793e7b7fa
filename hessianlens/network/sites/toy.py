"""The last attention layer of `hessianlens.models.Transformer`."""

from __future__ import annotations

from torch import Tensor, nn

from hessianlens.attention.layer import MultiHeadAttention
from hessianlens.models.adapters.batches import inputs_of
from hessianlens.models.attention import Attention
from hessianlens.models.block import Block
from hessianlens.models.transformer import Transformer
from hessianlens.network.sites.site import AttentionSite, Behind, Storage, heads_of, with_ones
from hessianlens.problems import Batch


def toy_site(model: nn.Module, batch: Batch) -> AttentionSite | None:
    """The site, for two query-key matrices a head; None for any other model."""
    if not isinstance(model, Transformer) or len(model.blocks) == 0:
        return None
    last, block = len(model.blocks) - 1, model.blocks[-1]
    assert isinstance(block, Block)
    attention = block.attention
    if attention.query_key != "dual":
        return None
    inputs = inputs_of(batch)
    residual = model.residual(inputs["tokens"] if isinstance(inputs, dict) else inputs)
    X = block.attention_input(residual)
    storage = Storage(attention.heads, transposed=False)
    layer, biased = toy_heads(attention, storage)
    shift = 0 if attention.b_O is None else attention.b_O

    def narrowed(positions: Tensor | slice) -> Behind:
        entering = residual[:, positions]
        return lambda F: model.unembed(block.join(F + shift, entering))

    tokens = with_ones(X) if biased else X
    return AttentionSite(f"layer{last}.attn", layer, tokens, narrowed(slice(None)), storage, biased, narrowed=narrowed)


def toy_heads(attention: Attention, storage: Storage) -> tuple[MultiHeadAttention, frozenset[str]]:
    """The heads of an attention module, and which of q, k and v have a bias."""
    return heads_of(
        storage,
        {name: getattr(attention, f"W_{name.upper()}") for name in "qkvo"},
        {name: getattr(attention, f"b_{name.upper()}") for name in "qkv"},
        activation=attention.activation,
        causal=attention.causal,
        temperature=attention.temperature,
    )
