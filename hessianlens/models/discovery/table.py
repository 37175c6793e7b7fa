"""The table of names: what architectures call the parts that have one name here. Earlier lines win."""

from __future__ import annotations

from hessianlens.models.discovery.rules import Rule

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
