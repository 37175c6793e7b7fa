"""Layers, models and data of the golden numbers: small, random, and built from the public names alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

import hessianlens as hl

DOUBLE = torch.float64
VOCAB, WIDTH, LENGTH = 5, 4, 4


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


# --- one attention layer ---------------------------------------------------------------------------------------------


def self_attention(d_k: int = 3, seed: int = 1, **options: Any) -> hl.SelfAttention:
    W_Q, W_K, W_V = randn(WIDTH, d_k, seed=seed), randn(WIDTH, d_k, seed=seed + 10), randn(WIDTH, 3, seed=seed + 20)
    return hl.SelfAttention(W_Q / 2, W_K / 2, W_V, **options)


def rotary(**options: Any) -> hl.attention.RotaryAttention:
    frequencies = 20.0 ** (-torch.arange(0, 4, 2, dtype=DOUBLE) / 4)
    angles = torch.arange(5, dtype=DOUBLE)[:, None] * torch.cat([frequencies, frequencies])
    weights = [randn(*shape, seed=30 + k) / 2 for k, shape in enumerate(((4, 4), (4, 4), (4, 2), (2, 3)))]
    return hl.attention.RotaryAttention(*weights, angles.cos(), angles.sin(), **options)


def boolean_mask() -> Tensor:
    mask = torch.ones(5, 5, dtype=torch.bool).tril(1)
    mask[2] = False  # a token with nothing to attend to
    return mask


def additive_bias() -> Tensor:
    bias = randn(5, 5, seed=4)
    bias[1, 2:] = -math.inf
    return bias


def row_function(row: Tensor) -> Tensor:
    """Softmax weights times a running sum: its derivative is not symmetric."""
    return torch.softmax(2 * row, -1) * torch.cumsum(torch.tanh(row), -1)


def layers() -> dict[str, Callable[[], Any]]:
    """By name: every activation, mask and parameterisation."""

    def with_activation(name: str) -> Callable[[], Any]:
        return lambda: self_attention(activation=name)

    factored = [(4, 3), (4, 3), (4, 2), (2, 3)]
    single = (randn(4, 4, seed=7) / 2, randn(4, 3, seed=8))
    return {
        **{f"activation {name}": with_activation(name) for name in hl.attention.activations.ACTIVATIONS},
        "activation of a user": lambda: self_attention(activation=row_function),
        "causal": lambda: self_attention(causal=True),
        "temperature": lambda: self_attention(temperature=0.6),
        "boolean mask with an empty row": lambda: self_attention(mask=boolean_mask()),
        "causal with additive bias": lambda: self_attention(bias=additive_bias(), causal=True, activation="sigmoid"),
        "single matrix": lambda: hl.SingleMatrixAttention(*single, causal=True),
        "factored values": lambda: hl.attention.FactoredValueAttention(*(randn(*s, seed=9) / 2 for s in factored)),
        "rotary": lambda: rotary(causal=True),
        "two heads": lambda: hl.MultiHeadAttention(
            [self_attention(2), self_attention(3, seed=2, activation="sigmoid", causal=True)]
        ),
    }


def cubic(F: Tensor) -> Tensor:
    """A loss that couples the tokens of a sequence."""
    return torch.logsumexp((F @ F.T).reshape(-1), 0) + (F**3).sum()


def losses(X: Tensor) -> dict[str, Any]:
    """By name, as keyword arguments of `hl.attention_hessian`, for outputs of width 3."""
    places = (*X.shape[:-1], 3)
    classes = torch.randint(3, places[:-1], generator=torch.Generator().manual_seed(10))
    classes[..., 1] = -100
    return {
        "square": {"loss": hl.SquareLoss(randn(*places, seed=6))},
        "square sum": {"loss": hl.SquareLoss(randn(*places, seed=6), reduction="sum")},
        "cross-entropy": {"loss": hl.CrossEntropyLoss(classes)},
        "custom, coupling tokens": {"loss": hl.losses.CustomLoss(cubic)},
        "custom, by token": {"loss": hl.losses.CustomLoss(lambda f: torch.exp(f).sum() * f[0], couples="none")},
        "given, low rank": {
            "grad": randn(*places, seed=11),
            "curvature": hl.losses.LowRankTokenCurvature(randn(*places, 2, seed=12)),
        },
        "given, coupled low rank": {
            "grad": randn(*places, seed=11),
            "curvature": hl.losses.LowRankCoupledCurvature(randn(*places, 2, seed=12)),
        },
    }


# --- models ----------------------------------------------------------------------------------------------------------


def randomised(model: nn.Module, dtype: torch.dtype = DOUBLE) -> nn.Module:
    """Every parameter random, gains of norms around one."""
    model = model.to(dtype)
    with torch.no_grad():
        for k, (name, parameter) in enumerate(model.named_parameters()):
            gain = parameter.ndim == 1 and name.endswith("weight")
            parameter.copy_(0.6 * randn(*parameter.shape, seed=k) + float(gain))
    return model


def tokens(batch: int = 2, length: int = LENGTH, seed: int = 0) -> Tensor:
    return torch.randint(VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


def labelled(*sizes: int) -> list[tuple[Tensor, Tensor]]:
    """Batches of tokens and classes; one target is ignored."""
    found = []
    for k, size in enumerate(sizes):
        targets = tokens(size, seed=60 + k)
        targets[0, 1] = -100
        found.append((tokens(size, seed=50 + k), targets))
    return found


def toy(dtype: torch.dtype = DOUBLE, **options: Any) -> nn.Module:
    sizes = {"d_model": WIDTH, "d_mlp": 3, "vocab": VOCAB, "context": LENGTH + 2}
    return randomised(hl.models.Transformer(**{**sizes, **options, "dtype": dtype}), dtype)


class HandWritten(nn.Module):
    """An embedding, `nn.MultiheadAttention`, an MLP, the mean over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.norm = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 3), nn.GELU(), nn.Linear(3, VOCAB))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        attended, _ = self.attention(x, x, x, need_weights=False)
        return self.mlp(self.norm(x + attended)).mean(1)


_HUGGING_FACE = {"hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 3}


def gpt2() -> nn.Module:
    import transformers

    sizes = {"vocab_size": VOCAB, "n_positions": LENGTH + 2, "n_embd": WIDTH, "n_layer": 2, "n_head": 2, "n_inner": 3}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    return randomised(transformers.GPT2LMHeadModel(config))


def llama() -> nn.Module:
    """Grouped queries, rotary positions, a gated MLP."""
    import transformers

    sizes = {**_HUGGING_FACE, "hidden_size": 8, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(vocab_size=VOCAB, max_position_embeddings=8, **sizes)
    return randomised(transformers.LlamaForCausalLM(config))


def bert() -> nn.Module:
    import transformers

    config = transformers.BertConfig(vocab_size=VOCAB, max_position_embeddings=LENGTH + 2, **_HUGGING_FACE)
    return randomised(transformers.BertForMaskedLM(config))


def padded() -> dict[str, Tensor]:
    """Sequences of different lengths, the padding without a loss."""
    ids = tokens(2, LENGTH, seed=5)
    mask = torch.ones_like(ids)
    mask[1, -1] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


@dataclass(frozen=True)
class Golden:
    """A model with data, a loss, and the blocks whose numbers are recorded.

    Attributes:
        model: Makes the model.
        data: Makes the data.
        loss: As for `hl.problem`.
        blocks: Diagonal blocks.
        pairs: Rows and columns of blocks off the diagonal, or of several blocks at once.
        options: Further arguments of `hl.problem`.
        rtol: Relative tolerance of its numbers.
        operators: Whether operators are recorded too, or norms alone.
    """

    model: Callable[[], nn.Module]
    data: Callable[[], Any]
    loss: Any
    blocks: tuple[str, ...]
    pairs: tuple[tuple[Any, Any], ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    rtol: float = 1e-9
    operators: bool = True


def _language(model: Callable[[], nn.Module], *blocks: str, **further: Any) -> Golden:
    return Golden(model, lambda: labelled(2), "cross_entropy", blocks, **further)


_Q0, _K0, _V0, _O0 = (f"layer0.attn.{name}" for name in "qkvo")

MODELS: dict[str, Golden] = {
    "toy, one layer, no norm, relu": _language(
        toy,
        *(_Q0, _K0, _V0, _O0, "layer0.attn.q.bias", "layer0.attn.k.bias", "layer0.mlp.in", "unembed", "embed"),
        pairs=((_Q0, _V0), (_V0, "layer0.mlp.out"), ([_Q0, _K0], [_Q0, _K0])),
    ),
    "toy, two layers, two heads, pre-norm, gelu": _language(
        lambda: toy(layers=2, heads=2, norm="pre", mlp_activation="gelu"),
        *("layer0.norm1", "layer1.attn.q", "layer1.attn.o", "norm_final", _Q0),
        pairs=(("layer0.mlp.in", "layer1.mlp.in"), ("layer1.attn.k", "layer1.attn.v")),
    ),
    "toy, three layers, no norm, relu": _language(
        lambda: toy(layers=3, attention_bias=False), "layer2.attn.k", "layer1.attn.v", "layer0.mlp.in"
    ),
    "toy, post-norm, sigmoid, square loss, two batches": Golden(
        lambda: toy(norm="post", attention="sigmoid", heads=2, mlp_activation="gelu"),
        lambda: [(tokens(2), randn(2, LENGTH, VOCAB)), (tokens(1, 3), randn(1, 3, VOCAB, seed=1))],
        "square",
        (_Q0, _O0, "layer0.norm2", "unembed"),
        ((_K0, _V0),),
    ),
    "toy, one matrix for queries and keys": _language(
        lambda: toy(query_key="single", causal=False, temperature=0.7), "layer0.attn.qk", _V0
    ),
    "toy, heads one by one": _language(
        lambda: toy(heads=2, mlp=False), f"{_Q0}.head1", f"{_O0}.head0", options={"heads": True}
    ),
    "toy, float32": _language(lambda: toy(torch.float32), _Q0, "layer0.mlp.out", rtol=1e-4),
    "GPT-2": Golden(
        gpt2,
        lambda: {"input_ids": tokens()},
        None,
        ("layer1.attn.q", "norm_final", "layer1.attn.k.bias", "layer0.mlp.out"),
        (("layer1.attn.q", "layer1.attn.o"),),
    ),
    "GPT-2, padded": Golden(gpt2, padded, None, ("layer1.attn.q", "layer1.mlp.in"), operators=False),
    "Llama": Golden(llama, lambda: {"input_ids": tokens()}, None, (_K0, "layer0.norm1", "layer0.mlp.gate", _Q0)),
    "BERT": Golden(bert, padded, None, (_Q0, _V0, "layer0.mlp.in", "layer0.norm2")),
    "nn.MultiheadAttention, written by hand": Golden(
        lambda: randomised(HandWritten()),
        lambda: [(tokens(3), torch.tensor([0, 3, 1]))],
        "cross_entropy",
        (_Q0, _V0, "layer0.mlp.in", "embed"),
    ),
    "nn.Sequential": Golden(
        lambda: randomised(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))),
        lambda: [(randn(6, 3, seed=50), torch.tensor([0, 1, 2, 0, 1, 2]))],
        "cross_entropy",
        ("0.weight", "2.weight", "0.bias"),
        (("0.weight", "2.weight"),),
    ),
}


@cache
def problem_of(name: str) -> Any:
    golden = MODELS[name]
    return hl.problem(golden.model(), golden.data(), golden.loss, **golden.options)
