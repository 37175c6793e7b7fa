"""Tiny Hugging Face models by name, and saved ones with a tokenizer that was made here."""

from __future__ import annotations

from pathlib import Path

import tokenizers
import torch
import transformers

WORDS = ["[pad]", "[unk]", "[mask]", "the", "cat", "dog", "sat", "on", "mat", "and", "ran", "away"]
_SIZES = "hidden_size=8&num_hidden_layers=1&num_attention_heads=2&intermediate_size=6"
GPT2 = "config:gpt2?n_layer=1&n_embd=8&n_head=2&n_inner=6&n_positions=16&vocab_size=12&bos_token_id=0&eos_token_id=0"
BERT = f"config:bert?{_SIZES}&vocab_size=12&max_position_embeddings=16"
LLAMA = f"config:llama?{_SIZES}&vocab_size=12&max_position_embeddings=16"
VIT = f"config:vit?{_SIZES}&image_size=4&patch_size=2&num_channels=1&num_labels=3"
T5 = "config:t5?d_model=8&d_kv=4&num_heads=2&d_ff=6&num_layers=1&vocab_size=12"


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    model = tokenizers.models.WordLevel({word: k for k, word in enumerate(WORDS)}, unk_token="[unk]")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="[unk]", pad_token="[pad]", mask_token="[mask]"
    )


def saved(folder: Path, model: torch.nn.Module, with_tokenizer: bool = True) -> str:
    """The folder of a saved model."""
    model.save_pretrained(folder)
    if with_tokenizer:
        tokenizer().save_pretrained(folder)
    return str(folder)
