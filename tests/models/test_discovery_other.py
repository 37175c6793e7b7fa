"""Shared parameters, several stacks, parameters and architectures that are not known, and new rules."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from hessianlens.errors import InputError
from hessianlens.models import LinearMLP
from hessianlens.models.discovery import Rule, discover, register_rule, unregister_rule
from tests.models.test_discovery import cover
from tests.models.test_discovery_zoo import SHORT, discovery_of, encoder_layer, hf, tree

LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj")


def attention(layer: str) -> dict[str, nn.Module]:
    return {f"{layer}.self_attn.{name}": nn.Linear(4, 4, bias=False) for name in LINEARS}


# --- shared parameters -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["gpt2", "bert", "opt", "nanogpt", "gemma", "distilbert", "albert"])
def test_tied_embeddings_are_one_block_with_two_names(family: str) -> None:
    found = discovery_of(family)
    assert found.aliases["unembed"] == "embed" and "unembed" not in found.blocks
    assert found.block("unembed") is found.blocks["embed"]
    assert "shared with unembed" in found.blocks["embed"].note
    assert sum("embed and unembed are one tensor" in note for note in found.notes) == 1


def test_untied_embeddings_are_two_blocks() -> None:
    model = hf("GPT2", "LMHeadModel", vocab_size=20, n_embd=8, n_layer=1, n_head=4, tie_word_embeddings=False)()
    found = discover(model)
    assert not found.aliases and found.blocks["unembed"].parameter == "lm_head.weight"


def test_layers_that_are_one_module_share_their_blocks() -> None:
    layer = encoder_layer()
    found = discover(nn.ModuleList([layer, layer]))
    assert found.layers == 2 and not any(name.startswith("layer1") for name in found.blocks)
    assert found.block("layer1.attn.k.bias") is found.blocks["layer0.attn.k.bias"]
    assert found.head_blocks(1, "q") == found.head_blocks(0, "q")
    assert any("layer1 shares 16 blocks with layer0" in note for note in found.notes)


def test_shared_layers_with_interleaved_heads() -> None:
    parts = {"attn.query_key_value": nn.Linear(8, 24), "attn.dense": nn.Linear(8, 8)}
    layer = tree(parts, num_heads=4)
    found = discover(nn.ModuleList([layer, layer]))
    assert found.aliases["layer1.attn.k"] == "layer0.attn.k" and found.blocks["layer0.attn.k"].stretch == (0, 6)
    assert found.head_blocks(1, "k") == found.head_blocks(0, "k")


def test_albert_says_that_its_layers_share() -> None:
    assert any("applies 2 layers but has the parameters of 1" in note for note in discovery_of("albert").notes)


def test_albert_groups_are_layers() -> None:
    model = hf("Albert", "Model", **SHORT, embedding_size=6, num_hidden_groups=2, inner_group_num=2)()
    found = discover(model)
    assert found.layers == 4 and "layer3.mlp.out" in found.blocks
    assert all(bool((count == 1).all()) for count in cover(model.double(), found).values())


# --- several stacks --------------------------------------------------------------------------------------------------


def t5(gated: bool = True) -> nn.Module:
    kind = "gated-gelu" if gated else "relu"
    size = {"vocab_size": 20, "d_model": 8, "d_kv": 2, "d_ff": 12, "num_layers": 2, "num_heads": 4}
    return hf("T5", "ForConditionalGeneration", **size, feed_forward_proj=kind)()


@pytest.mark.parametrize("gated", [True, False])
def test_t5(gated: bool) -> None:
    model = t5(gated)
    found = discover(model)
    assert found.layer_names == ("encoder.layer0", "encoder.layer1", "decoder.layer0", "decoder.layer1")
    expected = {f"decoder.layer1.{kind}.{role}" for kind in ("attn", "cross") for role in "qkvo"}
    expected |= {f"decoder.layer1.{name}" for name in ("mlp.in", "mlp.out", "norm1", "norm2", "norm3")}
    expected |= {"decoder.layer1.mlp.gate"} if gated else set()
    assert {name for name in found.blocks if name.startswith("decoder.layer1")} == expected
    assert {"embed", "encoder.norm_final", "decoder.layer0.attn.relative_bias"} <= set(found.blocks)
    assert {found.aliases[name] for name in ("unembed", "encoder.embed", "decoder.embed")} == {"embed"}
    assert found.heads[2].query == 4 and found.layouts["decoder.layer0.cross"].width == 2
    assert [part.name for part in found.head_blocks("decoder.layer0", "cross.q")][3] == "decoder.layer0.cross.q.head3"
    assert all(bool((count == 1).all()) for count in cover(model.double(), found).values())


def test_bart() -> None:
    sizes = {"layers": 1, "attention_heads": 4, "ffn_dim": 12}
    size = {f"{part}_{what}": n for part in ("encoder", "decoder") for what, n in sizes.items()}
    special = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    model = hf(
        "Bart", "ForConditionalGeneration", vocab_size=20, d_model=8, max_position_embeddings=16, **size, **special
    )()
    blocks = set(discover(model).blocks)
    assert {"encoder.pos", "decoder.pos", "encoder.embed.norm"} <= blocks
    assert {"decoder.layer0.cross.q", "decoder.layer0.norm3"} <= blocks


def test_torch_transformer() -> None:
    blocks = set(discover(nn.Transformer(8, 4, 1, 1, 12, batch_first=True)).blocks)
    assert {"encoder.layer0.attn.q", "decoder.layer0.cross.v.bias"} <= blocks
    assert {"encoder.norm_final", "decoder.norm_final"} <= blocks


# --- names of architectures that are not installed here --------------------------------------------------------------


def test_older_vit_names() -> None:
    linear, norm = (lambda: nn.Linear(8, 8)), (lambda: nn.LayerNorm(8))
    layer = "vit.encoder.layer.0"
    modules = {f"{layer}.attention.attention.{name}": linear() for name in ("query", "key", "value")}
    modules |= {
        f"{layer}.{name}": linear() for name in ("attention.output.dense", "intermediate.dense", "output.dense")
    }
    modules |= {f"{layer}.layernorm_{name}": norm() for name in ("before", "after")}
    modules |= {"vit.layernorm": norm(), "classifier": nn.Linear(8, 3)}
    found = discover(tree(modules, config=SimpleNamespace(num_attention_heads=4)))
    names = ["attn.q", "attn.k", "attn.v", "attn.o", "mlp.in", "mlp.out", "norm1", "norm2"]
    weights = {f"layer0.{name}" for name in names} | {"norm_final", "unembed"}
    assert {name for name in found.blocks if not name.endswith(".bias")} == weights
    assert found.blocks["layer0.norm2"].parameter == f"{layer}.layernorm_after.weight"
    assert found.heads[0].query == 4 and not found.notes


def test_reference_llama_names() -> None:
    modules: dict[str, nn.Module] = {"tok_embeddings": nn.Embedding(9, 4)}
    modules |= {f"layers.0.attention.{name}": nn.Linear(4, 4, bias=False) for name in ("wq", "wk", "wv", "wo")}
    modules |= {f"layers.0.feed_forward.{name}": nn.Linear(4, 4, bias=False) for name in ("w1", "w2", "w3")}
    modules |= {"layers.0.attention_norm": nn.RMSNorm(4), "layers.0.ffn_norm": nn.RMSNorm(4), "norm": nn.RMSNorm(4)}
    modules |= {"output": nn.Linear(4, 9, bias=False)}
    blocks = discover(tree(modules)).blocks
    assert blocks["layer0.mlp.gate"].parameter.endswith("w1.weight") and "layer0.mlp.in" in blocks
    assert {"embed", "norm_final", "unembed", "layer0.norm1", "layer0.norm2", "layer0.attn.o"} <= set(blocks)
    del modules["layers.0.feed_forward.w3"]
    blocks = discover(tree(modules)).blocks
    assert blocks["layer0.mlp.in"].parameter.endswith("w1.weight") and "layer0.mlp.gate" not in blocks


class InternLM2Attention(nn.Module):
    """Two groups of two heads of width 2: the queries of a group, its key, its value."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.num_key_value_heads = 4, 2
        self.wqkv, self.wo = nn.Linear(8, 16, bias=False), nn.Linear(8, 8, bias=False)


class LayoutLMv2SelfAttention(nn.Module):
    """Queries and values have biases of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.num_attention_heads, self.qkv_linear = 4, nn.Linear(8, 24, bias=False)
        self.q_bias, self.v_bias = (nn.Parameter(torch.zeros(1, 1, 8)) for _ in "qv")


def test_other_packed_names() -> None:
    rows = torch.arange(24)[:, None].expand(-1, 8)
    found = discover(tree({"model.layers.0.attention": InternLM2Attention()}))
    places = {role: found.blocks[f"layer0.attn.{role}"].take(rows[:16])[:, 0].tolist() for role in "qkv"}
    assert places == {"q": [0, 1, 2, 3, 8, 9, 10, 11], "k": [4, 5, 12, 13], "v": [6, 7, 14, 15]}
    place = "encoder.layer.0.attention"
    modules = {f"{place}.self": LayoutLMv2SelfAttention(), f"{place}.output.dense": nn.Linear(8, 8, bias=False)}
    found = discover(tree(modules), heads=True)
    assert found.blocks["layer0.attn.k"].index[0] == slice(8, 16) and found.heads[0].query == 4
    assert {n for n in found.blocks if n.endswith(".bias")} == {"layer0.attn.q.bias", "layer0.attn.v.bias"}


def test_torchvision_names() -> None:
    layer = "encoder.layers.encoder_layer_{}"
    modules: dict[str, nn.Module] = {"conv_proj": nn.Conv2d(3, 8, 4, 4)}
    for number in range(2):
        here = layer.format(number)
        modules |= {f"{here}.ln_1": nn.LayerNorm(8), f"{here}.ln_2": nn.LayerNorm(8)}
        modules |= {f"{here}.self_attention": nn.MultiheadAttention(8, 4)}
        modules |= {f"{here}.mlp": nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Dropout(), nn.Linear(12, 8))}
    modules |= {"encoder.ln": nn.LayerNorm(8), "heads.head": nn.Linear(8, 3)}
    found = discover(tree(modules))
    assert found.layers == 2 and not found.notes
    assert {"embed.patch", "layer1.attn.v", "layer1.mlp.in", "layer1.mlp.out", "norm_final", "unembed"} <= set(
        found.blocks
    )


# --- what is not known -----------------------------------------------------------------------------------------------


def test_unknown_parameters_keep_their_own_names() -> None:
    modules = {**attention("layers.0"), "layers.0.mixer.norm": nn.LayerNorm(4), "adapter": nn.Linear(4, 4)}
    model = tree(modules)
    found = discover(model)
    own = {"layers.0.mixer.norm.weight", "layers.0.mixer.norm.bias", "adapter.weight", "adapter.bias"}
    assert set(found.blocks) == {f"layer0.attn.{role}" for role in "qkvo"} | own
    assert any("No common name is known for layers.0.mixer.norm.weight" in note for note in found.notes)


def test_unknown_architectures_fall_back_to_parameters() -> None:
    for model in (nn.LSTM(3, 4), nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), LinearMLP(2, 4)):
        found = discover(model)
        assert list(found.blocks) == [name for name, _ in model.named_parameters()]
        assert all(block.shape == tuple(model.get_parameter(name).shape) for name, block in found.blocks.items())
        assert found.layers == 0 and found.heads == {}
        assert found.notes == (
            f"{type(model).__name__} is not an architecture known here: every parameter is a block under its own name.",
        )


def test_shared_parameters_of_an_unknown_architecture_are_one_block() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    found = discover(model)
    assert list(found.blocks) == ["0.weight", "0.bias", "1.bias"] and found.aliases == {"1.weight": "0.weight"}


def test_names_that_several_parameters_claim_are_given_to_none() -> None:
    model = tree({**attention("layers.0"), "lm_head": nn.Linear(4, 9), "classifier": nn.Linear(4, 2)})
    found = discover(model)
    assert {"lm_head.weight", "classifier.weight"} <= set(found.blocks) and "unembed" not in found.blocks
    assert any("would have one name" in note for note in found.notes)


def test_a_parameter_that_is_called_like_a_block_is_not_lost() -> None:
    model = tree({**attention("layers.0"), "wte": nn.Embedding(3, 4)})
    model.register_parameter("norm_final", nn.Parameter(torch.ones(4)))
    model.norm = nn.LayerNorm(4)
    counts = cover(model.double(), discover(model))
    assert all(bool((count == 1).all()) for count in counts.values())


def test_experts_are_no_layers() -> None:
    experts = {f"layers.0.mlp.experts.{n}.fc1": nn.Linear(4, 4) for n in range(3)}
    found = discover(tree({**attention("layers.0"), **experts, "layers.0.mlp.gate": nn.Linear(4, 3)}))
    assert found.layers == 1 and "layers.0.mlp.experts.2.fc1.weight" in found.blocks
    assert "layer0.mlp.router" in found.blocks


def test_layer_numbers_are_those_of_the_model() -> None:
    """Layers without attention between others count."""
    block = tree({f"attn.{name}": nn.Linear(4, 4) for name in LINEARS})
    model = nn.Module()
    model.layers = nn.ModuleList([nn.Linear(4, 4), block])
    assert "layer1.attn.q" in discover(model).blocks


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match=r"expected a torch nn\.Module"):
        discover("gpt2")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="has no parameters"):
        discover(nn.ReLU())
    with pytest.raises(InputError, match=r"no block 'layer9\.attn\.q'; this model has embed"):
        discovery_of("gpt2").block("layer9.attn.q")


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_parameters_without_a_shape_are_refused() -> None:
    with pytest.raises(InputError, match="weight, bias have no shape yet"):
        discover(nn.LazyLinear(3))


# --- new rules -------------------------------------------------------------------------------------------------------


def test_registered_rules_go_before_the_table() -> None:
    model = tree({**attention("layers.0"), "layers.0.self_attn.sinks_proj": nn.Linear(4, 4), "probe": nn.Linear(4, 2)})
    rules = [
        register_rule("<attn>sinks_proj", "attn.sink"),
        register_rule("probe", "unembed", scope="stack"),
        register_rule("<attn>o_proj", "attn.k", "attn.v", owner="Nothing"),
    ]
    try:
        blocks = discover(model).blocks
        assert {"layer0.attn.sink", "unembed", "unembed.bias", "layer0.attn.o"} <= set(blocks)
    finally:
        for rule in rules:
            unregister_rule(rule)
    assert "layer0.attn.sink" not in discover(model).blocks
    with pytest.raises(InputError, match="is not registered"):
        unregister_rule(rules[0])


def test_a_rule_can_say_how_a_parameter_is_packed() -> None:
    model = tree({"layers.0.attn.fused": nn.Linear(4, 12), "layers.0.attn.proj": nn.Linear(4, 4)}, num_heads=2)
    rule = register_rule("<attn>fused", "attn.q", "attn.k", "attn.v", packing="grouped")
    try:
        blocks = discover(model, heads=True).blocks
        assert blocks["layer0.attn.k.head1"].index == (slice(8, 10), slice(None))
        assert blocks["layer0.attn.k"].take(torch.arange(12)[:, None]).flatten().tolist() == [2, 3, 8, 9]
    finally:
        unregister_rule(rule)


def test_wrong_rules_are_refused() -> None:
    with pytest.raises(InputError, match="not a regular expression"):
        Rule("<attn>(", ("attn.q",))
    with pytest.raises(InputError, match="scope: got 'here'"):
        Rule("q", ("attn.q",), scope="here")
    with pytest.raises(InputError, match="shards: got 0, expected a number of stretches"):
        Rule("q", ("attn.q",), shards=0)
    with pytest.raises(InputError, match="expected at least one name"):
        register_rule("q")
