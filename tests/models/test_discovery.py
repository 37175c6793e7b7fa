"""Discovery names what it finds correctly, in every family, and loses nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hessianlens.models.discovery import Discovery, discover
from tests.models.test_discovery_zoo import FAMILIES, changed, discovery_of, model_of, noise, outputs

NAMES = list(FAMILIES)


def cover(model: nn.Module, found: Discovery) -> dict[str, torch.Tensor]:
    """How often each entry of each parameter is covered."""
    params = dict(model.named_parameters())
    counts = {name: torch.zeros_like(tensor) for name, tensor in params.items()}
    for block in found.blocks.values():
        counts[block.parameter] += block.embed(torch.ones(block.shape, dtype=torch.float64), params[block.parameter])
    return counts


@pytest.mark.parametrize("family", NAMES)
def test_names_are_the_same_in_every_architecture(family: str) -> None:
    found = discovery_of(family)
    expected = FAMILIES[family].names()
    weights = {name for name in found.blocks if not name.endswith(".bias")}
    assert weights == expected
    assert found.layers == FAMILIES[family].layers
    for name in set(found.blocks) - weights:
        base = name.removesuffix(".bias")
        assert base in weights or base in found.aliases, name


@pytest.mark.parametrize("family", NAMES)
def test_every_entry_is_covered_exactly_once(family: str) -> None:
    for name, count in cover(model_of(family), discovery_of(family)).items():
        assert bool((count == 1).all()), name


@pytest.mark.parametrize("family", NAMES)
def test_every_block_matters(family: str) -> None:
    """Every weight of a layer changes the output by itself, and its neighbours stay as they are."""
    before = outputs(family)
    for role in FAMILIES[family].layer.split():
        changes = changed(family, (f"layer*.{role}", noise))
        assert float((outputs(family, changes) - before).abs().max()) > 1e-8, role


@pytest.mark.parametrize("family", NAMES)
def test_scores_do_not_matter_without_values(family: str) -> None:
    """With v zero, q and k (and nothing else of the kind) have no effect; with o zero, v has none either."""
    silent = ("layer*.attn.v*", torch.zeros_like)
    quiet = outputs(family, changed(family, silent))
    moved = outputs(family, changed(family, silent, ("layer*.attn.[qk]*", noise)))
    torch.testing.assert_close(moved, quiet, rtol=1e-10, atol=1e-10)
    closed = ("layer*.attn.o", torch.zeros_like)
    shut = outputs(family, changed(family, closed))
    moved = outputs(family, changed(family, closed, ("layer*.attn.[qkv]*", noise)))
    torch.testing.assert_close(moved, shut, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("family", [f for f in NAMES if "mlp.in" in FAMILIES[f].layer])
def test_mlp_input_does_not_matter_without_its_output(family: str) -> None:
    closed = ("layer*.mlp.out", torch.zeros_like)
    shut = outputs(family, changed(family, closed))
    inner = [("layer*.mlp.in*", noise)] + ([("layer*.mlp.gate*", noise)] if "gate" in FAMILIES[family].layer else [])
    torch.testing.assert_close(outputs(family, changed(family, closed, *inner)), shut, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("family", [f for f in NAMES if "mlp.gate" in FAMILIES[f].layer])
def test_a_gated_mlp_is_linear_in_its_input_and_not_in_its_gate(family: str) -> None:
    before = outputs(family)
    balanced = ("layer0.mlp.out", lambda w: w / 2)
    doubled = outputs(family, changed(family, balanced, ("layer0.mlp.in", lambda w: 2 * w)))
    torch.testing.assert_close(doubled, before, rtol=1e-10, atol=1e-10)
    gated = outputs(family, changed(family, balanced, ("layer0.mlp.gate", lambda w: 2 * w)))
    assert float((gated - before).abs().max()) > 1e-6


ABSOLUTE = ["gpt2", "gpt2-cross", "bloom", "bigcode", "bigcode-interleaved", "opt", "nanogpt", "lens", "lens-grouped"]
ABSOLUTE += ["bert", "bert-classes", "roberta", "roberta-classes", "distilbert", "electra", "albert", "own"]
ABSOLUTE += ["vit", "deit", "timm", "encoder", "encoder-layer", "encoder-sequence", "decoder"]
"""Families whose keys have a bias and are not rotated."""


@pytest.mark.parametrize("family", ABSOLUTE)
def test_queries_and_keys_are_not_confused(family: str) -> None:
    """A bias of the keys shifts all scores of a query alike, and softmax does not see it; a bias of queries matters."""
    before = outputs(family)
    keys = outputs(family, changed(family, ("layer0.attn.k*bias", noise))) - before
    queries = outputs(family, changed(family, ("layer0.attn.q*bias", noise))) - before
    # Some models compute the softmax in single precision.
    assert float(queries.abs().max()) > 1e4 * float(keys.abs().max())


@pytest.mark.parametrize("family", NAMES)
def test_norms_are_norms_and_embeddings_are_embeddings(family: str) -> None:
    model = model_of(family)
    for name, block in discovery_of(family).blocks.items():
        owner = type(model.get_submodule(block.parameter.rpartition(".")[0])).__name__
        if "norm" in name.removesuffix(".bias").rpartition(".")[2]:
            assert "Norm" in owner, (name, owner)
        elif name == "embed" and block.parameter.endswith(".weight"):
            assert "Embedding" in owner or name in discovery_of(family).aliases.values(), (name, owner)


POST_NORM = [
    "deberta",
    "bert",
    "bert-classes",
    "roberta",
    "roberta-classes",
    "distilbert",
    "electra",
    "encoder",
    "encoder-layer",
]
NAMED_NORMS = {
    "gemma2": ["input", "post_attention", "pre_feedforward", "post_feedforward"],
    "olmo2": ["post_attention", "post_feedforward"],
    "albert": ["attention.LayerNorm", "full_layer"],
    "minimax": ["input", "post_attention"],
    "dbrx": ["norm_1", "norm_2"],
    "decoder": ["norm1", "norm2", "norm3"],
    "gpt2-cross": ["ln_1", "ln_cross_attn", "ln_2"],
    "modernbert": ["attn_norm", "mlp_norm"],
    "encoder-sequence": ["norm1", "norm2"],
}
PRE_NORM = [f for f in NAMES if "norm2" in FAMILIES[f].layer and f not in POST_NORM and f not in NAMED_NORMS]


@pytest.mark.parametrize("family", PRE_NORM)
def test_norm1_is_that_of_attention_and_norm2_that_of_the_mlp(family: str) -> None:
    for norm, other, out in (("norm1", "norm2", "attn.o"), ("norm2", "norm1", "mlp.out")):
        closed = (f"layer0.{out}", torch.zeros_like)
        shut = outputs(family, changed(family, closed))
        moved = outputs(family, changed(family, closed, (f"layer0.{norm}*", noise)))
        torch.testing.assert_close(moved, shut, rtol=1e-10, atol=1e-10)
        moved = outputs(family, changed(family, closed, (f"layer0.{other}*", noise)))
        assert float((moved - shut).abs().max()) > 1e-8


@pytest.mark.parametrize("family", POST_NORM)
def test_norm2_has_the_last_word_where_norms_come_last(family: str) -> None:
    for last, first, matters in (("norm2", "norm1", False), ("norm1", "norm2", True)):
        closed = (f"layer0.{last}*", torch.zeros_like)
        shut = outputs(family, changed(family, closed))
        moved = outputs(family, changed(family, closed, (f"layer0.{first}*", noise)))
        assert (float((moved - shut).abs().max()) > 1e-8) == matters


@pytest.mark.parametrize("family", NAMED_NORMS)
def test_norms_are_numbered_in_the_order_of_use(family: str) -> None:
    last = f"layer{FAMILIES[family].layers - 1}"
    for number, part in enumerate(NAMED_NORMS[family], 1):
        assert part in discovery_of(family).blocks[f"{last}.norm{number}"].parameter


@pytest.mark.parametrize("family", ["decoder", "gpt2-cross"])
def test_cross_attention_scores_do_not_matter_without_values(family: str) -> None:
    silent = ("layer*.cross.v*", torch.zeros_like)
    quiet = outputs(family, changed(family, silent))
    moved = outputs(family, changed(family, silent, ("layer*.cross.[qk]*", noise)))
    torch.testing.assert_close(moved, quiet, rtol=1e-10, atol=1e-10)


def test_a_block_is_what_it_claims() -> None:
    """Zeroing v of layer 0 changes the output; its bias and the rest of the packed tensor stay."""
    params = changed("gpt2", ("layer0.attn.v", torch.zeros_like))
    before = dict(model_of("gpt2").named_parameters())
    name = "transformer.h.0.attn.c_attn"
    torch.testing.assert_close(params[f"{name}.weight"][:, :16], before[f"{name}.weight"][:, :16].detach())
    assert not params[f"{name}.weight"][:, 16:].any()
    torch.testing.assert_close(params[f"{name}.bias"], before[f"{name}.bias"].detach())
    assert not torch.allclose(outputs("gpt2", params), outputs("gpt2"))


@pytest.mark.parametrize("family", NAMES)
def test_order_is_that_of_the_parameters(family: str) -> None:
    seen = list(dict.fromkeys(block.parameter for block in discovery_of(family).blocks.values()))
    assert seen == [name for name, _ in model_of(family).named_parameters()]


def test_discovery_leaves_the_model_alone() -> None:
    model = FAMILIES["gpt2"].build()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    mode = model.training
    discover(model, heads=True)
    assert model.training == mode and all(torch.equal(model.state_dict()[name], state[name]) for name in state)
