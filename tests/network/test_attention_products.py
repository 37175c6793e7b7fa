"""Products with blocks of the last attention layer: by tangents, by the printed terms and by entries, all the same."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import hessianlens as hl
from hessianlens.curvature import thresholds
from hessianlens.network.planner import planner_of
from hessianlens.network.routes.last_attention import ExactAttention, exact_attention, products
from hessianlens.network.routes.last_attention.products import PiecePlace, PieceProducts
from hessianlens.operators import ArrangedGrid, BlockGrid, HybridOperator
from hessianlens.problems import Problem
from tests.network.registry import NETWORKS, problem_of, products_of
from tests.network.sites.families import FAMILIES
from tests.network.sites.test_families import problem_of as family_problem
from tests.network.watches import Counting
from tests.variants import randn

PARTS = {"full": hl.hessian, "ggn": hl.ggn, "functional": hl.functional}
NEAR = 1e-9


def from_terms(op: ArrangedGrid) -> ArrangedGrid:
    """The same matrix from the sums over tokens alone."""
    grid = op.grid
    assert grid.product is not None, "a product that builds nothing a token"
    terms = BlockGrid(
        grid.rows, grid.columns, lambda r, c: grid.block(r, c).written_out(), grid.dtype, torch.device("cpu")
    )
    assert terms.product is None
    return ArrangedGrid(terms, op._out_shape[0], op._in_shape[0], op._rows, op._columns)


def gap(found: Tensor, expected: Tensor, least: float = 1e-6) -> float:
    return float((found - expected).norm()) / max(float(expected.norm()), least)


CASES: dict[str, Callable[[], Problem]] = {
    "several batches, several heads": lambda: problem_of("two layers, two heads, linear, several batches"),
    "biases, shared keys": lambda: family_problem(FAMILIES["Llama, biases, wide heads"]()),
    "capped scores": lambda: family_problem(FAMILIES["Gemma2, capped scores, window"]()),
    "one key head": lambda: family_problem(FAMILIES["Falcon, one key head"]()),
}


@pytest.mark.expensive
@pytest.mark.parametrize("case", CASES)
def test_tangents_terms_and_entries_agree(case: str) -> None:
    """Whole projections and single heads, between which keys and values may be shared."""
    problem = CASES[case]()
    form = exact_attention(problem)
    assert isinstance(form, ExactAttention)
    covered = [block for block in problem.blocks.values() if form.covers([block])]
    for part, (row, column) in itertools.product(PARTS, itertools.combinations_with_replacement(covered[:5], 2)):
        op = form.operator(part, row, column)
        dense, terms = op.to_dense(), from_terms(op)
        least = 1e-6 * max(1.0, float(dense.norm()))
        assert gap(op @ torch.eye(op.shape[1], dtype=op.dtype), dense, least) < NEAR, f"{part} {row.name} {column.name}"
        assert gap(terms.to_dense(), dense, least) < NEAR, f"{part} {row.name} {column.name}"
        if row is column:
            assert gap(op.diagonal(), dense.diagonal(), least) < NEAR and gap(op.trace(), dense.trace(), least) < NEAR


class FirstHeadOnly(PieceProducts):
    """Forgets that several heads share a piece."""

    def __init__(self, layer, parts) -> None:
        super().__init__(layer, {n: PiecePlace(part.heads[:1], part.rows, part.shape) for n, part in parts.items()})


class BiasOnTop(PieceProducts):
    """Puts a piece in other rows than its own."""

    def __init__(self, layer, parts) -> None:
        def rows(part: PiecePlace) -> slice:
            return part.rows if part.whole else slice(1, None) if part.own_shape[0] > 1 else slice(0, 1)

        turned = {n: PiecePlace(part.heads, rows(part), part.shape) for n, part in parts.items()}
        super().__init__(layer, turned)


@pytest.mark.parametrize(("wrong", "family"), [(FirstHeadOnly, "Falcon, one key head"), (BiasOnTop, "GPT-2")])
def test_a_wrong_place_is_found_out(wrong: type[PieceProducts], family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = family_problem(FAMILIES[family]())
    form = exact_attention(problem)
    assert isinstance(form, ExactAttention)
    block = problem.blocks[f"{form.prefix}.k"]
    right = from_terms(form.operator("full", block, block)).to_dense()
    monkeypatch.setattr(products, "PieceProducts", wrong)
    V = randn(right.shape[1], 2)
    assert gap(form.operator("full", block, block) @ V, right @ V) > 1e-3


def test_many_vectors_are_multiplied_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hessianlens.layer.tangent._WORKSPACE_BYTES", 1)
    problem = family_problem(FAMILIES["Llama"]())
    form = exact_attention(problem)
    assert isinstance(form, ExactAttention)
    op = form.operator("full", problem.blocks["layer1.attn.k"], problem.blocks["layer1.attn.q"])
    assert gap(op @ torch.eye(op.shape[1], dtype=op.dtype), from_terms(op).to_dense()) < NEAR


@pytest.mark.long
@pytest.mark.parametrize("part", PARTS)
def test_a_large_model_multiplies_before_anything_is_known_of_what_lies_behind(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few products are cheaper than the curvature behind the layer; norms and entries find it."""
    monkeypatch.setattr(thresholds, "TAPE_MIN_MULTIPLY_ADDS", 0.0)
    name = "two layers, two heads, pre-norm"
    problem, expected = NETWORKS[name].problem(), products_of(name, part)["layer1.attn.q", "layer1.attn.q"]
    op, V = PARTS[part](problem, "layer1.attn.q"), randn(expected.shape[1], 8)
    assert isinstance(op, HybridOperator) and "act on every position by itself" in op.why
    assert gap(op @ V, expected @ V) < NEAR
    form = planner_of(problem).attention.located
    assert isinstance(form, ExactAttention) and not form.known
    assert gap(op.trace(), expected.trace()) < NEAR and form.known
    assert isinstance(op.closed, ArrangedGrid) and gap(op @ V, expected @ V) < NEAR


@pytest.mark.expensive
@pytest.mark.parametrize("name", ["two layers, two heads, pre-norm", "GPT-2, padded, several batches", "softmax"])
def test_a_bar_ends_where_it_was_planned_to(name: str) -> None:
    """Weights and biases share products, and some curvature takes none: the plan is kept to, and the count honest."""
    problem, watch = NETWORKS[name].problem(), Counting()
    last = [block for block in problem.blocks if block.startswith((f"layer{NETWORKS[name].layer}.", "unembed"))]
    for _ in range(2):  # the second time much is known
        hl.block_norms(problem, last, method="exact", progress=watch)
        assert watch.planned is not None and watch.planned >= len(last)
        assert watch.passed == pytest.approx(watch.planned) and watch.ended
        assert watch.done <= watch.planned
