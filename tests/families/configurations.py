"""Small configurations of any model type, by rules on the names of attributes.

A default configuration is taken, every attribute that looks like a size is set small, and what depends on another
(lists with one entry per layer, sections of rotary positions) is fitted to it. No model type is named here.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedConfig

VOCAB = 32
LABELS = 3
POSITIONS = 32
IDS = {"pad": 0, "bos": 1, "eos": 2, "decoder_start": 1, "cls": 1, "sep": 2, "mask": 3, "unk": 3}


@dataclass(frozen=True)
class Sizes:
    """The sizes that a configuration is given; the relations between them differ from variant to variant."""

    hidden: int = 16
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 4
    inner: int = 24
    layers: int = 2
    experts: int = 4
    groups: int = 1
    rank: int = 8
    state: int = 4
    window: int = 4
    length: int = 4
    fill: bool = False
    """Whether attributes that are None by default are given a size too."""


def variants() -> Iterator[Sizes]:
    """Sizes to try in order: the first that a class can be built and run with is taken."""
    plain = Sizes()
    yield plain
    yield replace(plain, kv_heads=4)
    yield replace(plain, fill=True)
    yield replace(plain, kv_heads=4, inner=16, fill=True)
    yield replace(plain, layers=4)
    yield replace(plain, length=8)
    yield replace(plain, heads=2, kv_heads=2, head_dim=8, inner=32)
    yield replace(plain, hidden=32, head_dim=8, inner=64, rank=16, layers=4)
    yield replace(plain, hidden=48, heads=4, kv_heads=4, head_dim=12, inner=48)
    yield replace(plain, hidden=64, heads=4, kv_heads=4, head_dim=16, inner=64, rank=16, state=16)


_ANY = object()

# The first pattern that occurs in the name of an attribute with a whole number decides; "=" is a field of `Sizes`.
RULES: tuple[tuple[str, Any], ...] = (
    (r"type_vocab_size|num_token_types|coordinate_size", 2),
    (r"indexer_kv_heads|audio_channels", 1),
    (r"shape_size|budget$", 4),
    (r"compress_ratio$", 2),
    (r"expand$|offset$", 1),
    (r"^qk_head_dim", 8),
    (r"vocab$|vocab_size|num_tokens$", VOCAB),
    (r"num_labels", LABELS),
    (
        r"max_(2d_)?position|n_positions|n_ctx|max_seq|max_source|max_target|positions$|context_length|max_length",
        POSITIONS,
    ),
    (r"(kv|key_value)_(n_)?heads|n_(kv|head_kv)|num_kv|kv_heads|num_key_value|num_global_key", "=kv_heads"),
    (r"head_dim|d_kv|dim_head|kv_channels|head_size|attention_head_size|d_head", "=head_dim"),
    (r"rotary_dim|rope_dim", 4),
    (r"num_attention_heads|n_heads?$|num_heads|attention_heads|_heads$|heads$", "=heads"),
    (r"mtp|nextn", 0),
    (r"first_k_dense|num_dense_layers|moe_layer_start|moe_layer_end", 1),
    (r"(num|n)_.*(layers|blocks)$|^(n_layers?|num_layers?|layers|depth)$|_layers$|num_hidden_layers", "=layers"),
    (r"experts?_(per|used)|top_?k(?!_group)|moe_k$|num_selected", 2),
    (r"topk_group|n_group|num_expert_group|n_groups$", "=groups"),
    (r"expert_(capacity)", 64),
    (r"shared_experts?$|num_shared", 1),
    (r"(num|n)_.*experts|num_experts|_experts$", "=experts"),
    (r"lora_rank|_rank$|low_rank", "=rank"),
    (r"intermediate|ffn|d_ff|ff_dim|feed_forward_size|inner|mlp_dim|mlp_hidden|moe_inter|hidden_dim$|ffw", "=inner"),
    (r"state_size|d_state|state_dim|ssm_state", "=state"),
    (r"d_conv|conv_kernel|conv_size|kernel_size|conv_l_cache", 3),
    (r"window|local_(block|chunk)|block_size|chunk_size$|chunk_length|mamba_chunk|local_radius", "=window"),
    (r"interval|period|pattern$|every", 2),
    (r"hidden_size|d_model|n_embd|embed_dim|embedding_size|emb_dim|^dim$|^width$|lru_width|d_embed|hidden", "=hidden"),
    (r"_dim$|_size$|_length$|_width$|^dim_|channels", "=hidden"),
)
_SMALL = 8
"""Ids of tokens up to this one stay as they are."""
_LARGE = 10**6
"""Stands for a size that is not given."""


def small(kind: type[PreTrainedConfig], sizes: Sizes, **more: Any) -> PreTrainedConfig:
    """A configuration of a kind with these sizes; arguments that it does not have are left out."""
    known = {field.name for field in dataclasses.fields(kind)} | {"num_labels"}
    return _small(kind, sizes, {name: value for name, value in more.items() if name in known})


def _small(kind: type[PreTrainedConfig], sizes: Sizes, more: dict[str, Any]) -> PreTrainedConfig:
    default = kind()
    made = kind(**{**_values(default, sizes), **more})
    for name, value in vars(default).items():  # some are set from outside
        if name not in vars(made):
            setattr(made, name, value)
    return made


def _values(default: PreTrainedConfig, sizes: Sizes) -> dict[str, Any]:
    """The arguments of a small configuration."""
    layers = getattr(default, "num_hidden_layers", None)
    found: dict[str, Any] = {}
    for field in dataclasses.fields(default):
        if not field.init:
            continue
        try:
            value = getattr(default, field.name, None)
        except Exception:  # it differs from layer to layer: here it does not
            value, found["per_layer_config"] = field.default, {}
        new = _value(field.name, value, sizes, layers if isinstance(layers, int) else None)
        if new is not _ANY:
            found[field.name] = new
    if found.get("default_language", "") is None or getattr(default, "default_language", "") is None:
        found["default_language"] = next(iter(getattr(default, "languages", ())), None)
    return found


def _value(name: str, value: Any, sizes: Sizes, layers: int | None) -> Any:
    """The small value of an attribute; `_ANY` where the default stays."""
    if isinstance(value, PreTrainedConfig):
        return _small(type(value), sizes, {})
    if isinstance(value, bool):
        return _ANY
    if name.endswith(("_id", "_idx", "token_ids")):
        return _token(name, value)
    if name == "rope_parameters" and value == {} and sizes.fill:
        return {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in ("full_attention", "sliding_attention")}
    if value is None and sizes.fill:
        return ["full_attention"] * sizes.layers if name == "layer_types" else _whole(name, _LARGE, sizes, False)
    if isinstance(value, int):
        return _whole(name, value, sizes)
    if isinstance(value, float):
        return _fraction(name, value)
    if isinstance(value, dict) and name not in ("id2label", "label2id"):
        inner = {key: _value(key, each, sizes, layers) for key, each in value.items()}
        return {key: value[key] if each is _ANY else each for key, each in inner.items()}
    if isinstance(value, (list, tuple)) and value:
        return _listed(name, value, sizes, layers)
    return _ANY


def _token(name: str, value: Any) -> Any:
    """Ids of tokens lie in the vocabulary, and there is one for padding."""
    base = re.sub(r"_(token_)?(id|idx)s?$", "", name)
    if value is None:
        return IDS["pad"] if base == "pad" else _ANY
    return IDS.get(base, 4 if not isinstance(value, int) or value >= _SMALL else value)


def _whole(name: str, value: int, sizes: Sizes, other: bool = True) -> Any:
    for pattern, new in RULES:
        if re.search(pattern, name):
            wanted = getattr(sizes, new[1:]) if isinstance(new, str) else new
            # Zero and minus one switch a thing off, and what is smaller already stays.
            return wanted if value > 0 and (value > wanted or new in ("=hidden", "=head_dim")) else _ANY
    return sizes.hidden if other and value > 64 else _ANY


def _fraction(name: str, value: float) -> Any:
    """No dropout; rotary positions on half of a head or more, for a small share of a small head is nothing."""
    if "drop" in name:
        return 0.0
    return 0.5 if value < 0.5 and re.search(r"rotary_(pct|factor)|partial_rotary", name) else _ANY


def _listed(name: str, value: list[Any] | tuple[Any, ...], sizes: Sizes, layers: int | None) -> Any:
    """Lists fitted to the number of layers, to half of a head, to the hidden size or to the number of positions."""
    kind, numbers = type(value), [each for each in value if isinstance(each, int)]
    if layers is not None and len(value) == layers:  # each kind of entry, in order
        kinds = list({str(each): each for each in value}.values())
        last = [value[-1]] if str(value[-1]) != str(kinds[-1]) else []
        picked = ([*kinds, *last] + [value[-1]] * sizes.layers)[: sizes.layers]
        return kind(each if not isinstance(each, int) else _entry(name, each, sizes) for each in picked)
    if name == "mrope_section":
        half = sizes.head_dim // 2
        return [half - half // 2, half // 2, 0][: len(value)]
    if all(isinstance(each, (list, tuple)) and len(each) == 2 and isinstance(each[1], int) for each in value):
        return kind([types, max(1, sizes.layers // len(types))] for types, _ in value)  # kinds of layers, how often
    if len(numbers) == len(value) == 2 and "shape" in name:
        return kind([4, POSITIONS // 4])
    if len(numbers) == len(value) == 2 and "dim" in name:
        return kind([sizes.hidden // 2] * 2)
    return _ANY


def _entry(name: str, value: int, sizes: Sizes) -> Any:
    new = _ANY if isinstance(value, bool) else _whole(name, value, sizes)
    return value if new is _ANY else new
