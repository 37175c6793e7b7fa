"""Tiny Hugging Face models in float64 as their configurations make them: default attention, dropout, training mode."""

from __future__ import annotations

import torch
import transformers
from torch import Tensor, nn
from transformers import BertConfig, GPT2Config, LlamaConfig, ViTConfig

from tests.curvature.networks import LENGTH, VOCAB, WIDTH, scrambled, tokens
from tests.variants import DOUBLE, randn

transformers.logging.set_verbosity_error()

_LAYERS = {"hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 3}


def gpt2(**options) -> nn.Module:
    sizes = {"vocab_size": VOCAB, "n_positions": LENGTH + 2, "n_embd": WIDTH, "n_layer": 2, "n_head": 2, "n_inner": 3}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return scrambled(transformers.GPT2LMHeadModel(GPT2Config(**{**sizes, **ends, **options})).to(DOUBLE))


class AroundConv1D(nn.Module):
    """LoRA as one writes it by hand: no `weight` of its own."""

    def __init__(self, base: nn.Module, rank: int = 2) -> None:
        super().__init__()
        self.base = base
        inputs, outputs = base.weight.shape
        self.lora_a, self.lora_b = (nn.Parameter(torch.zeros(size)) for size in ((inputs, rank), (rank, outputs)))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.lora_a @ self.lora_b


def gpt2_with_lora(**options) -> nn.Module:
    """GPT-2 with LoRA around every c_attn."""
    model = gpt2(**options)
    for block in model.transformer.h:
        block.attn.c_attn = AroundConv1D(block.attn.c_attn)
    return scrambled(model.to(DOUBLE))


def gpt_neox() -> nn.Module:
    """q, k, v of one head after those of another."""
    config = transformers.GPTNeoXConfig(
        vocab_size=VOCAB, max_position_embeddings=8, rotary_pct=1.0, bos_token_id=0, eos_token_id=0, **_LAYERS
    )
    return scrambled(transformers.GPTNeoXForCausalLM(config).to(DOUBLE))


def bloom() -> nn.Module:
    config = transformers.BloomConfig(
        vocab_size=VOCAB, hidden_size=WIDTH, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return scrambled(transformers.BloomForCausalLM(config).to(DOUBLE))


def falcon() -> nn.Module:
    """Four heads in two groups: the queries of a group, its key, its value, then the next group."""
    sizes = {**_LAYERS, "hidden_size": 8, "num_attention_heads": 4, "num_kv_heads": 2}
    config = transformers.FalconConfig(
        vocab_size=VOCAB, new_decoder_architecture=True, ffn_hidden_size=3, bos_token_id=0, eos_token_id=0, **sizes
    )
    return scrambled(transformers.FalconForCausalLM(config).to(DOUBLE))


def llama() -> nn.Module:
    """Grouped queries: four heads, two of keys and values."""
    sizes = {**_LAYERS, "hidden_size": 8, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=VOCAB, max_position_embeddings=8, attention_dropout=0.1, **sizes)
    return scrambled(transformers.LlamaForCausalLM(config).to(DOUBLE))


def bert_config(**options) -> BertConfig:
    return BertConfig(vocab_size=VOCAB, max_position_embeddings=LENGTH + 2, **{**_LAYERS, **options})


def masked_bert() -> nn.Module:
    return scrambled(transformers.BertForMaskedLM(bert_config()).to(DOUBLE))


def classifying_bert(**options) -> nn.Module:
    return scrambled(transformers.BertForSequenceClassification(bert_config(**{"num_labels": 3, **options})).to(DOUBLE))


def vit() -> nn.Module:
    config = ViTConfig(image_size=4, patch_size=2, num_channels=1, num_labels=3, hidden_dropout_prob=0.1, **_LAYERS)
    return scrambled(transformers.ViTForImageClassification(config).to(DOUBLE))


def images(batch: int = 2, seed: int = 0) -> Tensor:
    return randn(batch, 1, 4, 4, seed=seed)


def padded(batch: int = 3, length: int = LENGTH + 1, seed: int = 0) -> dict[str, Tensor]:
    """Sequences of different lengths, padded on the right; the padding, and one more token, without a loss."""
    ids = tokens(batch, length, seed)
    mask = (torch.arange(length) < length - torch.arange(batch)[:, None]).long()
    labels = ids.masked_fill(mask == 0, -100)
    labels[0, 1] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}
