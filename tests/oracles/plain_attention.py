"""Attention written out, for autograd to differentiate: everything of size L x S is formed."""

import math

import torch
from torch import Tensor


def plain_attention(
    q, k, v, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, window=None, softcap=None, activation=None
):
    if enable_gqa:
        k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    row, column = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
    seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
    if is_causal:
        seen = seen & (column <= row)
    if window is not None:
        seen = seen & (column >= row - window[0]) & (column <= row + window[1])
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        seen = seen & attn_mask
    elif attn_mask is not None:
        seen, scores = seen & ~torch.isneginf(attn_mask), scores + attn_mask.masked_fill(torch.isneginf(attn_mask), 0)
    return weights(scores, seen.expand(scores.shape), activation) @ v


def weights(scores: Tensor, seen: Tensor, activation) -> Tensor:
    if activation is not None:
        flat = scores.reshape(-1, *scores.shape[-2:])
        return activation.value(flat, seen.reshape(flat.shape)).reshape(scores.shape)
    powers = torch.where(seen, (scores - scores.detach().amax(-1, keepdim=True)).exp(), 0)
    total = powers.sum(-1, keepdim=True)
    return powers / torch.where(total == 0, 1, total)
