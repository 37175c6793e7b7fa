"""The last attention layer of GPT-2-like models: packed or separate projections, learned positions, causal softmax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from hessianlens.models.adapters.batches import inputs_of
from hessianlens.models.discovery.storage import is_conv1d
from hessianlens.network.sites.hooks import entering, with_output
from hessianlens.network.sites.site import AttentionSite, Storage, heads_of, with_ones
from hessianlens.problems import Batch


def gpt2_site(model: nn.Module, batch: Batch) -> AttentionSite | None:
    """The site of a model whose blocks have ``attn.c_attn`` and ``attn.c_proj`` (GPT-2, nanoGPT); None for others."""
    blocks = _blocks(model)
    if blocks is None:
        return None
    last = len(blocks) - 1
    attention: Any = blocks[last].attn
    storage = _storage(attention)
    if storage is None:
        return None
    axis = 0 if storage.transposed else 1
    q, k, v = attention.c_attn.weight.chunk(3, dim=axis)
    bias = attention.c_attn.bias
    biases = dict(zip("qkv", (None,) * 3 if bias is None else bias.chunk(3), strict=True))
    inputs = inputs_of(batch)
    X, padding = entering(model, attention, inputs).tokens, _padding(inputs)
    layer, biased = heads_of(
        storage, {"q": q, "k": k, "v": v, "o": attention.c_proj.weight}, biases, causal=True, mask=padding
    )
    shift = 0 if attention.c_proj.bias is None else attention.c_proj.bias

    def behind(F: Tensor) -> Tensor:
        return with_output(model, attention, inputs, F + shift)

    return AttentionSite(f"layer{last}.attn", layer, with_ones(X) if biased else X, behind, storage, biased)


def _blocks(model: nn.Module) -> nn.ModuleList | None:
    inner = getattr(model, "transformer", model)
    blocks = getattr(inner, "h", None)
    if isinstance(inner, nn.ModuleDict) and "h" in inner:
        blocks = inner["h"]
    if not isinstance(blocks, nn.ModuleList) or len(blocks) == 0:
        return None
    attention = getattr(blocks[-1], "attn", None)
    return blocks if hasattr(attention, "c_attn") and hasattr(attention, "c_proj") else None


def _storage(attention: Any) -> Storage | None:
    """How two ``nn.Linear`` or two ``Conv1D`` hold the projections; None for other sizes and modules, such as LoRA."""
    heads = next((n for n in (getattr(attention, a, None) for a in ("num_heads", "n_head")) if n), None)
    both = (attention.c_attn, attention.c_proj)
    transposed = all(isinstance(module, nn.Linear) for module in both)
    if not isinstance(heads, int) or not (transposed or all(is_conv1d(module) for module in both)):
        return None
    weights = [module.weight.T if transposed else module.weight for module in both]
    fits = weights[0].shape[1] == 3 * weights[1].shape[0] and weights[1].shape[0] % heads == 0
    return Storage(heads, transposed) if fits else None


def _padding(inputs: object) -> Tensor | None:
    """Keys that may be seen, (B, L, L), from an attention mask."""
    mask = inputs.get("attention_mask") if isinstance(inputs, Mapping) else None
    if mask is None:
        return None
    return (mask != 0)[:, None, :].expand(-1, mask.shape[1], -1)
