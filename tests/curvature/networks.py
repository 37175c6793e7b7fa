"""Tiny networks in float64, every weight random, no bias or gain at its initial value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

import hessianlens as hl
from hessianlens.problems import Problem
from tests.variants import DOUBLE, randn

VOCAB, WIDTH, LENGTH = 5, 4, 4


def scrambled(model: nn.Module, seed: int = 0, size: float = 0.6) -> nn.Module:
    """Every parameter anew; gains of norms around one. In training mode, as a user would have it."""
    with torch.no_grad():
        for k, (name, parameter) in enumerate(model.named_parameters()):
            gain = parameter.ndim == 1 and name.endswith("weight")
            parameter.copy_(size * randn(*parameter.shape, seed=1000 * seed + k) + float(gain))
    return model.train()


def tokens(batch: int = 2, length: int = LENGTH, seed: int = 0) -> Tensor:
    return torch.randint(VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


def pairs(*sizes: int, classes: int = VOCAB, length: int | None = LENGTH) -> list[tuple[Tensor, Tensor]]:
    """Batches of tokens (or of vectors of length 3) and classes; one target is ignored."""
    found = []
    for k, size in enumerate(sizes):
        inputs = randn(size, 3, seed=50 + k) if length is None else tokens(size, length, seed=50 + k)
        shape = (size,) if length is None else (size, length)
        targets = torch.randint(classes, shape, generator=torch.Generator().manual_seed(60 + k))
        targets.view(-1)[1] = -100
        found.append((inputs, targets))
    return found


def mlp() -> nn.Module:
    layers = (nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.3), nn.Linear(4, 3))
    return scrambled(nn.Sequential(*layers).to(DOUBLE))


def toy(**options) -> hl.models.Transformer:
    sizes = {"d_model": WIDTH, "d_mlp": 3, "vocab": VOCAB, "context": LENGTH + 2, "mlp_activation": "gelu"}
    return scrambled(hl.models.Transformer(**{**sizes, "dtype": DOUBLE, **options}))


def toy_problem(
    *sizes: int, data: Any = None, loss: Any = "cross_entropy", given: Mapping[str, Any] | None = None, **options: Any
) -> Problem:
    """A toy Transformer with data and a loss.

    Args:
        sizes: Of batches of `pairs`; one of two sequences if there are none.
        data: Other data.
        loss: The loss.
        given: Further arguments of `hessianlens.problem`.
        options: Of the model.
    """
    return hl.problem(toy(**options), pairs(*(sizes or (2,))) if data is None else data, loss, **(given or {}))


def torch_encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 3, dropout=0.2, activation="gelu", batch_first=True)
    return scrambled(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(DOUBLE))


class PooledEncoder(nn.Module):
    """Whatever a user writes: embedding, one encoder layer, mean over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.encoder = nn.TransformerEncoderLayer(WIDTH, 2, 3, dropout=0.2, activation="gelu", batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.encoder(self.embedding(tokens)).mean(1)


def pooled_encoder() -> nn.Module:
    return scrambled(PooledEncoder().to(DOUBLE))


class NanoAttention(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.n_head = 2
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH, bias=bias)
        self.c_proj = nn.Linear(WIDTH, WIDTH, bias=bias)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (z.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for z in self.c_attn(x).chunk(3, -1))
        y = nnf.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.dropout(self.c_proj(y.transpose(1, 2).flatten(2)))


class NanoMLP(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.c_fc, self.c_proj = nn.Linear(WIDTH, 3, bias=bias), nn.Linear(3, WIDTH, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(nnf.gelu(self.c_fc(x)))


class NanoBlock(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(WIDTH), NanoAttention(bias)
        self.ln_2, self.mlp = nn.LayerNorm(WIDTH), NanoMLP(bias)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class NanoGPT(nn.Module):
    """Laid out, named and tied as nanoGPT is; returns logits and the loss it was not asked for."""

    def __init__(self, layers: int = 2, bias: bool = True) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(VOCAB, WIDTH),
                "wpe": nn.Embedding(LENGTH + 2, WIDTH),
                "drop": nn.Dropout(0.1),
                "h": nn.ModuleList(NanoBlock(bias) for _ in range(layers)),
                "ln_f": nn.LayerNorm(WIDTH),
            }
        )
        self.lm_head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.transformer["wte"].weight = self.lm_head.weight

    def forward(self, tokens: Tensor) -> tuple[Tensor, None]:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.transformer["drop"](self.transformer["wte"](tokens) + self.transformer["wpe"](places))
        for block in self.transformer["h"]:
            x = block(x)
        return self.lm_head(self.transformer["ln_f"](x)), None


def nano_gpt(**options) -> nn.Module:
    return scrambled(NanoGPT(**options).to(DOUBLE))
