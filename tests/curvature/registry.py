"""Models, losses and data over which every property of the matrix-free operators is tested."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

import hessianlens as hl
from hessianlens.problems import Problem
from tests.curvature import hugging_face, networks
from tests.curvature.networks import LENGTH, VOCAB, WIDTH, pairs, tokens
from tests.oracles.autograd import DenseHessian
from tests.oracles.network import Batch, Total, dense_network_hessian
from tests.variants import randn


@dataclass(frozen=True)
class Case:
    """A model with its data and loss, the same loss written down by hand, and where some blocks lie.

    Attributes:
        model: Makes the model.
        data: Makes the batches.
        loss: What `hessianlens.problem` is told.
        total: The loss of all batches from all outputs.
        blocks: Where some blocks lie, in model order: a parameter, ``parameter:axis:start:stop``, or
            ``parameter:axis:positions`` with commas between these.
        options: Further arguments of `hessianlens.problem`.
        attention: Hugging Face attention of the oracle.
        relative: Agreement asked for.
    """

    model: Callable[[], nn.Module]
    data: Callable[[], list[Batch]]
    loss: Any
    total: Total
    blocks: dict[str, str]
    options: dict[str, Any] | None = None
    attention: str = "eager"
    relative: float = 1e-9

    def problem(self, **options: Any) -> Problem:
        return hl.problem(self.model(), self.data(), self.loss, **{**(self.options or {}), **options})

    def dense(self) -> DenseHessian:
        model = self.model()
        axes = {name: p.ndim for name, p in model.named_parameters()}
        pieces = {}
        for block, place in self.blocks.items():
            name, *cut = place.split(":")
            index = [slice(None)] * axes[name]
            if len(cut) == 2:
                index[int(cut[0])] = [int(position) for position in cut[1].split(",")]
            elif cut:
                axis, start, stop = map(int, cut)
                index[axis] = slice(start, stop)
            pieces[block] = (name, tuple(index))
        return dense_network_hessian(model, self.data(), self.total, pieces, self.attention)


@cache
def problem_of(name: str) -> Problem:
    return CASES[name].problem()


@cache
def dense_of(name: str) -> DenseHessian:
    return CASES[name].dense()


# --- losses by hand --------------------------------------------------------------------------------------------------


def _targets(batch: Batch) -> Tensor:
    return batch["labels"] if isinstance(batch, dict) else batch[1]


def cross_entropy(outputs: Sequence[Tensor], batches: Sequence[Batch]) -> Tensor:
    logits = torch.cat([o.flatten(0, -2) for o in outputs])
    return nnf.cross_entropy(logits, torch.cat([_targets(b).flatten() for b in batches]))


def next_token(outputs: Sequence[Tensor], batches: Sequence[Batch]) -> Tensor:
    logits = torch.cat([o[:, :-1].flatten(0, 1) for o in outputs])
    return nnf.cross_entropy(logits, torch.cat([_targets(b)[:, 1:].flatten() for b in batches]))


def square(outputs: Sequence[Tensor], batches: Sequence[Batch]) -> Tensor:
    flat = [torch.cat([t.flatten() for t in group]) for group in (outputs, [_targets(b) for b in batches])]
    return nnf.mse_loss(*flat)


def square_by_sequence(outputs: Sequence[Tensor], batches: Sequence[Batch]) -> Tensor:
    return torch.cat([(o - _targets(b)).pow(2).flatten(1).sum(1) for o, b in zip(outputs, batches, strict=True)]).mean()


def bce_sum(outputs: Sequence[Tensor], batches: Sequence[Batch]) -> Tensor:
    pairs = zip(outputs, batches, strict=True)
    return sum(nnf.binary_cross_entropy_with_logits(o, _targets(b), reduction="sum") for o, b in pairs)


def contrast(outputs: Tensor, batch: Batch) -> Tensor:
    """A user's loss that compares the sequences of a batch with each other."""
    return torch.logsumexp((outputs @ outputs.T).flatten(), 0) + outputs.pow(3).sum()


# --- data ------------------------------------------------------------------------------------------------------------


def labelled(**inputs: Tensor) -> list[Batch]:
    return [inputs]


# --- blocks ----------------------------------------------------------------------------------------------------------


def _toy(layer: int, *roles: str) -> dict[str, str]:
    places = {"q": "W_Q", "k": "W_K", "v": "W_V", "o": "W_O", "q.bias": "b_Q", "k.bias": "b_K", "v.bias": "b_V"}
    return {f"layer{layer}.attn.{role}": f"blocks.{layer}.attention.{places[role]}" for role in roles}


def _toy_case(blocks: dict[str, str], **options: Any) -> Case:
    return Case(lambda: networks.toy(**options), lambda: pairs(2), "cross_entropy", cross_entropy, blocks)


_MLP = {"0.weight": "0.weight", "0.bias": "0.bias", "3.weight": "3.weight", "3.bias": "3.bias"}
_GPT2 = {
    "embed": "transformer.wte.weight",
    "layer0.attn.k": f"transformer.h.0.attn.c_attn.weight:1:{WIDTH}:{2 * WIDTH}",
    "layer1.attn.q": f"transformer.h.1.attn.c_attn.weight:1:0:{WIDTH}",
    "layer1.attn.v.bias": f"transformer.h.1.attn.c_attn.bias:0:{2 * WIDTH}:{3 * WIDTH}",
    "layer1.mlp.in": "transformer.h.1.mlp.c_fc.weight",
    "norm_final": "transformer.ln_f.weight",
}
_NANO = {name: place.replace("c_attn.weight:1", "c_attn.weight:0") for name, place in _GPT2.items()}
_NEOX = "gpt_neox.layers.0.attention.query_key_value"
_BLOOM = "transformer.h.0.self_attention.query_key_value"
_FALCON = "transformer.h.0.self_attention.query_key_value"
_LORA = {
    "layer0.attn.qkv.lora_a": "transformer.h.0.attn.c_attn.lora_a",
    "layer0.attn.v.lora_b": f"transformer.h.0.attn.c_attn.lora_b:1:{2 * WIDTH}:{3 * WIDTH}",
    "layer0.attn.k": f"transformer.h.0.attn.c_attn.base.weight:1:{WIDTH}:{2 * WIDTH}",
    "layer1.attn.q.lora_b": f"transformer.h.1.attn.c_attn.lora_b:1:0:{WIDTH}",
    "layer1.attn.q": f"transformer.h.1.attn.c_attn.base.weight:1:0:{WIDTH}",
    "layer1.attn.o": "transformer.h.1.attn.c_proj.weight",
}
_BERT = "bert.encoder.layer.0."
_VIT = "vit.layers.0."

CASES: dict[str, Case] = {
    "MLP, cross-entropy": Case(
        networks.mlp, lambda: pairs(5, classes=3, length=None), "cross_entropy", cross_entropy, _MLP
    ),
    "MLP, square by sequence, uneven batches": Case(
        networks.mlp,
        lambda: [(randn(n, 3, seed=n), randn(n, 3, seed=10 + n)) for n in (3, 1, 2)],
        "square",
        square_by_sequence,
        _MLP,
        {"reduction": "sequence"},
    ),
    "MLP, bce, summed": Case(
        networks.mlp,
        lambda: [(randn(n, 3, seed=n), (randn(n, 3, seed=10 + n) > 0).double()) for n in (3, 2)],
        "bce",
        bce_sum,
        _MLP,
        {"reduction": "sum"},
    ),
    "toy": _toy_case({"unembed": "W_U", **_toy(0, "q", "v", "k.bias"), "layer0.mlp.in": "blocks.0.mlp.W_in"}),
    "toy, two layers, two heads, pre-norm, sigmoid": _toy_case(
        {"pos": "position_embedding", **_toy(0, "q", "v.bias"), **_toy(1, "k"), "norm_final": "norm_final.weight"},
        layers=2,
        heads=2,
        norm="pre",
        attention="sigmoid",
    ),
    "toy, two heads, post-norm, linear": _toy_case(
        {"layer0.norm1": "blocks.0.norm1.weight", **_toy(0, "q", "o"), "layer0.mlp.out": "blocks.0.mlp.W_out"},
        heads=2,
        norm="post",
        attention="linear",
    ),
    "toy, two layers, by head, square": Case(
        lambda: networks.toy(layers=2, heads=2),
        lambda: [(tokens(2), randn(2, LENGTH, VOCAB, seed=3))],
        "square",
        square,
        {
            "layer0.attn.q.head1": f"blocks.0.attention.W_Q:1:{WIDTH // 2}:{WIDTH}",
            "layer0.attn.o.head0": f"blocks.0.attention.W_O:0:0:{WIDTH // 2}",
            "layer0.attn.v.head0.bias": f"blocks.0.attention.b_V:0:0:{WIDTH // 2}",
            "layer1.attn.k.head0": f"blocks.1.attention.W_K:1:0:{WIDTH // 2}",
            "layer1.mlp.in": "blocks.1.mlp.W_in",
        },
        {"heads": True},
    ),
    "GPT-2": Case(
        hugging_face.gpt2, lambda: [hugging_face.padded(2), hugging_face.padded(1, 4, seed=7)], None, next_token, _GPT2
    ),
    "GPT-2, LoRA around c_attn": Case(
        hugging_face.gpt2_with_lora, lambda: [hugging_face.padded(2)], None, next_token, _LORA
    ),
    "GPT-NeoX, interleaved": Case(
        hugging_face.gpt_neox,
        lambda: [hugging_face.padded(2)],
        None,
        next_token,
        {
            "layer0.attn.q": f"{_NEOX}.weight:0:0,1,6,7",
            "layer0.attn.k": f"{_NEOX}.weight:0:2,3,8,9",
            "layer0.attn.v": f"{_NEOX}.weight:0:4,5,10,11",
            "layer0.attn.q.bias": f"{_NEOX}.bias:0:0,1,6,7",
            "layer0.mlp.in": "gpt_neox.layers.0.mlp.dense_h_to_4h.weight",
        },
    ),
    "BLOOM, interleaved, with heads": Case(
        hugging_face.bloom,
        lambda: [hugging_face.padded(2)],
        None,
        next_token,
        {
            "layer0.attn.q": f"{_BLOOM}.weight:0:0,1,6,7",
            "layer0.attn.k.head1": f"{_BLOOM}.weight:0:8:10",
            "layer0.attn.v": f"{_BLOOM}.weight:0:4,5,10,11",
            "layer0.attn.v.bias": f"{_BLOOM}.bias:0:4,5,10,11",
        },
        {"heads": True},
    ),
    "Falcon, groups of queries": Case(
        hugging_face.falcon,
        lambda: labelled(input_ids=tokens(), labels=tokens()),
        "model",
        next_token,
        {
            "layer0.attn.q": f"{_FALCON}.weight:0:0,1,2,3,8,9,10,11",
            "layer0.attn.v": f"{_FALCON}.weight:0:6,7,14,15",
            "layer0.attn.o": "transformer.h.0.self_attention.dense.weight",
        },
    ),
    "Llama, grouped queries": Case(
        hugging_face.llama,
        lambda: labelled(input_ids=tokens(), labels=tokens()),
        "model",
        next_token,
        {
            "layer0.attn.q.head3": "model.layers.0.self_attn.q_proj.weight:0:6:8",
            "layer0.attn.k.head1": "model.layers.0.self_attn.k_proj.weight:0:2:4",
            "layer0.mlp.gate": "model.layers.0.mlp.gate_proj.weight",
            "layer0.norm1": "model.layers.0.input_layernorm.weight",
        },
        {"heads": True},
    ),
    "BERT, masked": Case(
        hugging_face.masked_bert,
        lambda: [hugging_face.padded(2)],
        None,
        cross_entropy,
        {
            "embed": "bert.embeddings.word_embeddings.weight",
            "layer0.attn.q": _BERT + "attention.self.query.weight",
            "layer0.attn.v.bias": _BERT + "attention.self.value.bias",
            "layer0.mlp.out": _BERT + "output.dense.weight",
            "unembed.bias": "cls.predictions.bias",
        },
    ),
    "BERT, classes": Case(
        hugging_face.classifying_bert,
        lambda: labelled(input_ids=tokens(3), labels=torch.tensor([2, 0, 1])),
        "cross_entropy",
        cross_entropy,
        {
            "layer0.attn.k": _BERT + "attention.self.key.weight",
            "layer0.attn.o": _BERT + "attention.output.dense.weight",
            "pool": "bert.pooler.dense.weight",
            "unembed": "classifier.weight",
        },
    ),
    "ViT": Case(
        hugging_face.vit,
        lambda: labelled(pixel_values=hugging_face.images(3), labels=torch.tensor([2, 0, 1])),
        None,
        cross_entropy,
        {
            "embed.patch": "vit.embeddings.patch_embeddings.projection.weight",
            "layer0.attn.q": _VIT + "attention.q_proj.weight",
            "layer0.mlp.in": _VIT + "mlp.fc1.weight",
            "unembed": "classifier.weight",
        },
        attention="sdpa",  # its eager attention computes in float32 whatever the dtype
    ),
    "T5": Case(
        hugging_face.t5,
        lambda: [hugging_face.sentences(2), hugging_face.sentences(1, seed=5)],
        None,
        cross_entropy,
        {
            "embed": "shared.weight",
            "encoder.layer0.attn.q": "encoder.block.0.layer.0.SelfAttention.q.weight",
            "encoder.layer0.attn.relative_bias": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
            "decoder.layer0.cross.k": "decoder.block.0.layer.1.EncDecAttention.k.weight",
            "decoder.layer0.mlp.out": "decoder.block.0.layer.2.DenseReluDense.wo.weight",
        },
    ),
    "BART": Case(
        hugging_face.bart,
        lambda: [hugging_face.sentences(2)],
        "model",
        cross_entropy,
        {
            "encoder.layer0.attn.v": "model.encoder.layers.0.self_attn.v_proj.weight",
            "decoder.layer0.attn.k": "model.decoder.layers.0.self_attn.k_proj.weight",
            "decoder.layer0.cross.q": "model.decoder.layers.0.encoder_attn.q_proj.weight",
        },
    ),
    "nn.TransformerEncoder, square": Case(
        networks.torch_encoder,
        lambda: [(randn(2, LENGTH, WIDTH, seed=1), randn(2, LENGTH, WIDTH, seed=2))],
        "square",
        square,
        {
            "layer0.attn.q": f"layers.0.self_attn.in_proj_weight:0:0:{WIDTH}",
            "layer0.mlp.in": "layers.0.linear1.weight",
            "layer1.attn.v": f"layers.1.self_attn.in_proj_weight:0:{2 * WIDTH}:{3 * WIDTH}",
            "layer1.attn.k.bias": f"layers.1.self_attn.in_proj_bias:0:{WIDTH}:{2 * WIDTH}",
        },
    ),
    "nanoGPT": Case(networks.nano_gpt, lambda: pairs(2), "cross_entropy", cross_entropy, _NANO),
    "pooled encoder, loss between sequences": Case(
        networks.pooled_encoder,
        lambda: [tokens(3)],
        contrast,
        lambda outputs, batches: contrast(outputs[0], batches[0]),
        {
            "layer0.attn.q": f"encoder.self_attn.in_proj_weight:0:0:{WIDTH}",
            "layer0.attn.o": "encoder.self_attn.out_proj.weight",
            "layer0.mlp.out": "encoder.linear2.weight",
        },
    ),
}
