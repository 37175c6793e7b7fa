"""Packed projections: every part is the one its name says."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hessianlens.models.discovery import discover, register_rule, unregister_rule
from hessianlens.models.discovery.storage import Packing, cuts
from tests.models.test_discovery_zoo import changed, discovery_of, hidden, model_of, outputs, tree


def block_of(family: str, name: str) -> Tensor:
    block = discovery_of(family).blocks[name]
    return block.take(dict(model_of(family).named_parameters())[block.parameter].detach())


def test_gpt2_q_times_input_is_the_first_third_of_c_attn() -> None:
    X, module = hidden(), model_of("gpt2").transformer.h[1].attn.c_attn
    for role, third in zip("qkv", module(X).detach().split(8, dim=-1), strict=True):
        mine = X @ block_of("gpt2", f"layer1.attn.{role}") + block_of("gpt2", f"layer1.attn.{role}.bias")
        torch.testing.assert_close(mine, third)


@pytest.mark.parametrize(
    ("family", "path"), [("nanogpt", "transformer.h.0.attn.c_attn"), ("timm", "blocks.0.attn.qkv")]
)
def test_rows_of_a_linear_are_cut_in_three(family: str, path: str) -> None:
    X, module = hidden(), model_of(family).get_submodule(path)
    for role, third in zip("qkv", module(X).detach().split(8, dim=-1), strict=True):
        mine = X @ block_of(family, f"layer0.attn.{role}").T + block_of(family, f"layer0.attn.{role}.bias")
        torch.testing.assert_close(mine, third)


def test_multihead_attention_is_cut_by_rows() -> None:
    attention = nn.MultiheadAttention(8, 4, batch_first=True)
    blocks = discover(attention).blocks
    assert list(blocks) == [f"layer0.attn.{r}{b}" for b in ("", ".bias") for r in "qkv"] + [
        "layer0.attn.o",
        "layer0.attn.o.bias",
    ]
    assert blocks["layer0.attn.k"].index == (slice(8, 16), slice(None))
    assert blocks["layer0.attn.k"].note == "rows 8:16 of in_proj_weight"


def test_multihead_attention_with_widths_of_its_own_is_not_packed() -> None:
    found = discover(nn.MultiheadAttention(8, 4, kdim=6, vdim=5))
    assert {name: found.blocks[f"layer0.attn.{name}"].shape for name in "qkv"} == {
        "q": (8, 8),
        "k": (8, 6),
        "v": (8, 5),
    }
    assert found.blocks["layer0.attn.v.bias"].index == (slice(16, 24),)


INTERLEAVED = {
    "gpt-neox": "gpt_neox.layers.0.attention.query_key_value",
    "gpt-neox-japanese": "gpt_neox_japanese.layers.0.attention.query_key_value",
    "persimmon": "model.layers.0.self_attn.query_key_value",
    "bloom": "transformer.h.0.self_attention.query_key_value",
    "falcon-interleaved": "transformer.h.0.self_attention.query_key_value",
    "falcon-grouped": "transformer.h.0.self_attention.query_key_value",
    "bigcode-interleaved": "transformer.h.0.attn.c_attn",
    "codegen": "transformer.h.0.attn.qkv_proj",
    "minimax": "model.layers.0.self_attn.qkv_proj",
    "deberta": "deberta.encoder.layer.0.attention.self.in_proj",
}
JOINED = {
    "falcon": "transformer.h.0.self_attention.query_key_value",
    "bigcode": "transformer.h.0.attn.c_attn",
    "mpt": "transformer.blocks.0.attn.Wqkv",
    "dbrx": "transformer.blocks.0.norm_attn_norm.attn.Wqkv",
}
PACKED = {**INTERLEAVED, **JOINED}


@pytest.mark.parametrize("family", INTERLEAVED)
def test_interleaved_projections_are_one_block_each_and_say_so(family: str) -> None:
    found, own = discovery_of(family), INTERLEAVED[family]
    layout = found.heads[0]
    shapes = {role: found.blocks[f"layer0.attn.{role}"].shape for role in "qkv"}
    assert shapes == {role: (layout.count(role) * layout.width, 8) for role in "qkv"}
    assert {found.blocks[f"layer0.attn.{role}"].parameter for role in "qkv"} == {f"{own}.weight"}
    assert sum("q, k, v of one head (or group) after the other" in note for note in found.notes) == 1
    assert sum(own.rpartition(".")[2] in note for note in found.notes) == 1


def _own_split(family: str, X: Tensor) -> tuple[Tensor, ...]:
    """q, k and v (batch, length, heads, width) as the model's own code splits them, before biases of their own."""
    fused = model_of(family).get_submodule(PACKED[family])(X).detach()
    attention = model_of(family).get_submodule(PACKED[family].rpartition(".")[0])
    if family == "bloom":
        return tuple(part.transpose(1, 2) for part in attention._reshape(fused))
    if family.startswith(("falcon", "persimmon")):
        return attention._split_heads(fused)
    if family == "codegen":
        query, value, key = fused.unflatten(-1, (4, -1)).split(2, dim=-1)
        return tuple(attention._split_heads(part, 4, 2, mp_num=4) for part in (query, key, value))
    if family == "deberta":
        return tuple(part.transpose(1, 2) for part in attention.transpose_for_scores(fused).chunk(3, dim=-1))
    if family in JOINED:
        return tuple(part.unflatten(-1, (-1, 2)) for part in fused.split([8, *2 * [(fused.shape[-1] - 8) // 2]], -1))
    return fused.unflatten(-1, (4, 6)).split(2, dim=-1)


def _bias(family: str, name: str) -> Tensor | float:
    """The bias of a block, where it lies beside the weight."""
    found = discovery_of(family).blocks.get(name)
    return block_of(family, name) if found is not None and PACKED[family] in found.parameter else 0.0


@pytest.mark.parametrize("family", PACKED)
def test_q_k_and_v_are_what_the_model_computes(family: str) -> None:
    X, layout = hidden(), discovery_of(family).heads[0]
    for role, expected in zip("qkv", _own_split(family, X), strict=True):
        name = f"layer0.attn.{role}"
        mine = X @ block_of(family, name).T + _bias(family, f"{name}.bias")
        torch.testing.assert_close(mine, expected[:, :, :: expected.shape[2] // layout.count(role)].flatten(2))


@pytest.mark.parametrize("family", PACKED)
def test_heads_of_packed_projections_are_those_of_the_model(family: str) -> None:
    X, found = hidden(), discovery_of(family)
    for role, expected in zip("qkv", _own_split(family, X), strict=True):
        for head, block in enumerate(found.head_blocks(0, role)):
            assert block.stretch is None and len(block.index) == 2  # a rectangle
            mine = X @ block.take(dict(model_of(family).named_parameters())[block.parameter].detach()).T
            bias = _bias(family, f"layer0.attn.{role}.bias")
            repeats = expected.shape[2] // found.heads[0].count(role)
            shift = bias[2 * head : 2 * head + 2] if isinstance(bias, Tensor) else 0.0
            torch.testing.assert_close(mine + shift, expected[:, :, head * repeats])


def test_phi3_packs_fewer_keys_than_queries_and_the_gate_before_the_input() -> None:
    found = discovery_of("phi3")
    rows = {
        name: found.blocks[f"layer0.{name}"].index[0] for name in ("attn.q", "attn.k", "attn.v", "mlp.gate", "mlp.in")
    }
    assert rows == {
        "attn.q": slice(0, 8),
        "attn.k": slice(8, 12),
        "attn.v": slice(12, 16),
        "mlp.gate": slice(0, 12),
        "mlp.in": slice(12, 24),
    }


def test_heads_of_interleaved_projections_on_request() -> None:
    names = [name for name in discover(model_of("gpt-neox"), heads=True).blocks if name.startswith("layer0.attn.k")]
    assert names == [
        *("layer0.attn.k", *(f"layer0.attn.k.head{h}" for h in range(4))),
        *("layer0.attn.k.bias", *(f"layer0.attn.k.head{h}.bias" for h in range(4))),
    ]


def test_an_order_that_is_not_known_stays_in_one_piece() -> None:
    model = tree({"h.0.attn.mixed": nn.Linear(8, 24), "h.0.attn.proj": nn.Linear(8, 8)}, num_heads=4)
    rule = register_rule("<attn>mixed", "attn.qkv")
    try:
        found = discover(model)
    finally:
        unregister_rule(rule)
    assert found.blocks["layer0.attn.qkv"].shape == (24, 8)
    assert any("order that is not known" in note for note in found.notes)


@pytest.mark.parametrize(("heads", "cut"), [(4, True), (6, False)])
def test_shards_hold_whole_heads_or_nothing_is_cut(heads: int, cut: bool) -> None:
    model = tree({"h.0.attn.mixed": nn.Linear(12, 36), "h.0.attn.proj": nn.Linear(12, 12)}, num_heads=heads)
    rule = register_rule("<attn>mixed", "attn.q", "attn.k", "attn.v", shards=4)
    try:
        found = discover(model).blocks
    finally:
        unregister_rule(rule)
    assert ("layer0.attn.k" in found, "layer0.attn.qkv" in found) == (cut, not cut)
    if cut:
        rows = torch.arange(36)[:, None].expand(-1, 12)
        assert found["layer0.attn.k"].take(rows)[:, 0].tolist() == [3, 4, 5, 12, 13, 14, 21, 22, 23, 30, 31, 32]


@pytest.mark.parametrize("rows", [25, 48])
def test_sizes_that_do_not_add_up_stay_in_one_piece(rows: int) -> None:
    """25 is no multiple of three; 48 is, but then q would be wider than what o takes."""
    found = discover(tree({"h.0.attn.qkv": nn.Linear(8, rows), "h.0.attn.proj": nn.Linear(8, 8)}, num_heads=4))
    assert found.blocks["layer0.attn.qkv"].shape == (rows, 8)
    assert found.blocks["layer0.attn.qkv.bias"].shape == (rows,)


def test_cuts_tile_whatever_the_numbers_of_heads() -> None:
    for query, key_value in [(1, 1), (4, 1), (4, 2), (4, 4), (6, 3)]:
        for order in ("joined", "grouped"):
            total = 5 * (query + 2 * key_value)
            parts = cuts(("q", "k", "v"), total, Packing(order, query=query, key_value=key_value))
            assert parts is not None
            entries = [i for part in parts for i in range(total) if part.start <= i % part.length < part.end]
            assert sorted(entries) == list(range(total))


def test_conv1d_is_told_by_its_layout_even_if_square() -> None:
    """GPT-2's c_proj is square: heads are rows of it, as the module computes x @ W."""
    family = "gpt2"
    found = discovery_of(family)
    first = found.head_blocks(0, "o")[0]
    assert first.index == (slice(0, 2), slice(None))
    silent = changed(family, ("layer0.attn.v", lambda w: torch.cat([torch.zeros_like(w[:, :2]), w[:, 2:]], 1)))
    silent["transformer.h.0.attn.c_attn.bias"][16:18] = 0
    quiet = outputs(family, silent)
    weight = silent["transformer.h.0.attn.c_proj.weight"]
    silent["transformer.h.0.attn.c_proj.weight"] = weight + first.embed(torch.ones(2, 8, dtype=weight.dtype), weight)
    torch.testing.assert_close(outputs(family, silent), quiet)
