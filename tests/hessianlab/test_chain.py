"""Norms of earlier attention layers by the chain: those of autograd's products, probe by probe."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import hessianlens as hl
from hessianlab.chain import chain_registered
from hessianlab.chain import products as theory
from hessianlab.chain.layer import Layer, TangentCoefficients
from hessianlab.chain.links import find_chain
from hessianlab.chain.source import ChainedAttention, chained_attention
from hessianlens.losses.curvature_forms import FactoredTokenCurvature
from hessianlens.models.block import TransformerBlock
from hessianlens.network.routes.last_attention.exact import exact_attention
from hessianlens.problems import Problem
from tests.curvature import networks
from tests.curvature.networks import pairs, scrambled, tokens
from tests.oracles.comparison import assert_same
from tests.variants import randn

PARTS = {"full": hl.hessian, "ggn": hl.ggn, "functional": hl.functional}
WEIGHTS = ["q", "k", "v", "o", "q.bias", "k.bias", "v.bias"]
RELU = {"layers": 3, "mlp_activation": "relu"}


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    with chain_registered():
        yield


def relu(**options) -> hl.models.Transformer:
    return networks.toy(**{**RELU, **options})


def relu_problem(*sizes: int, data: object = None, loss: object = "cross_entropy", **options) -> Problem:
    return networks.toy_problem(*sizes, data=data, loss=loss, **{**RELU, **options})


def _first_positions(out: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return out[:, 1:3].pow(2).sum() + out[:, 1].exp().sum()


def _negative_curvature(out: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return out.sin().sum()


def curved_at_the_end() -> hl.models.Transformer:
    """Behind the last attention layer the network may bend; 12 features for 4 outputs keep its curvature factored."""
    model = relu(d_model=12)
    model.blocks[-1].mlp.activation = nn.functional.gelu
    return scrambled(model, size=0.4)


NETWORKS: dict[str, Callable[[], Problem]] = {
    "softmax": lambda: relu_problem(3),
    "two layers, several batches": lambda: relu_problem(2, 1, layers=2),
    # Smaller weights, or attention saturates and both sides lose digits.
    "four layers": lambda: hl.problem(scrambled(relu(layers=4), size=0.4), pairs(2), "cross_entropy"),
    "some positions": lambda: relu_problem(data={"tokens": tokens(3)}, loss=_first_positions),
    "not causal": lambda: relu_problem(2, causal=False),
    "sigmoid, temperature": lambda: relu_problem(2, attention="sigmoid", temperature=0.7),
    "row-normalised": lambda: relu_problem(2, attention="relu_normalised"),
    "user's activation": lambda: relu_problem(2, attention=lambda row: torch.softmax(2 * row, -1)),
    "linear, attention only": lambda: relu_problem(2, attention="linear", mlp=False, residual_scale=0.0),
    "scaled residual": lambda: relu_problem(2, residual_scale=0.5),
    "wide head": lambda: relu_problem(2, d_head=6),
    "linear MLP": lambda: relu_problem(2, mlp_activation="linear"),
    "MLP of falling slopes": lambda: relu_problem(2, mlp_activation=torch.abs),
    "factored, curved at the end": lambda: hl.problem(curved_at_the_end(), {"tokens": tokens(3)}, _negative_curvature),
}


def chain_of(problem: Problem) -> ChainedAttention | None:
    exact = exact_attention(problem)
    assert exact is not None
    return chained_attention(exact)


@pytest.mark.expensive
@pytest.mark.parametrize("name", NETWORKS)
def test_products_are_those_of_autograd(name: str) -> None:
    problem = NETWORKS[name]()
    chain = chain_of(problem)
    assert chain is not None
    last = len(chain.chains[0]) - 1
    blocks = [problem.blocks[f"layer{n}.attn.{role}"] for n in range(last) for role in WEIGHTS]
    assert all(chain.covers(block) for block in blocks)
    V = {b.name: randn(3, *b.shape, seed=k) for k, b in enumerate(blocks)}
    found = chain.products([(b, V[b.name]) for b in blocks])
    expected = {
        (name, part): (make(problem, name, method="hvp") @ v.flatten(1).T).T.reshape(v.shape)
        for name, v in V.items()
        for part, make in PARTS.items()
    }
    largest = {n: max(float(p.norm()) for (name, _), p in expected.items() if name.startswith(n)) for n in _layers(V)}
    for name, (ggn, functional) in found.items():
        for part, product in (("ggn", ggn), ("functional", functional), ("full", ggn + functional)):
            # Blocks that vanish, such as that of b_K under softmax, are rounding on both sides: relative to the layer
            allowed = 1e-10 * max(float(expected[name, part].norm()), 1e-2 * largest[name.split(".")[0]])
            assert float((product - expected[name, part]).norm()) <= allowed, f"{part} {name}"


def test_the_curved_network_is_factored_and_curved() -> None:
    exact = exact_attention(NETWORKS["factored, curved at the end"]())
    (found,) = exact.derivatives
    assert isinstance(found.ggn, FactoredTokenCurvature) and found.head is not None


def _layers(names: Iterable[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize("name", ["softmax", "factored, curved at the end"])
@pytest.mark.parametrize("room", [1, 10**9])
def test_sequences_may_be_taken_together_or_one_by_one(name: str, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = NETWORKS[name]()
    block = problem.blocks["layer0.attn.q"]
    V = randn(2, *block.shape)
    expected = chain_of(problem).products([(block, V)])[block.name]
    for limit in ("_GROUP_BYTES", "_STEP_BYTES"):
        monkeypatch.setattr(theory, limit, room)
    for one, other in zip(chain_of(problem).products([(block, V)])[block.name], expected, strict=True):
        assert_same(one, other, "product")


def test_norms_are_the_same_estimates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hessianlens.network.base.thresholds.EXACT_MAX_HVPS_PER_PROBE", 0)
    problem = relu_problem(3, d_model=6)
    names = ["layer*.attn.[qkvo]", "layer*.attn.v.bias", "layer1.mlp.in"]
    fast = hl.block_norms(problem, names, probes=7, seed=5)
    slow = hl.block_norms(problem, names, probes=7, seed=5, method="probes")
    for (name, part), estimate in fast.items():
        if name.startswith("layer2.attn"):
            assert estimate.method == "exact"
            continue
        other = slow[name, part]
        assert (estimate.probes, estimate.seed, estimate.method) == (other.probes, other.seed, other.method)
        assert estimate.value == pytest.approx(other.value, rel=1e-10, abs=1e-14)
        assert estimate.stderr == pytest.approx(other.stderr, rel=1e-8, abs=1e-14)


@pytest.mark.long
def test_single_precision_gives_single_precision() -> None:
    model = scrambled(relu(), size=0.4)
    double, single = (hl.problem(model, pairs(3), "cross_entropy", dtype=t) for t in (torch.float64, torch.float32))
    names = "layer[01].attn.[qkvo]"
    expected, found = (hl.block_norms(problem, names, probes=5) for problem in (double, single))
    for key, estimate in found.items():
        assert estimate.value == pytest.approx(expected[key].value, rel=1e-3), key


def test_blocks_of_one_layer_do_not_disturb_each_other() -> None:
    problem = NETWORKS["softmax"]()
    together = hl.block_norms(problem, "layer0.attn.*", probes=3)
    alone = hl.block_norms(problem, "layer0.attn.v", probes=3)
    for key, estimate in alone.items():
        assert estimate.value == pytest.approx(together[key].value, rel=1e-12)


class Neighbour(nn.Module):
    def forward(self, hidden: Tensor) -> Tensor:
        return hidden.relu() + 0.1 * hidden.roll(1, 1).relu()


OTHERS: dict[str, Callable[[], hl.models.Transformer]] = {
    "curved MLP": lambda: relu(mlp_activation="gelu"),
    "MLP that mixes positions": lambda: relu(mlp_activation=Neighbour()),
    "norms": lambda: relu(norm="pre"),
    "two heads": lambda: relu(heads=2),
    "one query-key matrix": lambda: relu(query_key="single"),
}


@pytest.mark.expensive
@pytest.mark.parametrize("name", OTHERS)
def test_models_that_form_no_chain(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hessianlens.network.base.thresholds.EXACT_MAX_HVPS_PER_PROBE", 0)
    monkeypatch.setattr("hessianlens.network.base.thresholds.EXACT_MAX_HVPS", 0)
    model = OTHERS[name]()
    problem = hl.problem(model, pairs(2), "cross_entropy")
    assert find_chain(model, problem.data[0]) is None
    norms = hl.block_norms(problem, ["layer0.attn.v", "layer1.attn.v"], ("full",), probes=3, seed=2)
    slow = hl.block_norms(problem, ["layer0.attn.v", "layer1.attn.v"], ("full",), probes=3, seed=2, method="probes")
    assert dict(norms) == dict(slow)


class Bent(TransformerBlock):
    """A block of the user's own, which adds what the chain does not know."""

    def join(self, F: Tensor, residual: Tensor) -> Tensor:
        return super().join(F, residual) + 0.01 * residual.tanh()


def test_blocks_that_do_more_form_no_chain() -> None:
    model = relu()
    model.blocks[0].__class__ = Bent
    assert chain_of(hl.problem(model, pairs(2), "cross_entropy")) is None


def test_a_single_layer_is_no_chain() -> None:
    assert chain_of(relu_problem(2, layers=1)) is None


def test_blocks_that_the_chain_does_not_know() -> None:
    problem = relu_problem(2, attention_bias=False)
    chain = chain_of(problem)
    known = [name for name, block in problem.blocks.items() if chain.covers(block)]
    assert known == [f"layer{n}.attn.{x}" for n in (0, 1) for x in "qkvo"]


def published(sigma: float, layers: int, **options) -> Problem:
    """A narrow model of the published kind; attention and loss saturate at large sigma."""
    task, kind = hl.tasks.Addition(), {"d_model": 24, "vocab": 12, "context": 18, "seed": 3, **options}
    model = hl.models.Transformer(layers=layers, dtype=torch.float64, **kind).redraw_embeddings(sigma, 5)
    loss = task.square if options else task.cross_entropy
    return hl.problem(model, task.batch(6, seed=1), loss, verify=False)


BELOW = ["layer0.attn.q", "layer0.attn.v"]


def autograd_products(problem: Problem) -> tuple[list, dict[tuple[str, str], Tensor]]:
    """Vectors of the lowest layer, and both parts of their products in float64."""
    vectors = [(problem.blocks[name], randn(2, *problem.blocks[name].shape, seed=1)) for name in BELOW]
    expected = {
        (block.name, part): (PARTS[part](problem, block.name, method="hvp") @ v.flatten(1).T).T.reshape(v.shape)
        for block, v in vectors
        for part in ("ggn", "functional")
    }
    return vectors, expected


def largest_error(problem: Problem) -> float:
    """Of products by float32 tangents, relative to autograd's."""
    vectors, expected = autograd_products(problem)
    found = chain_of(problem).products(vectors, torch.float32)
    pairs = [
        (both[part == "functional"], product) for (name, part), product in expected.items() for both in [found[name]]
    ]
    return max(float((product - exact).norm() / exact.norm()) for product, exact in pairs)


MIXED = 2e-5
"""What float32 tangents may be off by at any scale and depth; 2e-6 was the most seen, at depth 4 and sigma 10."""


@pytest.mark.parametrize("layers", [2, 4])
@pytest.mark.parametrize("sigma", [1e-2, 1e-1, 1.0, 3.0, 10.0])
def test_float32_tangents_around_a_float64_point(layers: int, sigma: float) -> None:
    assert 0 < largest_error(published(sigma, layers)) < MIXED


@pytest.mark.expensive
@pytest.mark.parametrize("wrong", ["A", "e", "D", "vjp", "Z"])
def test_a_coefficient_that_is_off_by_a_thousandth_is_found(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exactly = Layer.linear

    def off(layer: Layer, seen: Tensor, dtype: torch.dtype) -> TangentCoefficients:
        linear = exactly(layer, seen, dtype)
        return replace(linear, **{wrong: getattr(linear, wrong) * (1 + 1e-3)})

    monkeypatch.setattr(Layer, "linear", off)
    assert largest_error(published(1.0, 3)) > MIXED


def test_float32_all_through_is_told_from_float32_tangents() -> None:
    problem = published(10.0, 3)
    vectors, expected = autograd_products(problem)
    single = hl.problem(problem.source, problem.data, problem.loss, dtype=torch.float32, check=False, verify=False)
    found = chain_of(single).products([(single.blocks[block.name], v.float()) for block, v in vectors])
    errors = [float((found[name][0] - expected[name, "ggn"]).norm() / expected[name, "ggn"].norm()) for name in BELOW]
    assert max(errors) > 1e-3


def test_norms_by_float32_tangents() -> None:
    problem = published(3.0, 3)
    expected = hl.block_norms(problem, "layer*.attn.[qv]", probes=4, method="probes")
    with chain_registered(torch.float32):
        found = hl.block_norms(problem, "layer*.attn.[qv]", probes=4)
    for key in found:
        if key[0].startswith(("layer0", "layer1")):
            assert "chain" in found.why[key[0]]
            assert found[key].value == pytest.approx(expected[key].value, rel=1e-6)
            assert found[key].value != expected[key].value


@pytest.mark.parametrize("sigma", [1e-1, 1e-3])
def test_products_beyond_the_range_of_float32(sigma: float) -> None:
    """Logits of three chained linear layers fall with the 27th power of sigma, and the Gauss-Newton part with twice."""
    problem = published(sigma, 3, attention="linear", mlp=False, residual_scale=0.0)
    names = "layer*.attn.[qv]"
    expected = hl.block_norms(problem, names, probes=4)
    with chain_registered(torch.float32):
        found = hl.block_norms(problem, names, probes=4)
    smallest = min(norm.value for norm in expected.values())
    assert smallest < (1e-30 if sigma == 1e-1 else 1e-80)
    for key, norm in found.items():
        assert norm.value == pytest.approx(expected[key].value, rel=1e-5), key


def test_tokens_that_no_loss_sees_are_left_out() -> None:
    visible = torch.ones(5, 5).tril().bool()[None]
    assert theory._seen([visible, visible], torch.tensor([1, 3])).tolist() == [True] * 4 + [False]
    every = torch.ones_like(visible)
    assert bool(theory._seen([every, visible], torch.tensor([1])).all())


def test_outside_of_the_scope_probes_go_another_way() -> None:
    problem = NETWORKS["softmax"]()

    def norms() -> hl.network.BlockNorms:
        return hl.block_norms(problem, "layer*.attn.q", ("full",), probes=2)

    assert "chain" in norms().why["layer0.attn.q"]
    elsewhere = contextvars.Context().run(norms)
    assert "chain" not in elsewhere.why["layer0.attn.q"]
