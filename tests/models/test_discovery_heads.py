"""Heads: how many there are, and the part of a block that belongs to each."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hessianlens as hl
from hessianlens.errors import InputError
from hessianlens.models import Transformer
from hessianlens.models.discovery import HeadLayout, discover
from hessianlens.problems import matches
from tests.models.test_discovery_zoo import FAMILIES, discovery_of, model_of, noise, outputs, tree

GROUPED = {"dbrx", "llama", "mistral", "qwen2", "gemma", "gemma2", "qwen3", "phi", "phi3", "olmo2", "lens-grouped"}
WIDE = {"gemma", "gemma2", "qwen3"}


@pytest.mark.parametrize("family", FAMILIES)
def test_layouts(family: str) -> None:
    shared = 2 if family in GROUPED | {"falcon-grouped"} else 1 if family in ("falcon", "bigcode") else 4
    query, width = (2, 4) if family == "gpt-j" else (4, 4 if family in WIDE else 2)
    layout = HeadLayout(query, min(shared, query), width, width)
    assert discovery_of(family).heads == dict.fromkeys(range(FAMILIES[family].layers), layout)


@pytest.mark.parametrize("family", FAMILIES)
def test_heads_tile_the_whole(family: str) -> None:
    found, params = discovery_of(family), dict(model_of(family).named_parameters())
    for role in ("q", "k", "v", "o", "qk", "q.bias", "k.bias", "v.bias"):
        name = f"layer0.attn.{role}"
        if name not in found.blocks:
            continue
        parts = found.head_blocks(0, role)
        assert len(parts) == found.heads[0].count(role.split(".")[0])
        whole = found.blocks[name]
        like = params[whole.parameter].detach()
        pieces = [part.embed(torch.ones(part.shape, dtype=like.dtype), like) for part in parts]
        torch.testing.assert_close(sum(pieces), whole.embed(torch.ones(whole.shape, dtype=like.dtype), like))
        assert all(part.take(like).shape == part.shape for part in parts)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_silent_head_is_silent(family: str) -> None:
    """With the values of one head zero, its part of o has no effect, and that of another head has."""
    found = discovery_of(family)
    params = {name: tensor.detach().clone() for name, tensor in model_of(family).named_parameters()}
    layout = found.heads[0]
    for role in ("v", "v.bias"):
        try:
            part = found.head_blocks(0, role)[layout.key_value - 1]
        except InputError:
            continue
        part.take(params[part.parameter]).zero_()
    quiet = outputs(family, params)
    effects = []
    for head in (layout.query - 1, 0):
        part = found.head_blocks(0, "o")[head]
        moved = {**params, part.parameter: params[part.parameter].clone()}
        part.take(moved[part.parameter]).copy_(noise(part.take(params[part.parameter])))
        effects.append(float((outputs(family, moved) - quiet).abs().max()))
    # One head of values serves all queries: nothing is left to speak.
    assert effects[0] < 1e-10
    assert (effects[1] > 1e-8) == (layout.key_value > 1)


def test_heads_on_request_follow_their_whole() -> None:
    model = Transformer(1, 8, 4, vocab=20)
    plain, full = discover(model), discover(model, heads=True)
    names = list(full.blocks)
    assert set(plain.blocks) < set(names)
    at = names.index("layer0.attn.q")
    assert names[at + 1 : at + 5] == [f"layer0.attn.q.head{h}" for h in range(4)]
    assert full.blocks["layer0.attn.q.head3"].index == (slice(None), slice(6, 8))
    assert full.blocks["layer0.attn.o.head3"].index == (slice(6, 8), slice(None))
    assert full.blocks["layer0.attn.q.head3.bias"].index == (slice(6, 8),)
    assert full.blocks["layer0.attn.q.head3"].note == "part of layer0.attn.q"
    assert full.head_blocks(0, "q") == plain.head_blocks(0, "q")


def test_globs_find_heads() -> None:
    names = discover(Transformer(2, 8, 4, vocab=20), heads=True).blocks
    assert len([n for n in names if matches(n, "layer*.attn.q.head3")]) == 2
    assert len([n for n in names if matches(n, "layer*.attn.?")]) == 8
    assert len([n for n in names if matches(n, r"re:layer[01]\.mlp\.(in|out)")]) == 4


def test_where_heads_lie() -> None:
    """Rows of a linear layer, columns of Conv1D, the first axis of TransformerLens; the other axis for o."""
    everything = slice(None)
    expected = {
        "llama": ((slice(2, 4), everything), (everything, slice(2, 4))),
        "gpt2": ((everything, slice(2, 4)), (slice(2, 4), everything)),
        "own": ((everything, slice(2, 4)), (slice(2, 4), everything)),
        "lens": ((slice(1, 2), everything, everything), (slice(1, 2), everything, everything)),
    }
    for family, (q, o) in expected.items():
        found = discovery_of(family)
        assert (found.head_blocks(0, "q")[1].index, found.head_blocks(0, "o")[1].index) == (q, o), family
    assert discovery_of("lens").head_blocks(0, "q.bias")[1].shape == (1, 2)


def test_grouped_query_shapes() -> None:
    found = discovery_of("llama")
    assert (found.blocks["layer0.attn.q"].shape, found.blocks["layer0.attn.k"].shape) == ((8, 8), (4, 8))
    assert [part.name for part in found.head_blocks(1, "v")] == ["layer1.attn.v.head0", "layer1.attn.v.head1"]


def test_cross_attention_has_heads() -> None:
    parts = discovery_of("gpt2-cross").head_blocks(0, "cross.v")
    assert [part.index[1] for part in parts] == [slice(8 + 2 * h, 10 + 2 * h) for h in range(4)]


def test_heads_that_nobody_states_are_not_guessed() -> None:
    names = ("q_proj", "k_proj", "v_proj", "o_proj")
    model = tree({f"layers.0.attn.{name}": nn.Linear(8, 8) for name in names})
    found = discover(model, heads=True)
    assert found.heads == {} and not any("head" in name for name in found.blocks)
    assert any("number of heads" in note for note in found.notes)
    with pytest.raises(InputError, match="does not state its number of heads"):
        found.head_blocks(0, "q")
    model.num_heads = 3  # does not divide 8
    assert discover(model).heads == {}
    model.num_heads = 2
    assert discover(model).heads == {0: HeadLayout(2, 2, 4, 4)}


def test_head_blocks_says_what_is_wrong() -> None:
    found = discovery_of("gpt2")
    with pytest.raises(InputError, match=r"layer: got 2, expected 0 \.\. 1"):
        found.head_blocks(2, "q")
    with pytest.raises(InputError, match="no parts by head"):
        found.head_blocks(0, "o.bias")


def test_heads_are_blocks_when_they_are_asked_for() -> None:
    """The list of blocks is without them; a name or glob that matches nothing else finds them, as heads=True does."""
    batch = torch.arange(6).reshape(2, 3)
    options = {"layers": 2, "d_model": 4, "heads": 2, "d_mlp": 5, "vocab": 6, "context": 3, "dtype": torch.float64}
    model = Transformer(**options)
    plain, full = (hl.problem(model, (batch, batch), "cross_entropy", heads=heads) for heads in (False, True))
    assert not any(".head" in name for name in plain.blocks) and any(".head" in name for name in full.blocks)
    assert [b.name for b in plain.select("layer1.attn.?.head1")] == [f"layer1.attn.{r}.head1" for r in "qkvo"]
    assert [b.name for b in plain.select("layer1.attn.q*")] == ["layer1.attn.q", "layer1.attn.q.bias"]
    mixed = ["layer1.attn.v", "layer1.attn.q.head1", "layer1.attn.q", "embed"]
    names = ["embed", "layer1.attn.q", "layer1.attn.q.head1", "layer1.attn.v"]
    assert [b.name for b in plain.select(mixed)] == [b.name for b in full.select(mixed)] == names
    for name in ("layer1.attn.k.head0", "layer0.attn.o.head1", "layer0.attn.v.head1.bias"):
        found, expected = (hl.hessian(problem, name).to_dense() for problem in (plain, full))
        assert torch.equal(found, expected) and bool(found.any()), name
    norms = hl.block_norms(plain, "layer1.attn.q.head*", method="exact")
    pairs = hl.block_pair_norms(plain, "layer1.attn.q.head?", method="exact")
    assert norms["layer1.attn.q.head0", "full"].value == pairs["layer1.attn.q.head0", "layer1.attn.q.head0"].value
    with pytest.raises(hl.InputError, match=r"nothing matches 'layer0\.attn\.q\.head2'"):
        plain.select("layer0.attn.q.head2")
