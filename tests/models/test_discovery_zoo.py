"""Small models of every family, built from configurations, and what discovery must call their parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from hessianlens.models import Transformer
from hessianlens.models.discovery import Discovery, discover
from hessianlens.problems import matches

LLAMA = "attn.q attn.k attn.v attn.o mlp.in mlp.gate mlp.out norm1 norm2"
PLAIN = "attn.q attn.k attn.v attn.o mlp.in mlp.out norm1 norm2"
CROSS = f"{PLAIN} cross.q cross.k cross.v cross.o norm3"
BERT = "embed pos embed.type embed.norm"
VIT = "embed.cls embed.patch pos norm_final unembed"

TEXT = {"vocab_size": 20, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 4}
SHORT = {**TEXT, "max_position_embeddings": 16}
GROUPED = {**TEXT, "num_key_value_heads": 2, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
IMAGE = {k: v for k, v in TEXT.items() if k != "vocab_size"} | {"image_size": 8, "patch_size": 4}
GPT2 = {
    "vocab_size": 20,
    "n_embd": 8,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 16,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def tokens() -> Tensor:
    return torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])


def hidden(length: int = 5) -> Tensor:
    return torch.randn(2, length, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@dataclass(frozen=True)
class Family:
    """How a model is built and called, and the weights it must have: those of one layer, and those outside."""

    build: Callable[[], nn.Module]
    layer: str
    outside: str
    inputs: Callable[[], Any] = lambda: {"input_ids": tokens()}
    layers: int = 2
    rotary: bool = False
    missing: str = ""

    def names(self) -> set[str]:
        numbers = range(self.layers)
        inside = {f"layer{n}.{role}" for n in numbers for role in self.layer.split()}
        return (set(self.outside.split()) | inside) - set(self.missing.split())


def hf(kind: str, head: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        transformers = pytest.importorskip("transformers")
        config = getattr(transformers, f"{kind}Config")(**options)
        config._experts_implementation = "eager"  # others refuse double precision
        return getattr(transformers, kind + head)(config)

    return build


def own(layers: str, *names: str) -> str:
    """Parameters of two layers under their own names."""
    return " ".join(f"{layers}.{number}.{name}" for number in range(2) for name in names)


def pixels() -> dict[str, Tensor]:
    return {"pixel_values": torch.linspace(-1, 1, 2 * 3 * 64, dtype=torch.float64).sin().reshape(2, 3, 8, 8)}


class NanoAttention(nn.Module):
    """As in nanoGPT: one `nn.Linear` for q, k and v."""

    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj, self.n_head = nn.Linear(8, 24), nn.Linear(8, 8), 4

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (4, 2)).transpose(1, 2) for part in self.c_attn(x).split(8, dim=2))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(mixed.transpose(1, 2).flatten(2))


class NanoBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(8), NanoAttention(), nn.LayerNorm(8)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(8, 12), "c_proj": nn.Linear(12, 8)})

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp["c_proj"](torch.relu(self.mlp["c_fc"](self.ln_2(x))))


class NanoGPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        parts = {"wte": nn.Embedding(20, 8), "wpe": nn.Embedding(16, 8)}
        blocks = nn.ModuleList(NanoBlock() for _ in range(2))
        self.transformer = nn.ModuleDict({**parts, "h": blocks, "ln_f": nn.LayerNorm(8)})
        self.lm_head = nn.Linear(8, 20, bias=False)
        self.transformer["wte"].weight = self.lm_head.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.transformer["wte"](ids) + self.transformer["wpe"].weight[: ids.shape[1]]
        for block in self.transformer["h"]:
            x = block(x)
        return self.lm_head(self.transformer["ln_f"](x))


class TimmAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj, self.num_heads = nn.Linear(8, 24), nn.Linear(8, 8), 4

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).reshape(*x.shape[:2], 3, 4, 2).permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class TimmBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(8), TimmAttention(), nn.LayerNorm(8)
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(8, 12), "fc2": nn.Linear(12, 8)})

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp["fc2"](torch.relu(self.mlp["fc1"](self.norm2(x))))


class TimmViT(nn.Module):
    """As in timm: `qkv`, blocks in a sequence, bare tensors for the token and the positions."""

    def __init__(self) -> None:
        super().__init__()
        self.cls_token, self.pos_embed = nn.Parameter(torch.zeros(1, 1, 8)), nn.Parameter(torch.zeros(1, 5, 8))
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, 8, 4, 4)})
        self.blocks = nn.Sequential(TimmBlock(), TimmBlock())
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, pixel_values: Tensor) -> Tensor:
        patches = self.patch_embed["proj"](pixel_values).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(patches), -1, -1), patches], 1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


class LensAttention(nn.Module):
    """As in TransformerLens: heads have an axis of their own; fewer of them for keys and values if asked."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.cfg, self.groups = SimpleNamespace(n_heads=4, d_head=2), groups
        shared = "" if groups == 4 else "_"
        for name, heads in {"Q": 4, f"{shared}K": groups, f"{shared}V": groups}.items():
            self._add(name, (heads, 8, 2), (heads, 2))
        self._add("O", (4, 2, 8), (8,))

    def _add(self, name: str, shape: tuple[int, ...], bias: tuple[int, ...]) -> None:
        before, letter = name[:-1], name[-1]
        self.register_parameter(f"{before}W_{letter}", nn.Parameter(torch.zeros(shape)))
        self.register_parameter(f"{before}b_{letter}", nn.Parameter(torch.zeros(bias)))

    def _heads(self, x: Tensor, letter: str) -> Tensor:
        found = dict(self.named_parameters())
        weight, bias = (found.get(f"{w}_{letter}", found.get(f"_{w}_{letter}")) for w in "Wb")
        mapped = torch.einsum("bld,hde->bhle", x, weight) + bias[:, None]
        return mapped.repeat_interleave(4 // mapped.shape[1], dim=1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self._heads(x, letter) for letter in "QKV")
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.einsum("bhle,hed->bld", mixed, self.W_O) + self.b_O


class LensNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, (8,)) * self.w + self.b


class Holder(nn.Module):
    """Bare parameters under given names."""

    def __init__(self, **shapes: tuple[int, ...]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))


class LensBlock(nn.Module):
    def __init__(self, groups: int) -> None:
        super().__init__()
        self.ln1, self.ln2, self.attn = LensNorm(), LensNorm(), LensAttention(groups)
        self.mlp = Holder(W_in=(8, 12), b_in=(12,), W_out=(12, 8), b_out=(8,))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x))
        inner = torch.relu(self.ln2(x) @ self.mlp.W_in + self.mlp.b_in)
        return x + inner @ self.mlp.W_out + self.mlp.b_out


class LensModel(nn.Module):
    def __init__(self, groups: int = 4) -> None:
        super().__init__()
        self.cfg = SimpleNamespace(n_heads=4, n_layers=2)
        self.embed, self.pos_embed = Holder(W_E=(20, 8)), Holder(W_pos=(16, 8))
        self.blocks = nn.ModuleList(LensBlock(groups) for _ in range(2))
        self.ln_final, self.unembed = LensNorm(), Holder(W_U=(8, 20), b_U=(20,))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed.W_E[ids] + self.pos_embed.W_pos[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.ln_final(x) @ self.unembed.W_U + self.unembed.b_U


def tree(modules: Mapping[str, nn.Module], **attributes: object) -> nn.Module:
    """Modules at dotted paths: a model that has the names of an architecture and nothing else."""
    root = nn.Module()
    for path, module in modules.items():
        parts, place = path.split("."), root
        for part in parts[:-1]:
            if not hasattr(place, part):
                place.add_module(part, nn.Module())
            place = place.get_submodule(part)
        place.add_module(parts[-1], module)
    for name, value in attributes.items():
        setattr(root, name, value)
    return root


def encoder_layer(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(8, 4, 12, dropout=0.0, batch_first=True, **options)


def decoder_layer() -> nn.Module:
    return nn.TransformerDecoderLayer(8, 4, 12, dropout=0.0, batch_first=True)


def pair() -> dict[str, Tensor]:
    return {"tgt": hidden(), "memory": hidden(3).sin()}


LM, SEQUENCE = "ForCausalLM", "ForSequenceClassification"
CAUSAL = "embed norm_final unembed"
FAMILIES: dict[str, Family] = {
    "gpt2": Family(hf("GPT2", "LMHeadModel", **GPT2), PLAIN, "embed pos norm_final"),
    "gpt2-cross": Family(
        hf("GPT2", "LMHeadModel", **GPT2, add_cross_attention=True),
        CROSS,
        "embed pos norm_final",
        lambda: {"input_ids": tokens(), "encoder_hidden_states": hidden()},
    ),
    "gpt-neo": Family(
        hf(
            "GPTNeo",
            LM,
            **{k: v for k, v in SHORT.items() if k not in ("num_hidden_layers", "num_attention_heads")},
            num_layers=2,
            num_heads=4,
            attention_types=[[["global", "local"], 1]],
            bos_token_id=0,
            eos_token_id=1,
        ),
        PLAIN,
        "embed pos norm_final",
    ),
    "gpt-j": Family(
        hf("GPTJ", LM, **{**GPT2, "n_head": 2, "rotary_dim": 2}),
        PLAIN.replace(" norm2", ""),
        CAUSAL,
        rotary=True,
    ),
    "gpt-neox": Family(hf("GPTNeoX", LM, **SHORT, bos_token_id=0, eos_token_id=1), PLAIN, CAUSAL, rotary=True),
    "gpt-neox-japanese": Family(
        hf(
            "GPTNeoXJapanese",
            LM,
            **{k: v for k, v in SHORT.items() if k != "intermediate_size"},
            intermediate_multiple_size=2,
            bos_token_id=0,
            eos_token_id=1,
        ),
        PLAIN,
        "embed norm_final",
        rotary=True,
    ),
    "persimmon": Family(
        hf(
            "Persimmon",
            LM,
            **SHORT,
            qk_layernorm=False,
            rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
            bos_token_id=0,
            eos_token_id=1,
        ),
        PLAIN,
        CAUSAL,
        rotary=True,
    ),
    "codegen": Family(hf("CodeGen", LM, **{**GPT2, "rotary_dim": 2}), PLAIN.replace(" norm2", ""), CAUSAL, rotary=True),
    "dbrx": Family(
        hf(
            "Dbrx",
            LM,
            vocab_size=20,
            d_model=8,
            n_heads=4,
            n_layers=2,
            max_seq_len=16,
            attn_config={"kv_n_heads": 2, "clip_qkv": 100.0, "rope_theta": 1e4},
            ffn_config={"hidden_size": 8, "ffn_hidden_size": 8, "moe_num_experts": 2, "moe_top_k": 2},
            bos_token_id=0,
            eos_token_id=1,
        ),
        "attn.q attn.k attn.v attn.o mlp.router norm1 norm2",
        f"{CAUSAL} {own('transformer.blocks', 'ffn.experts.mlp.w1', 'ffn.experts.mlp.v1', 'ffn.experts.mlp.w2')}",
        rotary=True,
    ),
    "minimax": Family(
        hf(
            "MiniMax",
            LM,
            **GROUPED,
            head_dim=2,
            num_local_experts=2,
            block_size=4,
            max_position_embeddings=16,
            layer_types=["linear_attention"] * 2,
        ),
        "attn.q attn.k attn.v attn.o mlp.router norm1 norm2",
        f"{CAUSAL} {own('model.layers', 'self_attn.norm.weight', 'self_attn.output_gate.weight')} "
        f"{own('model.layers', 'mlp.experts.gate_up_proj', 'mlp.experts.down_proj')}",
        rotary=True,
    ),
    "bloom": Family(
        hf("Bloom", LM, vocab_size=20, hidden_size=8, n_layer=2, n_head=4), PLAIN, "embed embed.norm norm_final"
    ),
    "falcon": Family(
        hf("Falcon", LM, **TEXT, bos_token_id=0, eos_token_id=1),
        PLAIN.replace(" norm2", ""),
        "embed norm_final",
        rotary=True,
    ),
    "falcon-grouped": Family(
        hf("Falcon", LM, **TEXT, num_kv_heads=2, new_decoder_architecture=True, bos_token_id=0, eos_token_id=1),
        PLAIN,
        "embed norm_final",
        rotary=True,
    ),
    "falcon-interleaved": Family(
        hf("Falcon", LM, **TEXT, multi_query=False, bos_token_id=0, eos_token_id=1),
        PLAIN.replace(" norm2", ""),
        "embed norm_final",
        rotary=True,
    ),
    "bigcode": Family(hf("GPTBigCode", LM, **GPT2), PLAIN, "embed pos norm_final"),
    "bigcode-interleaved": Family(hf("GPTBigCode", LM, **GPT2, multi_query=False), PLAIN, "embed pos norm_final"),
    "llama": Family(hf("Llama", LM, **GROUPED), LLAMA, CAUSAL, rotary=True),
    "mistral": Family(hf("Mistral", LM, **GROUPED), LLAMA, CAUSAL, rotary=True),
    "qwen2": Family(hf("Qwen2", LM, **GROUPED), LLAMA, CAUSAL, rotary=True),
    "qwen3": Family(hf("Qwen3", LM, **GROUPED, head_dim=4), f"{LLAMA} attn.q_norm attn.k_norm", CAUSAL, rotary=True),
    "gemma": Family(hf("Gemma", LM, **GROUPED, head_dim=4), LLAMA, "embed norm_final", rotary=True),
    "gemma2": Family(hf("Gemma2", LM, **GROUPED, head_dim=4), f"{LLAMA} norm3 norm4", "embed norm_final", rotary=True),
    "phi": Family(hf("Phi", LM, **GROUPED), PLAIN.replace(" norm2", ""), CAUSAL, rotary=True),
    "phi3": Family(hf("Phi3", LM, **GROUPED), LLAMA, CAUSAL, rotary=True),
    "olmo2": Family(hf("Olmo2", LM, **GROUPED), f"{LLAMA} attn.q_norm attn.k_norm", CAUSAL, rotary=True),
    "mpt": Family(hf("Mpt", LM, vocab_size=20, d_model=8, n_heads=4, n_layers=2), PLAIN, "embed norm_final"),
    "opt": Family(
        hf(
            "OPT",
            LM,
            **{k: v for k, v in SHORT.items() if k != "intermediate_size"},
            ffn_dim=12,
            word_embed_proj_dim=6,
            pad_token_id=1,
            bos_token_id=2,
            eos_token_id=2,
        ),
        PLAIN,
        "embed pos norm_final embed.project unembed.project",
    ),
    "bert": Family(hf("Bert", "ForMaskedLM", **SHORT), PLAIN, f"{BERT} unembed.dense unembed.norm"),
    "bert-classes": Family(hf("Bert", SEQUENCE, **SHORT), PLAIN, f"{BERT} pool unembed"),
    "deberta": Family(hf("Deberta", "ForMaskedLM", **SHORT), PLAIN, "embed pos embed.norm unembed.dense unembed.norm"),
    "roberta": Family(hf("Roberta", "ForMaskedLM", **SHORT), PLAIN, f"{BERT} unembed.dense unembed.norm"),
    "roberta-classes": Family(hf("Roberta", SEQUENCE, **SHORT), PLAIN, f"{BERT} unembed.dense unembed"),
    "distilbert": Family(
        hf(
            "DistilBert",
            "ForMaskedLM",
            vocab_size=20,
            dim=8,
            hidden_dim=12,
            n_layers=2,
            n_heads=4,
            max_position_embeddings=16,
        ),
        PLAIN,
        "embed pos embed.norm unembed.dense unembed.norm",
    ),
    "electra": Family(
        hf("Electra", "ForPreTraining", **SHORT, embedding_size=6),
        PLAIN,
        f"{BERT} embed.project unembed.dense unembed",
    ),
    "albert": Family(
        hf("Albert", "ForMaskedLM", **SHORT, embedding_size=6),
        PLAIN,
        f"{BERT} embed.project unembed.dense unembed.norm",
        layers=1,
    ),
    "modernbert": Family(
        hf(
            "ModernBert",
            "ForMaskedLM",
            **SHORT,
            pad_token_id=0,
            cls_token_id=1,
            sep_token_id=2,
            bos_token_id=1,
            eos_token_id=2,
        ),
        LLAMA,
        "embed embed.norm norm_final unembed.dense unembed.norm",
        rotary=True,
        missing="layer0.norm1",
    ),
    "vit": Family(hf("ViT", "ForImageClassification", **IMAGE), PLAIN, VIT, pixels),
    "deit": Family(hf("DeiT", "ForImageClassification", **IMAGE), PLAIN, f"{VIT} embed.distill", pixels),
    "timm": Family(TimmViT, PLAIN, VIT, pixels),
    "nanogpt": Family(NanoGPT, PLAIN, "embed pos norm_final", lambda: {"ids": tokens()}),
    "lens": Family(LensModel, PLAIN, "embed pos norm_final unembed", lambda: {"ids": tokens()}),
    "lens-grouped": Family(lambda: LensModel(2), PLAIN, "embed pos norm_final unembed", lambda: {"ids": tokens()}),
    "own": Family(
        lambda: Transformer(2, 8, 4, vocab=20, norm="pre"),
        PLAIN,
        "embed pos norm_final unembed",
        lambda: {"tokens": tokens()},
    ),
    "own-single": Family(
        lambda: Transformer(2, 8, 4, vocab=20, query_key="single"),
        "attn.qk attn.v attn.o mlp.in mlp.out",
        "embed pos unembed",
        lambda: {"tokens": tokens()},
    ),
    "encoder": Family(
        lambda: nn.TransformerEncoder(encoder_layer(), 2, nn.LayerNorm(8), enable_nested_tensor=False),
        PLAIN,
        "norm_final",
        lambda: {"src": hidden()},
    ),
    "encoder-layer": Family(lambda: encoder_layer(), PLAIN, "", lambda: {"src": hidden()}, layers=1),
    "encoder-sequence": Family(
        lambda: nn.Sequential(nn.Tanh(), encoder_layer(), nn.Tanh(), encoder_layer(norm_first=True)),
        PLAIN,
        "",
        lambda: {"input": hidden()},
    ),
    "decoder": Family(lambda: nn.TransformerDecoder(decoder_layer(), 2), CROSS, "", pair),
}


@cache
def model_of(family: str) -> nn.Module:
    """A model of a family in double precision, with every parameter drawn anew so that nothing is zero."""
    torch.manual_seed(0)
    model = FAMILIES[family].build().double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.5 * torch.randn_like(parameter) + (1.0 if parameter.ndim == 1 else 0.0))
    return model


@cache
def discovery_of(family: str) -> Discovery:
    return discover(model_of(family))


def outputs(family: str, params: Mapping[str, Tensor] | None = None) -> Tensor:
    """What the model answers with other parameters."""
    model, inputs = model_of(family), FAMILIES[family].inputs()
    with torch.no_grad():
        result = functional_call(model, dict(params or {}), (), inputs)
    return result if isinstance(result, Tensor) else result.logits


def changed(family: str, *changes: tuple[str, Callable[[Tensor], Tensor]]) -> dict[str, Tensor]:
    """The parameters with some blocks changed."""
    params = {name: tensor.detach().clone() for name, tensor in model_of(family).named_parameters()}
    for pattern, change in changes:
        found = [block for name, block in discovery_of(family).blocks.items() if matches(name, pattern)]
        assert found, pattern
        for block in found:
            like = params[block.parameter]
            piece = block.take(like)
            params[block.parameter] = like + block.embed(change(piece) - piece, like)
    return params


def noise(piece: Tensor) -> Tensor:
    return piece + torch.randn(piece.shape, dtype=piece.dtype, generator=torch.Generator().manual_seed(7))
