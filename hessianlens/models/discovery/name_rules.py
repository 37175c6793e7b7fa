"""The table of names: what architectures call the parts that have one name here, and how rules are added.

A rule says which module path plays which role; of the table, earlier lines win.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from hessianlens.errors import InputError, check_choice, expect

SCOPES = ("layer", "stack", "model")
PACKINGS = ("joined", "grouped")

_TOKENS = {
    "attn": r"(?:layer\.\d+\.)?(?P<around>\w*[Aa](?:ttn|ttention)\w*|mha)(?:\.(?:self|\w*[Aa](?:ttn|ttention)\w*))?\.",
    "mlp": r"(?:layer\.\d+\.)?(?:mlp|mlp_block|ffn|ff|feed_?forward|DenseReluDense)\.",
}
_CROSS = re.compile(r"cross|encoder_attn|multihead_attn|enc_?dec", re.IGNORECASE)


@dataclass(frozen=True)
class Rule:
    r"""One line of the table: parameters whose path matches `pattern` hold the blocks `roles`.

    Attributes:
        pattern: Regular expression for the path without its leaf: ``weight`` and ``bias`` are taken off, and ``b_Q``
            and ``in_proj_bias`` are read as the biases of ``W_Q`` and ``in_proj_weight``. ``<attn>`` (once at most)
            stands for any module named like an attention with the dot behind it, ``<mlp>`` for an MLP; ``<attn?>`` and
            ``<mlp?>`` may be missing. A cross-attention turns the role ``attn.q`` into ``cross.q``.
        roles: Names behind ``layer0.``; several of them if the parameter packs several. ``norm@20`` is a norm, and
            the norms of a stack are numbered by the order of the numbers behind ``@``.
        scope: Where the pattern starts: "layer" behind the number of a layer; "stack" next to the list of layers or
            above it; "model" anywhere outside the layers.
        packing: How several roles lie along the output axis: "joined" one whole after the other, "grouped" by head (the
            queries of a group of heads, their key, their value, then the next group).
        owner: Regular expression for the class name of the module around; anything if empty.
        shards: In how many equal stretches, each with its share of every role, joined roles lie; CodeGen has 4.

    >>> Rule(r"<attn>q_proj", ("attn.q",)).roles_of("self_attn.q_proj", "LlamaAttention")
    ('attn.q',)
    >>> Rule(r"<attn>q_proj", ("attn.q",)).roles_of("encoder_attn.q_proj", "BartAttention")
    ('cross.q',)
    """

    pattern: str
    roles: tuple[str, ...]
    scope: str = "layer"
    packing: str = "joined"
    owner: str = ""
    shards: int = 1

    def __post_init__(self) -> None:
        """The pattern compiles, scope and packing are known."""
        check_choice("scope", self.scope, SCOPES)
        check_choice("packing", self.packing, PACKINGS)
        expect(bool(self.roles) and all(self.roles), f"roles: got {self.roles!r}, expected at least one name.")
        counted = isinstance(self.shards, int) and self.shards > 0
        expect(counted, f"shards: got {self.shards!r}, expected a number of stretches, 1 or more.")
        compile_pattern(self.pattern)

    def roles_of(self, path: str, owner: str) -> tuple[str, ...]:
        """The roles of a path, or nothing if the rule does not apply."""
        found = compile_pattern(self.pattern).fullmatch(path)
        if found is None or (self.owner and re.fullmatch(self.owner, owner) is None):
            return ()
        attention = found.groupdict().get("around") or ""
        if _CROSS.search(attention):
            return tuple(re.sub(r"^attn\.", "cross.", role) for role in self.roles)
        return self.roles


@cache
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """The regular expression behind a rule's pattern."""
    full = pattern
    for name, expression in _TOKENS.items():
        full = full.replace(f"<{name}?>", f"(?:{expression})?").replace(f"<{name}>", expression)
    try:
        return re.compile(full)
    except re.error as error:
        raise InputError(f"pattern: {pattern!r} is not a regular expression ({error}).") from error


_REGISTERED: list[Rule] = []


def register_rule(
    pattern: str, *roles: str, scope: str = "layer", packing: str = "joined", owner: str = "", shards: int = 1
) -> Rule:
    r"""Teach `discover` a name it does not know; see `Rule` for the arguments. Later rules go before earlier ones.

    >>> import torch
    >>> from hessianlens.models.discovery import discover
    >>> attention = torch.nn.ModuleDict({"asking": torch.nn.Linear(2, 2), "value": torch.nn.Linear(2, 2)})
    >>> model = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([torch.nn.ModuleDict({"attn": attention})])})
    >>> rule = register_rule("<attn>asking", "attn.q")
    >>> list(discover(model).blocks)
    ['layer0.attn.q', 'layer0.attn.q.bias', 'layer0.attn.v', 'layer0.attn.v.bias']
    >>> unregister_rule(rule)
    """
    rule = Rule(pattern, roles, scope, packing, owner, shards)
    _REGISTERED.insert(0, rule)
    return rule


def unregister_rule(rule: Rule) -> None:
    """Take back what `register_rule` returned."""
    expect(rule in _REGISTERED, f"rule: {rule.pattern!r} is not registered.")
    _REGISTERED.remove(rule)


def registered_rules() -> tuple[Rule, ...]:
    """Rules added by `register_rule`, the latest first."""
    return tuple(_REGISTERED)


_QKV = ("attn.q", "attn.k", "attn.v")

PACKED = (
    # Exceptions by class: the same parameter name, another order inside.
    Rule(r"<attn>c_attn", _QKV, packing="grouped", owner="GPTBigCode.*"),
    Rule(r"<attn>qkv_proj", ("attn.q", "attn.v", "attn.k"), owner="CodeGen.*", shards=4),
    Rule(r"<attn>qkv_proj", _QKV, packing="grouped", owner="MiniMaxLightning.*"),
    Rule(r"<attn>wqkv", _QKV, packing="grouped", owner="InternLM2.*"),
    Rule(r"<attn>in_proj", _QKV, packing="grouped", owner="DisentangledSelfAttention"),
    Rule(r"<attn>qkv_linear", _QKV, owner="LayoutLMv2.*"),
    Rule(r"<mlp>gate_up_proj", ("mlp.in", "mlp.gate"), owner="Phi4MultimodalAudio.*"),
    Rule(r"\w*[Cc]ross\w*\.c_attn", ("cross.k", "cross.v")),
    Rule(r"<attn?>(c_attn|qkv|qkv_proj|att_proj|Wqkv|to_qkv|in_proj_weight)", _QKV),
    Rule(r"<attn?>query_key_value", _QKV, packing="grouped"),
    Rule(r"<attn>to_kv", ("attn.k", "attn.v")),
    Rule(r"<mlp>gate_up_proj", ("mlp.gate", "mlp.in")),
    Rule(r"<mlp>Wi", ("mlp.gate", "mlp.in"), owner="ModernBert.*"),
)

ATTENTION = (
    Rule(r"<attn?>(q_proj|q_proj_weight|q_lin|query|query_proj|[Ww]_?[Qq]|to_q|q_attn)", ("attn.q",)),
    Rule(r"<attn?>(k_proj|k_proj_weight|k_lin|key|key_proj|[Ww]_?[Kk]|to_k)", ("attn.k",)),
    Rule(r"<attn?>(v_proj|v_proj_weight|v_lin|value|value_proj|[Ww]_?[Vv]|to_v)", ("attn.v",)),
    Rule(r"<attn?>(o_proj|out_proj|W_O)", ("attn.o",)),
    Rule(
        r"<attn>(out_lin|c_proj|dense|dense_weight|output|output\.dense|o|[Ww]_?o|proj|to_out|to_out\.0)", ("attn.o",)
    ),
    Rule(r"<attn>(q|q_weight)", ("attn.q",)),
    Rule(r"<attn>(k|k_weight)", ("attn.k",)),
    Rule(r"<attn>(v|v_weight)", ("attn.v",)),
    Rule(r"<attn?>W_QK", ("attn.qk",)),
    Rule(r"<attn>(q_norm|q_layernorm|q_ln)", ("attn.q_norm",)),
    Rule(r"<attn>(k_norm|k_layernorm|k_ln)", ("attn.k_norm",)),
    Rule(r"<attn>relative_attention_bias", ("attn.relative_bias",)),
)

MLP = (
    Rule(r"<mlp>(c_fc|fc_in|up_proj|dense_h_to_4h|lin1|linear_?1|wi|wi_1|w3|W_in|w_?in|(net\.)?0)", ("mlp.in",)),
    Rule(
        r"<mlp>(c_proj|fc_out|down_proj|dense_4h_to_h|lin2|linear_?2|[wW]o|w2|W_out|w_?out|(net\.)?[23])", ("mlp.out",)
    ),
    Rule(r"<mlp>(gate_proj|wi_0|w1|W_gate)", ("mlp.gate",)),
    Rule(r"<mlp?>(fc1|linear1)|intermediate\.dense|ffn", ("mlp.in",)),
    Rule(r"<mlp?>(fc2|linear2)|output\.dense|ffn_output", ("mlp.out",)),
    Rule(r"<mlp>(gate|router(\.layer)?)", ("mlp.router",)),
)

# norm@10 around self-attention, @20 behind it, @30 around cross-attention, @40 around the MLP, @50 behind it.
NORMS = (
    Rule(r"crossattention\.output\.LayerNorm|encoder_attn_layer_norm|ln_cross_attn", ("norm@30",)),
    Rule(r"input_layernorm|layernorm_before|self_attn_layer_norm|sa_layer_norm|attention_norm|attn_norm", ("norm@10",)),
    Rule(
        r"(norm_attn_norm\.)?(ln|norm|layer_?norm)_?1|ln_attn|layer\.0\.layer_norm|<attn>(output\.)?LayerNorm",
        ("norm@10",),
    ),
    Rule(r"post_attention_layernorm|post_attention_norm|ln1_post", ("norm@20",)),
    Rule(r"layer\.1\.layer_norm", ("norm@30",)),
    Rule(r"layernorm_after|final_layer_norm|output_layer_norm|full_layer_layer_norm|ffn_norm|mlp_norm", ("norm@40",)),
    Rule(
        r"(norm_attn_norm\.)?(ln|norm|layer_?norm)_?2|ln_mlp|output\.LayerNorm|pre_feedforward_layernorm", ("norm@40",)
    ),
    Rule(r"layer\.2\.layer_norm", ("norm@40",)),
    Rule(r"(ln|norm|layer_?norm)_?3|post_feedforward_layernorm|ln2_post", ("norm@50",)),
)

EMBEDDINGS = (
    Rule(
        r"wte|word_embeddings|tokens_embed|embed_tokens|embed_in|tok_(embeddings?|emb)|token_emb(edding)?s?",
        ("embed",),
        "model",
    ),
    Rule(r"(embed\.)?W_E|shared|embed|embedding", ("embed",), "stack"),
    Rule(
        r"wpe|embed_positions|positions_embed|pos(ition(al)?)?_emb(ed(ding)?s?)?|(pos_embed\.)?W_pos", ("pos",), "model"
    ),
    Rule(r"token_type_embeddings", ("embed.type",), "model"),
    Rule(r"patch_embed(ding)?s?(\.(proj|projection))?|conv_proj", ("embed.patch",), "model"),
    Rule(r"cls_token|class_token|class_embedding", ("embed.cls",), "model"),
    Rule(r"distillation_token|dist_token", ("embed.distill",), "model"),
    Rule(r"mask_token", ("embed.mask",), "model"),
    Rule(r"embeddings\.(LayerNorm|norm)|word_embeddings_layernorm|layernorm_embedding", ("embed.norm",), "model"),
    Rule(r"pre_layr?norm|norm_pre", ("embed.norm",), "stack"),
    Rule(r"embeddings_project|project_in|embedding_hidden_mapping_in", ("embed.project",), "model"),
)

HEADS = (
    Rule(r"lm_head(\.decoder)?|generator_lm_head|embed_out|vocab_projector", ("unembed",), "model"),
    Rule(r"(cls\.)?predictions(\.decoder)?|discriminator_predictions\.dense_prediction", ("unembed",), "model"),
    Rule(r"classifier(\.out_proj)?|score|qa_outputs|cls_classifier", ("unembed",), "model"),
    Rule(r"(unembed\.)?W_U|unembed|head|heads\.head|decoder|output", ("unembed",), "stack"),
    Rule(r"distillation_classifier|head_dist", ("unembed.distill",), "stack"),
    Rule(r"(cls\.)?predictions(\.transform)?\.dense|(lm_)?head\.dense|vocab_transform", ("unembed.dense",), "model"),
    Rule(r"(discriminator|generator)_predictions\.dense|classifier\.dense|pre_classifier", ("unembed.dense",), "model"),
    Rule(r"(cls\.)?predictions(\.transform)?\.LayerNorm|lm_head\.layer_norm|head\.norm", ("unembed.norm",), "model"),
    Rule(r"generator_predictions\.LayerNorm|vocab_layer_norm", ("unembed.norm",), "model"),
    Rule(r"project_out", ("unembed.project",), "model"),
    Rule(r"pooler(\.dense)?", ("pool",), "model"),
    Rule(r"ln_f|norm_f|ln_final|norm_final|final_norm|final_layer_?norm|post_layernorm", ("norm_final",), "stack"),
    Rule(r"ln|norm|layer_?norm", ("norm_final",), "stack"),
)

TABLE = (*PACKED, *ATTENTION, *MLP, *NORMS, *EMBEDDINGS, *HEADS)
"""Every built-in rule."""
