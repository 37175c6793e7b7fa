"""The closed form of a network's last attention layer equals exact products: all blocks, pairs and parts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import hessianlens as hl
from hessianlens.network.routes.last_attention.exact import exact_attention
from hessianlens.operators import ArrangedGrid, HybridOperator
from tests.curvature import networks
from tests.curvature.networks import pairs
from tests.network.registry import NETWORKS, problem_of, products_of
from tests.oracles.comparison import assert_same
from tests.oracles.properties import PROPERTIES, trace_and_diagonal
from tests.variants import randn

PARTS = {"full": hl.hessian, "ggn": hl.ggn, "functional": hl.functional}


@pytest.mark.expensive
@pytest.mark.parametrize("name", NETWORKS)
def test_every_pair_of_blocks_equals_products(name: str) -> None:
    problem = problem_of(name)
    form = exact_attention(problem)
    for part in PARTS:
        whole = sum(block.square().sum() for block in products_of(name, part).values()).sqrt()
        for (row, column), expected in products_of(name, part).items():
            if part != "full" and row > column:
                continue
            op, V = form.operator(part, problem.blocks[row], problem.blocks[column]), randn(expected.shape[1], 2)
            found = op.to_dense()
            assert found.shape == expected.shape
            # Blocks that vanish by symmetry, such as those of b_K under softmax, are rounding on both sides.
            allowed = 1e-9 * max(float(expected.norm()), 1e-4 * float(whole))
            assert float((found - expected).norm()) <= allowed, f"{part} {row} x {column}"
            error = float((op @ V - expected @ V).norm()) / float(V.norm())
            assert error <= allowed, f"products of {part} {row} x {column}"


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", NETWORKS)
def test_the_public_call_answers_in_closed_form(name: str, part: str) -> None:
    """Diagonal and off-diagonal, when asked for and by itself."""
    problem, blocks = problem_of(name), NETWORKS[name].blocks
    for row, column in [(blocks[0], None), (blocks[2], blocks[3]), (blocks[-1], blocks[1])]:
        expected = products_of(name, part)[row, column or row]
        V = randn(expected.shape[1], 2)
        for method in ("exact", "auto"):
            asked = PARTS[part](problem, row, column, method=method)
            op = asked.closed if isinstance(asked, HybridOperator) else asked
            assert isinstance(op, ArrangedGrid) and asked.exact
            error = float((op @ V - expected @ V).norm())
            assert error <= 1e-9 * max(float(expected.norm()), 1e-6) * float(V.norm()), f"{part} {row} x {column}"


@pytest.mark.parametrize("name", ["two layers, two heads, pre-norm", "GPT-2, padded, several batches", "nanoGPT"])
@pytest.mark.parametrize("pair", [(0, 0), (2, 3), (4, 1)], ids=["q x q", "v x o", "q.bias x k"])
def test_what_holds_of_structured_operators_holds_of_it(name: str, pair: tuple[int, int]) -> None:
    row, column = (NETWORKS[name].blocks[k] for k in pair)
    op = hl.hessian(problem_of(name), row, column, method="exact")
    dense = op.to_dense()
    for holds in PROPERTIES:
        if holds is not trace_and_diagonal or row[-1] != "v":
            holds(op, dense)
    if row[-1] == "v":  # as wide as o is high, but no entry of v belongs to one of o
        with pytest.raises(hl.InputError, match="arranged differently"):
            op.diagonal()


def test_parts_add_up() -> None:
    problem = problem_of("two layers, two heads, pre-norm")
    full, ggn, functional = (make(problem, "layer1.attn.v", "layer1.attn.q", method="exact") for make in PARTS.values())
    assert_same((ggn + functional).to_dense(), full.to_dense(), "ggn + functional")
    assert float(ggn.frobenius_norm()) > 0 < float(functional.frobenius_norm())


def test_the_head_behind_the_attention_has_curvature_only_if_it_bends() -> None:
    """Behind ReLU and no norm the outputs are locally linear in the attention output: v and o have no own curvature."""
    straight, hvp = (
        hl.functional(problem_of(n), f"layer{k}.attn.v", method="exact")
        for n, k in (("ReLU, no norm", 0), ("two layers, two heads, pre-norm", 1))
    )
    assert float(straight.frobenius_norm()) == 0 < float(hvp.frobenius_norm())


def test_single_precision() -> None:
    network = NETWORKS["two layers, two heads, pre-norm"]
    rough = network.problem(dtype=torch.float32)
    for row, column in (("layer1.attn.q", "layer1.attn.q"), ("layer1.attn.v.bias", "layer1.attn.k")):
        op = hl.hessian(rough, row, column, method="exact")
        assert op.dtype == torch.float32
        expected = products_of("two layers, two heads, pre-norm", "full")[row, column]
        assert_same(op.to_dense().double(), expected, f"{row} x {column}", 1e-3)


def test_it_is_taken_at_the_weights_of_the_problem() -> None:
    """Not at those the model has by now."""
    model, batch = networks.toy(), pairs(2)[0]
    problem = hl.problem(model, batch, "cross_entropy").to(torch.float64)
    kept = {name: tensor.clone() for name, tensor in problem.params.items()}
    frozen = replace(problem, params=kept)
    before = hl.hessian(frozen, "layer0.attn.q", method="hvp") @ torch.eye(16, dtype=torch.float64)
    networks.scrambled(model, seed=9)
    assert_same(hl.hessian(frozen, "layer0.attn.q", method="exact").to_dense(), before, "frozen", 1e-9)


def test_auto_takes_products_where_the_closed_form_is_dear(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = NETWORKS["softmax"].problem()
    monkeypatch.setattr("hessianlens.network.base.thresholds.EXACT_MAX_HVPS", 3)
    operator = hl.hessian(problem, "layer0.attn.q")
    assert isinstance(operator, HybridOperator) and not operator.exact
    assert isinstance(hl.hessian(problem, "layer0.attn.q", method="exact"), ArrangedGrid)


def test_it_prints_its_algebra() -> None:
    text = str(hl.hessian(problem_of("softmax"), "layer0.attn.q", method="exact"))
    assert "16x16" in text and "sum_{" in text
