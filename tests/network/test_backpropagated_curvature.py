"""Curvature that is backpropagated from the end of a network to its maps: that of products, or left to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as nnf

import hessianlens as hl
from hessianlens.errors import Refusal
from hessianlens.layer.attention_core import AttentionCore
from hessianlens.network.base import thresholds
from hessianlens.network.routes.linear_map import (
    LinearMapPlan,
    LinearMaps,
    backpropagated,
    backpropagation,
    batch_graph,
    forms,
    live_sites,
    steps,
)
from hessianlens.network.routes.linear_map import (
    norms as map_norms,
)
from hessianlens.network.routes.linear_map.batch_graph import Column
from hessianlens.network.routes.linear_map.curvature_parts import Parts
from hessianlens.problems import Block, Problem
from tests.curvature import hugging_face, networks
from tests.curvature.networks import pairs, tokens
from tests.network.sites.families import _SIZES, FAMILIES, _model, token_ids
from tests.oracles.comparison import assert_same
from tests.variants import randn, sharpened

ANY = float("inf")
WIDE = {**_SIZES, "intermediate_size": 12}


def _family(name: str) -> Callable[[], Problem]:
    return lambda: hl.problem(FAMILIES[name](), {"input_ids": token_ids(), "labels": token_ids()})


def _wide(kind: str, **changes: object) -> Callable[[], Problem]:
    return lambda: hl.problem(_model(kind, WIDE, **changes)(), {"input_ids": token_ids(), "labels": token_ids()})


CARRIED: dict[str, tuple[Callable[[], Problem], tuple[str, ...]]] = {
    "GPT-2, wide, two batches": (
        lambda: hl.problem(
            hugging_face.gpt2(tie_word_embeddings=False, n_inner=10),
            [hugging_face.padded(2), hugging_face.padded(1, 4, seed=7)],
        ),
        ("layer1.attn.o", "layer1.norm2", "layer1.mlp.out", "norm_final.bias"),
    ),
    "Llama, wide gates": (_wide("Llama"), ("layer1.attn.o", "layer1.norm2", "layer1.mlp.out", "norm_final")),
    "Gemma, gains from one": (_wide("Gemma", head_dim=4), ("layer1.attn.o", "layer1.norm2", "norm_final")),
    "GPT-2, narrow": (_family("GPT-2"), ("layer1.attn.o", "layer1.mlp.in", "layer1.mlp.out")),
    "GPT-J, side by side": (_family("GPT-J, neighbours turned"), ("layer1.attn.o", "layer1.mlp.out", "norm_final")),
    "OPT": (_family("OPT"), ("layer1.attn.o.bias", "layer1.norm2")),
    "toy, no norm, biases by themselves": (
        lambda: networks.toy_problem(2, layers=2),
        ("layer1.attn.o", "layer1.mlp.out.bias"),
    ),
    "toy, post-norm": (lambda: networks.toy_problem(2, norm="post"), ("layer0.attn.o", "layer0.mlp.out")),
}


def found_and_expected(problem: Problem, name: str, other: str | None = None) -> tuple[int, float]:
    """How many products were made, and the largest error relative to the part."""
    row, column, ticks, worst = problem.blocks[name], problem.blocks[other or name], [], 0.0
    maps = LinearMaps(problem)
    maps.tick = lambda: ticks.append(1)
    plan = maps.plan(row, column, ANY)
    assert isinstance(plan, LinearMapPlan)
    for number in range(len(problem.data)):
        found = maps.curvature(plan, number)
        hooks = maps.graphs.hooked_batch(number, (plan.row[number], plan.column[number]))
        (first, second), row, column = plan.groups[number], plan.row[number], plan.column[number]
        (expected,) = batch_graph.site_curvatures(hooks, row, first, [Column(column, second)], lambda: None)
        for part in ("ggn", "functional"):
            size = max(float(getattr(expected, part).norm()), 1e-6)
            worst = max(worst, float((getattr(found, part) - getattr(expected, part)).norm()) / size)
    return len(ticks), worst


@pytest.mark.parametrize("name", CARRIED)
def test_it_is_the_curvature_of_products_and_takes_none(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backpropagation, "_CHUNK_BYTES", 1000)
    make, blocks = CARRIED[name]
    problem = make()
    for block in blocks:
        assert found_and_expected(problem, block) == (0, pytest.approx(0, abs=1e-9)), block


class SunkAttention(nn.Module):
    """Two heads with a learned column of scores that has no value."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(4, 4, bias=False) for _ in range(4))
        self.sink = nn.Parameter(torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x).unflatten(-1, (2, 2)).transpose(1, 2) for part in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) / 2**0.5
        column = self.sink[:, None, None].expand(len(x), -1, x.shape[1], 1)
        weights = torch.cat([scores, column], -1).softmax(-1)[..., :-1]
        return self.o((weights @ v).transpose(1, 2).flatten(2))


class Sunk(nn.Module):
    """Two such layers with residual connections."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.unembed = nn.Embedding(networks.VOCAB, 4), nn.Linear(4, networks.VOCAB)
        self.first, self.second = SunkAttention(), SunkAttention()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        x = x + self.first(x)
        return self.unembed(x + self.second(x))


FIRST = ("embed", "layer0.attn.q", "layer0.attn.k", "layer0.attn.v", "layer0.attn.o")
SQUARE = (tokens(2), randn(2, 4, networks.VOCAB))
COUPLED: dict[str, tuple[Callable[[], Problem], tuple[str, ...]]] = {
    "two attentions and no more": (lambda: networks.toy_problem(2, layers=2, mlp=False), FIRST),
    "three layers, two heads, pre-norm, two batches": (
        lambda: networks.toy_problem(2, 1, layers=3, heads=2, norm="pre"),
        (*FIRST, "layer1.attn.q", "layer0.mlp.in", "layer0.mlp.out.bias", "layer0.norm1", "layer1.norm2.bias"),
    ),
    "linear attention, square loss": (
        lambda: networks.toy_problem(data=SQUARE, loss="square", layers=3, attention="linear", mlp=False),
        (*FIRST, "layer1.attn.v", "layer1.attn.o"),
    ),
    "sigmoid, no mask": (lambda: networks.toy_problem(2, layers=2, attention="sigmoid", causal=False), FIRST),
    "activation of the user's": (lambda: networks.toy_problem(2, layers=2, attention=sharpened), FIRST),
    "one layer": (lambda: networks.toy_problem(2, heads=2), ("pos", "embed")),
    "one layer, a table with fewer rows than a sequence has positions": (
        lambda: networks.toy_problem(data=pairs(2, length=6), heads=2, norm="pre"),
        ("pos", "embed"),
    ),
    "GPT-2, padded": (
        lambda: hl.problem(hugging_face.gpt2(tie_word_embeddings=False), hugging_face.padded(3)),
        ("pos", *FIRST, "layer0.norm1", "layer0.mlp.in", "layer0.mlp.out"),
    ),
    "Llama, turned, shared keys": (_family("Llama"), (*FIRST, "layer0.mlp.gate", "layer0.norm1")),
    "Gemma2, capped scores, window, norms behind": (_family("Gemma2, capped scores, window"), FIRST[1:]),
    "BLOOM, biased scores": (_family("BLOOM, biased scores"), FIRST[1:]),
    "Qwen3, norms of queries and keys": (_wide("Qwen3", head_dim=4), FIRST[1:]),
    "Exaone4, norms of as many heads as positions, behind the split": (_wide("Exaone4"), FIRST[1:]),
    "Phi3, gates packed with what they gate": (
        _wide("Phi3"),
        ("embed", "layer0.attn.q", "layer0.attn.o", "layer0.norm2"),
    ),
    "Phi3, narrow": (_family("Phi3, packed"), ("embed", "layer0.attn.q", "layer0.attn.o", "layer0.norm2")),
    "OLMo2, norms of all heads together": (_wide("Olmo2"), FIRST[1:]),
    "sinks": (
        lambda: hl.problem(networks.scrambled(Sunk().double()), (tokens(2), tokens(2, seed=1)), "cross_entropy"),
        ("first.q.weight", "first.k.weight", "first.v.weight", "first.o.weight", "embed.weight"),
    ),
    "GPT-NeoX, side by side": (_family("GPT-NeoX, turned in part"), (*FIRST[1:], "layer0.norm2")),
}
"""Curvature that couples the positions of a sequence, since attention follows."""


@pytest.fixture
def backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """HVPs are never cheaper."""
    monkeypatch.setattr(thresholds, "BACKPROPAGATION_MIN_HVPS", 0)
    monkeypatch.setattr(thresholds, "HVP_MULTIPLY_ADDS_PER_PARAMETER", 1e15)


@pytest.mark.expensive
@pytest.mark.usefixtures("backwards")
@pytest.mark.parametrize("name", COUPLED)
def test_it_passes_attention(name: str) -> None:
    make, blocks = COUPLED[name]
    problem = make()
    for block in blocks:
        assert found_and_expected(problem, block) == (0, pytest.approx(0, abs=1e-9)), block


@pytest.mark.usefixtures("backwards")
@pytest.mark.parametrize("name", ["three layers, two heads, pre-norm, two batches", "Llama, turned, shared keys"])
def test_maps_with_the_same_inputs_have_their_pairs(name: str) -> None:
    problem = COUPLED[name][0]()
    for row, column in (("q", "k"), ("q", "v"), ("v", "k")):
        found = found_and_expected(problem, f"layer0.attn.{row}", f"layer0.attn.{column}")
        assert found == (0, pytest.approx(0, abs=1e-9)), (row, column)


@pytest.mark.usefixtures("backwards")
def test_one_backpropagation_serves_all_maps_with_the_same_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    passages = []
    right = backpropagated.backpropagate_curvature
    monkeypatch.setattr(
        backpropagated, "backpropagate_curvature", lambda *args, **kw: passages.append(1) or right(*args, **kw)
    )
    problem = networks.toy_problem(2, layers=2, heads=2)
    norms = hl.block_norms(problem, ["layer0.attn.q", "layer0.attn.k", "layer0.attn.v"], method="exact")
    assert passages == [1]
    for (block, part), norm in norms.items():
        op = {"full": hl.hessian, "ggn": hl.ggn, "functional": hl.functional}[part](problem, block, method="hvp")
        assert norm.exact and norm.value == pytest.approx(float(op.to_dense().norm()), rel=1e-9)


def test_the_cheaper_way_is_taken_and_its_price_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = networks.toy_problem(2, layers=2, heads=2)
    block = problem.blocks["layer0.attn.q"]
    monkeypatch.setattr(thresholds, "BACKPROPAGATION_MIN_HVPS", 0)
    cheap = LinearMaps(problem).plan(block, block, 4)
    assert isinstance(cheap, LinearMapPlan) and cheap.backpropagated and cheap.products <= 4
    assert "curvature is backpropagated from the loss, as much work as" in cheap.why
    monkeypatch.setattr(thresholds, "HVP_MULTIPLY_ADDS_PER_PARAMETER", 0)
    monkeypatch.setattr(thresholds, "HVP_FORWARD_PASSES", 0.01)
    dear = LinearMaps(problem).plan(block, block, ANY)
    assert isinstance(dear, LinearMapPlan) and not dear.backpropagated and dear.products == 16
    assert LinearMaps(problem).plan(block, block, 15) == Refusal(
        "exact needs 16 HVPs, above the limit of 15; method='exact' allows it", at_this_price=True, hvps=16
    )


WRONG_ATTENTION = {
    "queries are forgotten": ("vjp", "q"),
    "keys are forgotten": ("vjp", "k"),
    "values are forgotten": ("vjp", "v"),
    "no second derivative between queries and keys": ("second_derivative", ("q", "k")),
    "no second derivative of the keys": ("second_derivative", ("k", "k")),
}


@pytest.mark.usefixtures("backwards")
@pytest.mark.parametrize("wrong", WRONG_ATTENTION)
def test_what_is_wrong_in_attention_is_found_out(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, key = WRONG_ATTENTION[wrong]
    right = getattr(AttentionCore, method)

    def without(core: AttentionCore, *args: torch.Tensor) -> object:
        found = dict(right(core, *args))
        found[key] = torch.zeros_like(found[key])
        return found if method == "vjp" else iter(found.items())

    monkeypatch.setattr(AttentionCore, method, without)
    problem = networks.toy_problem(2, layers=2)
    products, error = found_and_expected(problem, "layer0.attn.o")
    assert products > 0 and error < 1e-9


@pytest.mark.usefixtures("backwards")
def test_sequences_are_passed_one_by_one_or_together(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = networks.toy_problem(3, layers=2, heads=2, norm="pre")
    for size in (1, 2**22):
        monkeypatch.setattr(backpropagation, "_CHUNK_BYTES", size)
        assert found_and_expected(problem, "layer0.attn.q") == (0, pytest.approx(0, abs=1e-9))


WRONG = {
    "a norm that is not bent": (
        forms.Norm,
        "second_derivative",
        lambda self, g, chosen: g.new_zeros(*g.shape, g.shape[1]),
    ),
    "a norm seen as straight": (forms.Norm, "vjp", lambda self, A, chosen: A * self.scale[chosen, :, None]),
    "an activation that is not bent": (
        backpropagation._Backpropagation,
        "_through",
        lambda self, *args, right=backpropagation._Backpropagation._through: replace_second(right(self, *args)),
    ),
    "two ways through the network that know nothing of each other": (
        live_sites.LiveSites,
        "add_symmetric",
        lambda *_: None,
    ),
}


def replace_second(found: tuple) -> tuple:
    J, hvp, g = found
    return J, None if hvp is None else 0 * hvp, g


@pytest.mark.expensive
@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_found_out_and_left_to_products(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, (block, *_) = CARRIED["GPT-2, wide, two batches"]
    monkeypatch.setattr(*WRONG[wrong])
    products, error = found_and_expected(make(), block)
    assert products > 0 and error < 1e-9
    monkeypatch.setattr(batch_graph.HookedBatch, "agrees", lambda *_: True)
    monkeypatch.setattr(forms, "_curves_like", lambda *_: True)
    monkeypatch.setattr(forms, "close", lambda *_: True)
    monkeypatch.setattr(steps, "close", lambda *_: True)
    products, error = found_and_expected(make(), block)
    assert products == 0 and error > 1e-6


class Mixing(nn.Module):
    """Features are mixed by something that is neither a norm nor a function of single numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x).softmax(-1))


@pytest.mark.parametrize("name", ["softmax", "square", "a norm of an activation", "a few features"])
def test_other_networks_and_losses_are_left_to_products(name: str) -> None:
    data = (torch.randn(2, 3, 3, dtype=torch.float64), torch.zeros(2, 3, dtype=torch.int64))
    if name == "softmax":
        problem, block = hl.problem(Mixing().double(), data, "cross_entropy"), "first.weight"
    elif name == "a norm of an activation":
        problem, block = _family("BERT")(), "layer1.mlp.out"
    elif name == "square":
        given = (tokens(2), torch.randn(2, 4, networks.VOCAB).double())
        problem, block = networks.toy_problem(data=given, loss="square"), "layer0.mlp.out"
    else:
        model = hugging_face.gpt2(tie_word_embeddings=False)
        problem = hl.problem(model, {"input_ids": tokens()})
        whole = problem.blocks["layer1.mlp.out"]
        few = Block.of("few", whole.parameter, problem.params[whole.parameter], (slice(None), slice(0, 1)))
        problem, block = replace(problem, blocks={**problem.blocks, "few": few}), "few"
    products, error = found_and_expected(problem, block)
    assert products > 0 and error < 1e-9


@pytest.mark.long
def test_what_was_met_on_the_way_is_carried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    passages = []
    right = backpropagated.backpropagate_curvature
    monkeypatch.setattr(
        backpropagated, "backpropagate_curvature", lambda *args, **kw: passages.append(1) or right(*args, **kw)
    )
    problem = _wide("Llama")()
    norms = hl.block_norms(problem, ["layer1.attn.*", "layer1.norm2", "layer1.mlp.*", "norm_final"], method="exact")
    assert passages == [1]
    for (block, part), norm in norms.items():
        op = {"full": hl.hessian, "ggn": hl.ggn, "functional": hl.functional}[part](problem, block, method="hvp")
        assert norm.exact and norm.value == pytest.approx(float(op.to_dense().norm()), rel=1e-9, abs=1e-12)


def test_without_room_nothing_but_what_is_asked_for_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backpropagated, "_ROOM", 0)
    problem = _wide("Llama")()
    for block in ("layer1.attn.o", "norm_final", "layer1.mlp.out"):
        assert found_and_expected(problem, block) == (0, pytest.approx(0, abs=1e-9))


def test_single_precision_is_as_good_as_its_rounding() -> None:
    """Norms from Gram matrices in single precision, against the same network in double precision."""
    model = hugging_face.gpt2(tie_word_embeddings=False, n_inner=10)
    data = {"input_ids": tokens()}
    fine = hl.problem(model.double(), data)
    rough = hl.problem(model, data, dtype=torch.float32)
    names = ["layer1.attn.o", "layer1.norm2", "layer1.mlp.*", "norm_final"]
    expected, found = (hl.block_norms(problem, names, method="exact") for problem in (fine, rough))
    for key, norm in expected.items():
        largest = max(expected[key[0], part].value for part in ("full", "ggn", "functional"))
        assert abs(found[key].value - norm.value) <= 1e-5 * largest, key


@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12])
def test_squares_of_small_and_large_entries_fit(size: float) -> None:
    flat = size * torch.randn(9, 5, generator=torch.Generator().manual_seed(0))
    weights = torch.rand(9, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    weights = weights + weights.T
    expected = float((weights * (flat.double() @ flat.double().T)).sum())
    assert map_norms._weighted_gram(weights, flat) == pytest.approx(expected, rel=1e-5)


def test_a_passage_is_cut_into_chunks_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = _wide("Llama")()
    block = problem.blocks["layer1.attn.o"]
    maps = LinearMaps(problem)
    plan = maps.plan(block, block, ANY)
    expected = maps.curvature(plan, 0)
    monkeypatch.setattr(backpropagation, "_CHUNK_BYTES", 1)
    assert_same(LinearMaps(problem).curvature(plan, 0).functional, expected.functional, "chunks", 1e-12)


def test_a_smoothed_weighted_loss_is_carried_too() -> None:
    weights = torch.linspace(0.5, 2, networks.VOCAB, dtype=torch.float64)

    def loss(outputs: torch.Tensor, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return nnf.cross_entropy(outputs.flatten(0, -2), batch[1].flatten(), weight=weights, label_smoothing=0.1)

    problem = hl.problem(networks.toy(norm="pre"), pairs(2), loss)
    assert found_and_expected(problem, "layer0.mlp.out") == (0, pytest.approx(0, abs=1e-9))


def test_groups_that_are_split_have_matrices_of_their_own() -> None:
    live, ones = live_sites.LiveSites(), torch.ones(1, 2, 2)
    (whole,) = live.of([1.0, 2.0, 3.0])
    whole.add_gradient(torch.zeros(1, 2))
    live.add(whole, whole, Parts(ones.clone()), owned=True)
    (pair,) = live.of([1.0, 2.0])
    live.add(whole, whole, Parts(ones), owned=False)  # what is left of it: the last site
    live.add(pair, pair, Parts(2 * ones), owned=False)
    own, others, _ = live.take(3.0)
    crossed = [(group.sites, float(part.ggn.sum())) for group, part in others]
    assert torch.equal(own.ggn, 2 * ones) and crossed == [({1.0, 2.0}, 4.0)]
    own, ((rest, same),), _ = live.take(2.0)
    assert torch.equal(own.ggn, 3 * ones) and same is own and rest.sites == {1.0}
