"""Packed projections: every part is the one its name says."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hessianlens.models.discovery import discover
from hessianlens.models.discovery.packed import Packing, cuts
from tests.models.test_discovery_zoo import changed, discovery_of, hf, hidden, model_of, outputs, tree


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


@pytest.mark.parametrize("family", ["gpt-neox", "bloom", "falcon-grouped", "bigcode-interleaved"])
def test_interleaved_projections_are_cut_by_head_and_say_so(family: str) -> None:
    found = discovery_of(family)
    assert "layer0.attn.q" not in found.blocks
    assert sum("only its heads are blocks" in note for note in found.notes) == 1


def _own_split(family: str, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v (batch, length, heads, width) as the model's own code splits them."""
    if family == "gpt-neox":
        fused = model_of(family).gpt_neox.layers[0].attention.query_key_value(X)
        return fused.view(*X.shape[:-1], -1, 3 * 2).chunk(3, dim=-1)
    attention = model_of(family).transformer.h[0].self_attention
    if family == "bloom":
        return tuple(part.transpose(1, 2) for part in attention._reshape(attention.query_key_value(X)))
    return attention._split_heads(attention.query_key_value(X))


@pytest.mark.parametrize("family", ["gpt-neox", "bloom", "falcon", "falcon-grouped"])
def test_heads_of_interleaved_projections_are_those_of_the_model(family: str) -> None:
    X, found = hidden(), discovery_of(family)
    for role, expected in zip("qkv", _own_split(family, X), strict=True):
        for head, block in enumerate(found.head_blocks(0, role)):
            mine = X @ block.take(dict(model_of(family).named_parameters())[block.parameter].detach()).T
            if f"{block.name}.bias" in found.blocks:
                mine = mine + block_of(family, f"{block.name}.bias")
            repeats = expected.shape[2] // found.heads[0].count(role)
            torch.testing.assert_close(mine, expected[:, :, head * repeats].detach())


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


def test_an_order_that_is_not_known_stays_in_one_piece() -> None:
    size = {"vocab_size": 20, "n_embd": 16, "n_layer": 1, "n_head": 4, "rotary_dim": 2, "n_positions": 16}
    found = discover(hf("CodeGen", "ForCausalLM", **size, bos_token_id=0, eos_token_id=1)())
    assert found.blocks["layer0.attn.qkv"].shape == (48, 16)
    assert any("order that is not known" in note for note in found.notes)


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
            parts = cuts(("q", "k", "v"), total, Packing(0, order, query, key_value))
            assert parts is not None
            entries = sorted(i for _, start, end in parts for i in range(start, end))
            assert entries == list(range(total))


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
