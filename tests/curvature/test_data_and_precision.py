"""The operator does not depend on how the data is cut, and its precision is the one asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import hessianlens as hl
from hessianlens.curvature import GaussNewtonOperator, HessianOperator
from tests.curvature import hugging_face, networks
from tests.curvature.agreement import OPERATORS, identity, same_operator
from tests.curvature.networks import pairs
from tests.curvature.registry import CASES, problem_of
from tests.oracles.comparison import assert_same
from tests.variants import DOUBLE, randn

CUTS = [[1, 4], [2, 2, 1], [1] * 5]
NAMED = {
    "cross_entropy": pairs(5)[0],
    "square": (networks.tokens(5), randn(5, networks.LENGTH, networks.VOCAB)),
    "bce": (networks.tokens(5), (randn(5, networks.LENGTH, networks.VOCAB) > 0).double()),
}
BLOCKS = ["layer0.attn.q", "layer0.mlp.in"]


def cut(batch: tuple[Tensor, Tensor], sizes: list[int]) -> list[tuple[Tensor, Tensor]]:
    return list(zip(*(t.split(sizes) for t in batch), strict=True))


@pytest.mark.parametrize("reduction", ["mean", "sequence", "sum"])
@pytest.mark.parametrize("loss", NAMED)
@pytest.mark.parametrize("sizes", CUTS, ids=str)
def test_batches_of_any_sizes_make_the_same_operator(loss: str, reduction: str, sizes: list[int]) -> None:
    model = networks.toy()
    whole = hl.problem(model, NAMED[loss], loss, reduction=reduction)
    parts = hl.problem(model, cut(NAMED[loss], sizes), loss, reduction=reduction)
    assert len(parts.data) == len(sizes)
    assert_same(parts.total_loss(), whole.total_loss(), "total loss")
    same_operator(parts, whole, BLOCKS, 1e-9)


@pytest.mark.parametrize("size", [1, 2, 4, 9])
def test_micro_batches_make_the_same_operator(size: int) -> None:
    model = networks.toy()
    whole = hl.problem(model, NAMED["cross_entropy"], "cross_entropy")
    parts = hl.problem(model, NAMED["cross_entropy"], "cross_entropy", micro_batch=size)
    assert [len(batch[0]) for batch in parts.data] == [min(size, 5 - k) for k in range(0, 5, size)]
    same_operator(parts, whole, BLOCKS, 1e-9)


def test_micro_batches_of_a_padded_dictionary() -> None:
    model, batch = hugging_face.gpt2(n_layer=1), hugging_face.padded(3)
    whole, parts = hl.problem(model, batch), hl.problem(model, batch, micro_batch=1)
    assert whole.reduction == parts.reduction
    assert {key: value.shape[0] for key, value in parts.data[0].items()} == dict.fromkeys(batch, 1)
    same_operator(parts, whole, ["layer0.attn.k", "embed"], 1e-9)


def test_a_function_averages_over_batches_by_size_or_sums() -> None:
    model, batch = networks.toy(), NAMED["square"]

    def mean(outputs: Tensor, part: tuple[Tensor, Tensor]) -> Tensor:
        return (outputs - part[1]).square().mean()

    def total(outputs: Tensor, part: tuple[Tensor, Tensor]) -> Tensor:
        return (outputs - part[1]).square().sum()

    named = hl.problem(model, batch, "square")
    same_operator(hl.problem(model, cut(batch, [1, 4]), mean), named, BLOCKS, 1e-9)
    summed = hl.problem(model, batch, "square", reduction="sum")
    same_operator(hl.problem(model, cut(batch, [1, 4]), total, reduction="sum"), summed, BLOCKS, 1e-9)


# --- precision -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["toy", "BERT, masked", "nn.TransformerEncoder, square"])
def test_a_float32_problem_of_a_float64_model(name: str) -> None:
    case = CASES[name]
    rough = case.problem(dtype=torch.float32)
    assert rough.dtype == torch.float32
    assert all(p.dtype == DOUBLE for p in rough.source.parameters())
    op = hl.hessian(rough, list(case.blocks), method="hvp")
    assert op.dtype == torch.float32 and (op @ identity(op)).dtype == torch.float32
    same_operator(rough, problem_of(name), list(case.blocks), 1e-3)


@pytest.mark.parametrize("name", ["toy", "nn.TransformerEncoder, square"])
def test_a_float64_problem_of_a_float32_model(name: str) -> None:
    """Weights that are exact in float32 give the same operator as a model that was float64 all along."""
    case = CASES[name]
    model = case.model().float()
    data = [tuple(t.float() if t.is_floating_point() else t for t in batch) for batch in case.data()]
    precise = hl.problem(model, data, case.loss, dtype=DOUBLE)
    assert precise.dtype == DOUBLE and all(p.dtype == torch.float32 for p in model.parameters())
    same_operator(precise, hl.problem(model.double(), data, case.loss), list(case.blocks), 1e-9)


@pytest.mark.parametrize("name", ["toy", "BERT, masked"])
def test_a_problem_moves_to_another_precision(name: str) -> None:
    """Integer buffers, such as BERT's position numbers, stay what they are."""
    problem = problem_of(name)
    moved = problem.to(torch.float32)
    kinds = {key: tensor.is_floating_point() for key, tensor in problem.params.items()}
    assert {key: tensor.dtype == torch.float32 for key, tensor in moved.params.items()} == kinds
    same_operator(moved, problem, list(CASES[name].blocks), 1e-3)
    same_operator(moved.to(DOUBLE), moved, list(CASES[name].blocks), 1e-3)


def test_vectors_of_another_precision_are_converted() -> None:
    op = hl.ggn(problem_of("toy"), "layer0.attn.v", method="hvp")
    v = randn(op.shape[1]).float()
    assert_same(op @ v, op @ v.double(), "op @ float32", 0)


# --- selections and graphs -------------------------------------------------------------------------------------------


def test_globs_and_expressions_stack_blocks_in_model_order() -> None:
    problem = problem_of("toy, two layers, two heads, pre-norm, sigmoid")
    expected = ["layer0.attn.q", "layer0.attn.k", "layer1.attn.q", "layer1.attn.k"]
    for pattern in ("layer*.attn.[qk]", "re:layer[01][.]attn[.](q|k)", expected[::-1]):
        op = hl.hessian(problem, pattern, "*.attn.v", method="hvp")
        assert [b.name for b in op.rows] == expected
        assert [b.name for b in op.columns] == ["layer0.attn.v", "layer1.attn.v"]
        assert op.shape == (64, 32)
    V = identity(op)[:, ::7]
    parts = [hl.hessian(problem, name, "*.attn.v", method="hvp") @ V for name in expected]
    assert_same(op @ V, torch.cat(parts), "stacked")


def test_blocks_that_overlap_are_rows_of_their_own() -> None:
    """A head beside the whole it is part of: the same rows once more."""
    problem = CASES["toy, two layers, by head, square"].problem()
    names = ["layer0.attn.q", "layer0.attn.q.head1"]
    both, whole = (hl.hessian(problem, n, "layer0.attn.v", method="hvp") for n in (names, names[0]))
    V = randn(16, 2)
    head = (whole @ V).reshape(4, 4, 2)[:, 2:].reshape(8, 2)
    assert_same(both @ V, torch.cat([whole @ V, head]), "rows")
    columns = hl.hessian(problem, "layer0.attn.v", names, method="hvp")
    assert_same(columns.adjoint() @ V, both @ V, "columns")


@pytest.mark.parametrize("kind", [HessianOperator, GaussNewtonOperator])
def test_kept_graphs_change_nothing(kind) -> None:
    problem = networks.toy_problem(data=cut(NAMED["cross_entropy"], [2, 3]))
    blocks = problem.select(BLOCKS)
    forgetful, keeping = (kind(problem, blocks, blocks, keep_graphs=keep) for keep in (False, True))
    for seed in range(3):
        v = randn(keeping.shape[1], seed=seed)
        assert_same(keeping @ v, forgetful @ v, "kept", 1e-14)
    assert [sum(at._graph is not None for at in op._kept.values()) for op in (keeping, forgetful)] == [2, 0]
    assert not (keeping @ v).requires_grad


def test_products_work_where_gradients_are_off() -> None:
    op = hl.hessian(problem_of("toy"), "layer0.attn.q", method="hvp")
    with torch.no_grad():
        fresh = type(op)(op.problem, op.rows, op.columns)
        assert_same(fresh @ identity(op), op @ identity(op), "no_grad", 0)


def test_a_loss_without_curvature_has_no_gauss_newton_part() -> None:
    problem = replace(problem_of("toy"), loss=lambda outputs, batch: outputs.sum())
    full, ggn, functional = (make(problem, BLOCKS) @ torch.eye(28, dtype=DOUBLE) for make in OPERATORS.values())
    assert not ggn.any() and full.any()
    assert_same(functional, full, "functional")


def test_operators_say_what_they_are() -> None:
    problem = problem_of("toy")
    text = repr(hl.ggn(problem, "layer0.attn.q", "layer0.attn.v", method="hvp"))
    assert text.startswith("GaussNewtonOperator 16x16: [layer0.attn.q] x [layer0.attn.v], Jacobian products")
    assert "gradients per matvec" in text
