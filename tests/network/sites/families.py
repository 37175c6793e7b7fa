"""Tiny language models of every family, two layers each, whose last attention has a closed form."""

from __future__ import annotations

from collections.abc import Callable

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as nnf

from tests.curvature.networks import nano_gpt, scrambled
from tests.models import test_discovery_zoo as zoo

transformers.logging.set_verbosity_error()

VOCABULARY, LENGTH = 7, 4
_ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 8,
    "intermediate_size": 6,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16,
    **_ENDS,
}
_TWO_HEADS = {
    **{name: size for name, size in _SIZES.items() if name != "num_key_value_heads"},
    "num_attention_heads": 2,
}
_SHORT = {"vocab_size": VOCABULARY, "n_positions": 16, "n_embd": 8, "n_layer": 2, "n_head": 2, **_ENDS}


def _model(
    kind: str, sizes: dict[str, object], head: str = "ForCausalLM", **changes: object
) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        torch.manual_seed(0)
        config = getattr(transformers, f"{kind}Config")(**{**sizes, **changes})
        return scrambled(getattr(transformers, f"{kind}{head}")(config).double(), size=0.4)

    return make


class LensAttention(zoo.LensAttention):
    """As TransformerLens computes it: heads have an axis of their own, and are joined before they are multiplied."""

    def _heads(self, x: Tensor, letter: str) -> Tensor:
        found = dict(self.named_parameters())
        weight, bias = (found.get(f"{w}_{letter}", found.get(f"_{w}_{letter}")) for w in "Wb")
        joined = nnf.linear(x, weight.permute(0, 2, 1).reshape(-1, x.shape[-1]), bias.reshape(-1))
        mapped = joined.reshape(*x.shape[:2], *bias.shape).permute(0, 2, 1, 3)
        return mapped.repeat_interleave(4 // mapped.shape[1], dim=1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self._heads(x, letter) for letter in "QKV")
        scores = q @ k.transpose(-1, -2) / 2**0.5
        hidden = torch.ones(scores.shape[-2:]).triu(1) > 0
        z = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v
        weight = self.W_O.permute(2, 0, 1).reshape(x.shape[-1], -1)
        return nnf.linear(z.permute(0, 2, 1, 3).flatten(2), weight, self.b_O)


def _lens(groups: int) -> nn.Module:
    model = zoo.LensModel(groups)
    for block in model.blocks:
        block.attn = LensAttention(groups)
    return scrambled(model.double(), size=0.4)


def token_ids(sequences: int = 2, length: int = LENGTH) -> Tensor:
    return torch.randint(3, VOCABULARY, (sequences, length), generator=torch.Generator().manual_seed(2))


FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "GPT-2": _model("GPT2", {**_SHORT, "n_inner": 6}, head="LMHeadModel", tie_word_embeddings=False),
    "nanoGPT": lambda: nano_gpt(layers=2),
    "TransformerLens": lambda: _lens(4),
    "TransformerLens, shared keys and values": lambda: _lens(2),
    "Llama": _model("Llama", _SIZES),
    "Llama, biases, wide heads": _model("Llama", _SIZES, attention_bias=True, num_attention_heads=2, head_dim=6),
    "Mistral, window": _model("Mistral", _SIZES, sliding_window=2),
    "Qwen2": _model("Qwen2", _SIZES),
    "Gemma": _model("Gemma", _SIZES, head_dim=4),
    "Gemma2, capped scores, window": _model(
        "Gemma2",
        _SIZES,
        head_dim=4,
        query_pre_attn_scalar=4,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=3.0,
        sliding_window=2,
    ),
    "Phi, turned in part": _model("Phi", _TWO_HEADS, partial_rotary_factor=0.5),
    "Phi3, packed": _model("Phi3", _SIZES),
    "OPT": _model(
        "OPT",
        {"vocab_size": VOCABULARY, "max_position_embeddings": 16, **_ENDS},
        hidden_size=8,
        ffn_dim=6,
        num_hidden_layers=2,
        num_attention_heads=2,
        word_embed_proj_dim=8,
    ),
    "GPT-J, neighbours turned": _model("GPTJ", {**_SHORT, "n_inner": 6}, rotary_dim=2),
    "GPT-Neo, local": _model(
        "GPTNeo",
        {"vocab_size": VOCABULARY, "max_position_embeddings": 16, **_ENDS},
        hidden_size=8,
        intermediate_size=6,
        num_layers=2,
        num_heads=2,
        attention_types=[[["global", "local"], 1]],
        window_size=2,
    ),
    "GPT-NeoX, turned in part": _model("GPTNeoX", _TWO_HEADS, rotary_pct=0.5),
    "BLOOM, biased scores": _model("Bloom", {"vocab_size": VOCABULARY, **_ENDS}, hidden_size=8, n_layer=2, n_head=2),
    "Falcon, one key head": _model("Falcon", _TWO_HEADS, multi_query=True, ffn_hidden_size=6),
    "Falcon, biased scores": _model(
        "Falcon", _TWO_HEADS, multi_query=False, alibi=True, parallel_attn=False, ffn_hidden_size=6
    ),
    "GPT-BigCode, one key head": _model("GPTBigCode", {**_SHORT, "n_inner": 6}),
    "MPT, biased scores": _model(
        "Mpt", {"vocab_size": VOCABULARY, **_ENDS}, d_model=8, n_layers=2, n_heads=2, max_seq_len=16, expansion_ratio=1
    ),
    "BERT": _model("Bert", _TWO_HEADS, head="ForMaskedLM"),
    "RoBERTa": _model("Roberta", _TWO_HEADS, head="ForMaskedLM"),
    "DistilBERT": _model(
        "DistilBert",
        {"vocab_size": VOCABULARY, "max_position_embeddings": 16, "pad_token_id": 0},
        head="ForMaskedLM",
        dim=8,
        hidden_dim=6,
        n_layers=2,
        n_heads=2,
    ),
}
