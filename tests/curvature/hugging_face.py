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
