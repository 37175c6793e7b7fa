"""The last attention layer of LLaMA-like models: rotary positions, shared keys and values, causal softmax."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from hessianlens.attention.rotary import RotaryAttention
from hessianlens.models.adapters.batches import inputs_of
from hessianlens.network.sites.hooks import Entering, entering, with_output
from hessianlens.network.sites.site import AttentionSite, Storage, heads_of, with_ones
from hessianlens.problems import Batch

_PROJECTIONS = {name: f"{name}_proj" for name in "qkvo"}


def llama_site(model: nn.Module, batch: Batch) -> AttentionSite | None:
    """The site of a model whose ``self_attn`` modules have four ``nn.Linear`` and rotary positions; None for others.

    That is LLaMA, Mistral, Qwen2 and their like, with or without biases and with shared keys and values.
    """
    layers = _layers(model)
    if layers is None:
        return None
    last = len(layers) - 1
    attention: Any = layers[last].self_attn
    storage = _storage(attention)
    if storage is None:
        return None
    inputs = inputs_of(batch)
    seen = entering(model, attention, inputs)
    options = _options(attention, seen)
    if options is None:
        return None
    projections = {name: getattr(attention, own) for name, own in _PROJECTIONS.items()}
    layer, biased = heads_of(
        storage,
        {name: linear.weight for name, linear in projections.items()},
        {name: projections[name].bias for name in "qkv"},
        RotaryAttention,
        **options,
    )
    shift = 0 if projections["o"].bias is None else projections["o"].bias
    X = with_ones(seen.tokens) if biased else seen.tokens

    def behind(F: Tensor) -> Tensor:
        return with_output(model, attention, inputs, F + shift)

    return AttentionSite(f"layer{last}.attn", layer, X, behind, storage, biased)


def _layers(model: nn.Module) -> nn.ModuleList | None:
    layers = getattr(getattr(model, "model", model), "layers", None)
    if not isinstance(layers, nn.ModuleList) or len(layers) == 0:
        return None
    attention = getattr(layers[-1], "self_attn", None)
    found = all(isinstance(getattr(attention, own, None), nn.Linear) for own in _PROJECTIONS.values())
    return layers if found else None


def _storage(attention: Any) -> Storage | None:
    """Numbers of heads, from the widths of the projections; None if they do not fit together."""
    width = getattr(attention, "head_dim", None)
    if not isinstance(width, int) or width < 2 or width % 2:
        return None
    heads, rest = divmod(attention.q_proj.out_features, width)
    kv_heads, kv_rest = divmod(attention.k_proj.out_features, width)
    fits = (
        rest == kv_rest == 0
        and kv_heads > 0
        and heads % kv_heads == 0
        and attention.v_proj.out_features == attention.k_proj.out_features
        and attention.o_proj.in_features == attention.q_proj.out_features
    )
    return Storage(heads, transposed=True, kv_heads=kv_heads) if fits else None


def _options(attention: Any, seen: Entering) -> dict[str, Any] | None:
    """Rotary tables, temperature and mask of the heads; None if something is not as expected."""
    scaling = getattr(attention, "scaling", None)
    tables = seen.arguments.get("position_embeddings")
    if not isinstance(scaling, float) or scaling <= 0 or not isinstance(tables, tuple) or len(tables) != 2:
        return None
    if any(not isinstance(t, Tensor) or t.shape[-1] != attention.head_dim or t.ndim != 3 for t in tables):
        return None
    cos, sin = (table.detach().to(seen.tokens.dtype) for table in tables)
    mask = _visible(seen.arguments.get("attention_mask"))
    return {
        "cos": cos,
        "sin": sin,
        "temperature": 1 / (scaling * math.sqrt(attention.head_dim)),
        "causal": mask is None,
        "mask": mask,
    }


def _visible(mask: object) -> Tensor | None:
    """Keys that may be seen, (B, L, L), from the mask (B, 1, L, L) that reaches the module; None: plain causal order.

    It already holds causal order, padding and a sliding window.
    """
    if not isinstance(mask, Tensor) or mask.ndim != 4 or mask.shape[1] != 1:
        return None
    seen = mask[:, 0]
    return seen if seen.dtype == torch.bool else seen > torch.finfo(seen.dtype).min / 2
