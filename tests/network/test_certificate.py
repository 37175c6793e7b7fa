"""Certificates: an exact answer agrees with plain autograd, or another route gives it; nothing runs unasked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import hessianlens as hl
from hessianlens.errors import Refusal
from hessianlens.network import certificate as module
from hessianlens.network.base.question import PROBE_VECTORS, Question, probe_vectors
from hessianlens.network.certificate import Certificate, impossible_norm
from hessianlens.network.planner import Choice, planner_of
from hessianlens.network.routes import LastAttentionRoute, LinearMapRoute, ReadoutRoute, ZeroRoute
from hessianlens.operators import HybridOperator
from hessianlens.problems import Problem
from tests.curvature import networks
from tests.network.sites.families import FAMILIES
from tests.network.sites.test_families import problem_of as family_problem
from tests.oracles.comparison import assert_same
from tests.variants import randn

BLOCKS = ("layer1.attn.q", "layer1.attn.k.bias", "layer1.mlp.in", "layer0.attn.v", "unembed", "norm_final")


def toy() -> Problem:
    return networks.toy_problem(2, 1, layers=2, heads=2, norm="pre")


def counted(problem: Problem, runs: list[str]) -> Problem:
    forward = problem.forward

    def count(*args: Any) -> Tensor:
        runs.append("forward")
        return forward(*args)

    return replace(problem, forward=count)


@pytest.mark.parametrize("make", [hl.hessian, hl.ggn, hl.functional])
def test_construction_runs_nothing(make: Any) -> None:
    runs: list[str] = []
    problem = counted(toy(), runs)
    operator = make(problem, "layer0.attn.q", "layer1.mlp.in")
    print(operator, operator.shape, operator._repr_html_())
    assert not runs and isinstance(operator, HybridOperator)


KEY_BIASES: dict[str, Callable[[], Problem]] = {
    "softmax": lambda: networks.toy_problem(2),
    "sigmoid": lambda: networks.toy_problem(2, attention="sigmoid"),
    "rotary positions": lambda: family_problem(FAMILIES["Qwen2"]()),
}


@pytest.mark.every_case
@pytest.mark.parametrize("name", KEY_BIASES)
def test_a_key_bias_is_zero_only_where_nothing_depends_on_it(name: str) -> None:
    """The certificate would refuse a wrong guess; here none is made."""
    problem = KEY_BIASES[name]()
    block = [found for found in problem.blocks if found.endswith("attn.k.bias")][-1]
    op = hl.hessian(problem, block, method="exact")
    products = hl.hessian(problem, block, method="hvp") @ torch.eye(op.shape[1], dtype=torch.float64)
    assert float(op.frobenius_norm()) == pytest.approx(float(products.norm()), rel=1e-9, abs=1e-12)
    assert (float(op.frobenius_norm()) == 0) == (name == "softmax")
    assert "was not used" not in op.why


@pytest.mark.expensive
@pytest.mark.parametrize("name", BLOCKS)
def test_every_route_is_certified_and_right(name: str) -> None:
    problem = toy()
    planner = planner_of(problem)
    block = problem.blocks[name]
    dense = hl.hessian(problem, name, method="hvp").to_dense()
    for norms_only in (False, True):
        choice = planner.choose(Question(block, block, norms_only=norms_only))
        assert isinstance(choice, Choice), choice
        found = planner.operator(choice, "full")
        assert not isinstance(found, Refusal) and not planner._disagreements
        assert float((found[0].to_dense() - dense).norm()) <= 1e-9 * max(float(dense.norm()), 1e-6)
        norms = planner.norms(choice, ["full", "ggn", "functional"])
        assert not isinstance(norms, Refusal)
        assert norms[0].values["full"] == pytest.approx(float(dense.norm()), rel=1e-9, abs=1e-12)
        products = dense @ probe_vectors(block, problem).reshape(-1, PROBE_VECTORS)
        error = norms[0].matvecs["full"].reshape(-1, PROBE_VECTORS) - products
        assert float(error.norm()) <= 1e-9 * max(float(products.norm()), 1e-6)


def test_routes_are_all_reached() -> None:
    problem = toy()
    planner = planner_of(problem)
    routes = set()
    for name in BLOCKS:
        choice = planner.choose(Question(problem.blocks[name], problem.blocks[name], norms_only=True))
        assert isinstance(choice, Choice)
        routes.add(type(choice.route))
    assert routes == {LastAttentionRoute, LinearMapRoute, ReadoutRoute, ZeroRoute}


def test_a_wrong_product_is_refused_with_its_size() -> None:
    problem = toy()
    block = problem.blocks["layer1.attn.q"]
    product = (hl.hessian(problem, block.name, method="hvp")) @ probe_vectors(block, problem)[..., 0].reshape(-1)
    right = product.reshape(block.shape)
    certificate = Certificate(problem)
    assert certificate.compare(block, block, {"full": right}) is None
    wrong = right.clone()
    wrong[0, 0] += 1e-7 * float(right.norm())
    refusal = certificate.compare(block, block, {"full": wrong})
    assert refusal is not None and "differs from plain autograd's by 1e-07 of its length" in refusal.reason
    assert certificate.compare(block, block, {"full": torch.full_like(right, torch.nan)}) is not None


def test_zero_is_compared_with_the_rounding_of_autograd() -> None:
    """The product of a key's bias is rounding alone, and no zero of another size passes."""
    problem = toy()
    block, certificate = problem.blocks["layer1.attn.k.bias"], Certificate(problem)
    zero = torch.zeros(block.shape, dtype=problem.dtype)
    assert certificate.compare(block, block, {"full": zero, "ggn": zero, "functional": zero}) is None
    assert certificate.compare(block, block, {"full": zero + 1e-12}) is not None


def test_a_route_that_disagrees_is_replaced_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = LastAttentionRoute.operator
    monkeypatch.setattr(LastAttentionRoute, "operator", lambda self, *given: 1.01 * operator(self, *given))
    problem, name = toy(), "layer1.attn.v"
    dense = hl.hessian(problem, name, method="hvp").to_dense()
    found = hl.hessian(problem, name)
    assert_same(found.to_dense(), dense, name, 1e-9)
    assert found.exact and "it enters through a linear map" in found.why
    assert "the closed form of attention was not used: its product with a random vector differs" in found.why
    norms = hl.block_norms(problem, name, ("full",))
    assert norms[name, "full"].value == pytest.approx(float(dense.norm()), rel=1e-9)


def test_where_no_route_agrees_hvps_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    for route in (LastAttentionRoute, LinearMapRoute, ReadoutRoute):
        plain = route.operator
        monkeypatch.setattr(route, "operator", lambda self, *given, plain=plain: 1.01 * plain(self, *given))
    problem, name = toy(), "layer1.attn.v"
    operator = hl.hessian(problem, name)
    dense = hl.hessian(problem, name, method="hvp").to_dense()
    assert_same(operator.trace(), dense.trace(), "trace", 1e-9)
    assert not operator.exact and "was not used" in operator.why
    assert_same(operator.adjoint().to_dense(), dense.T, "adjoint", 1e-9)
    several = hl.hessian(problem, [name, "layer1.mlp.in"])
    assert_same(several @ torch.ones(several.shape[1], dtype=problem.dtype), several.to_dense().sum(1), "several", 1e-9)
    assert not several.exact
    with pytest.raises(hl.InputError, match=r"method: got 'exact', but .*was not used"):
        hl.hessian(problem, name, method="exact")


def test_a_norm_must_be_that_of_its_products(monkeypatch: pytest.MonkeyPatch) -> None:
    norms = LinearMapRoute.norms

    def enlarged(self: LinearMapRoute, *given: Any) -> Any:
        found = norms(self, *given)
        return replace(found, values={part: 1000 * value for part, value in found.values.items()})

    monkeypatch.setattr(LinearMapRoute, "norms", enlarged)
    problem = toy()
    found = hl.block_norms(problem, "layer1.mlp.in", ("full",), probes=4)
    assert not found["layer1.mlp.in", "full"].exact
    assert "is not that of its matvecs with probe vectors" in found.why["layer1.mlp.in"]


def test_what_cannot_be_certified_is_not_called_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAFE_SHARE", 0.0)
    problem = toy()
    norms = hl.block_norms(problem, "layer1.attn.q", ("full",), probes=3)
    assert not norms["layer1.attn.q", "full"].exact
    assert "by plain autograd, needs" in norms.why["layer1.attn.q"]


@pytest.mark.parametrize("rank", [1, 3, 40])
def test_right_norms_are_possible(rank: int) -> None:
    """Whatever the spectrum: a single direction is the hardest for few probes."""
    for seed in range(200):
        A = randn(40, rank, seed=seed) @ randn(rank, 40, seed=seed + 1000)
        assert not impossible_norm(float(A.norm()), A @ randn(40, PROBE_VECTORS, seed=seed + 2000))


def test_wrong_norms_are_not() -> None:
    A, V = randn(200, 200), randn(200, PROBE_VECTORS, seed=1)
    assert impossible_norm(3 * float(A.norm()), A @ V) and impossible_norm(float(A.norm()) / 3, A @ V)
    assert impossible_norm(0.0, A @ V) and impossible_norm(float("inf"), A @ V)
    assert not impossible_norm(0.0, torch.zeros(5, PROBE_VECTORS))
