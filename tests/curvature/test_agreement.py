"""Matrix-free products equal the dense derivatives of autograd: every architecture, loss, block and pair of blocks."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

import hessianlens as hl
from hessianlens.curvature import FunctionalOperator, GaussNewtonOperator, HessianOperator
from tests.curvature import hugging_face
from tests.curvature.agreement import AGREEMENTS, OPERATORS, whole_matrix
from tests.curvature.networks import tokens
from tests.curvature.registry import CASES, dense_of, problem_of
from tests.oracles.comparison import assert_same
from tests.variants import randn


@pytest.mark.parametrize("agreement", AGREEMENTS, ids=lambda a: a.__name__)
@pytest.mark.parametrize("name", CASES)
def test_products_equal_dense_derivatives(name: str, agreement) -> None:
    for part, make in OPERATORS.items():
        agreement(part, name, make)


@pytest.mark.parametrize("name", CASES)
def test_the_hessian_is_the_sum_of_its_parts(name: str) -> None:
    blocks = list(CASES[name].blocks)
    full, ggn, functional = (make(problem_of(name), blocks) for make in OPERATORS.values())
    v = randn(full.shape[1])
    assert_same(ggn @ v + functional @ v, full @ v, "ggn + functional", CASES[name].relative)


@pytest.mark.parametrize("name", CASES)
def test_every_part_of_every_case_has_something_to_find(name: str) -> None:
    """An operator that forgets a part, or mixes up two blocks, cannot pass by comparing zeros or equals."""
    dense = dense_of(name)
    for part in (dense.outer, dense.functional):
        assert part.norm() > 1e-2 * dense.full.norm()
        assert (part.diagonal() != 0).double().mean() > 0.5


# --- operators that are wrong in one place ---------------------------------------------------------------------------


class WithoutLossCurvature(GaussNewtonOperator):
    """``J^T J`` instead of ``J^T C J``."""

    def product(self, at, tangents, several=False) -> Mapping[str, Tensor]:
        at.graph.loss_curvature = lambda tangent, several=False: tangent
        return super().product(at, tangents, several)


class TwiceTheGradient(FunctionalOperator):
    """The functional part at a loss gradient that is twice as large."""

    def product(self, at, tangents, several=False) -> Mapping[str, Tensor]:
        return {name: 2 * value for name, value in super().product(at, tangents, several).items()}


class GaussNewtonAsHessian(HessianOperator):
    """The Hessian without its functional part."""

    def product(self, at, tangents, several=False) -> Mapping[str, Tensor]:
        split = (
            at.several("split", tangents, self.row_parameters) if several else at.split(tangents, self.row_parameters)
        )
        return split[0]


class FirstBatchOnly(HessianOperator):
    """One batch speaks for all."""

    def linearisations(self):
        yield next(iter(super().linearisations()))


class AtTheStartOfTheParameter(HessianOperator):
    """Every block taken for the first rows and columns of its parameter, as if nothing were packed."""

    def __init__(self, problem, rows, columns, keep_graphs=None) -> None:
        super().__init__(problem, *([self._shifted(b) for b in blocks] for blocks in (rows, columns)), keep_graphs)

    @staticmethod
    def _shifted(block):
        index = tuple(slice(0, n) for n in block.shape)
        return type(block)(block.name, block.parameter, index, block.shape)


WRONG = [
    ("ggn", "toy", WithoutLossCurvature),
    ("ggn", "MLP, cross-entropy", WithoutLossCurvature),
    ("functional", "toy", TwiceTheGradient),
    ("full", "MLP, cross-entropy", GaussNewtonAsHessian),
    ("full", "MLP, bce, summed", FirstBatchOnly),
    ("full", "nn.TransformerEncoder, square", AtTheStartOfTheParameter),
    ("full", "toy, two layers, by head, square", AtTheStartOfTheParameter),
    ("full", "GPT-NeoX, interleaved", AtTheStartOfTheParameter),
]


@pytest.mark.parametrize("part, name, wrong", WRONG)
def test_a_wrong_operator_is_found_out(part: str, name: str, wrong) -> None:
    def make(problem, rows, cols=None):
        return wrong(problem, problem.select(rows), problem.select(rows if cols is None else cols))

    with pytest.raises(AssertionError, match="relative error"):
        whole_matrix(part, name, make)


def test_blocks_of_one_parameter_add_up() -> None:
    """Queries and keys of GPT-2 are pieces of one tensor: a vector over both reaches both."""
    problem = hl.problem(hugging_face.gpt2(), {"input_ids": tokens(2), "labels": tokens(2)})
    names = ["layer0.attn.q", "layer0.attn.k"]
    sizes = [problem.blocks[name].numel for name in names]
    v = randn(sum(sizes), seed=4)
    pieces = dict(zip(names, v.split(sizes), strict=True))

    def row_of(row: str) -> Tensor:
        found = [hl.hessian(problem, row, name, method="hvp") @ piece for name, piece in pieces.items()]
        return torch.stack(found).sum(0)

    expected = torch.cat([row_of(row) for row in names])
    assert_same(hl.hessian(problem, names, method="hvp") @ v, expected, "both", 1e-9)


def test_a_transposed_pair_is_found_out() -> None:
    op = OPERATORS["full"](problem_of("toy"), "layer0.attn.q", "layer0.attn.v")
    expected = dense_of("toy").block("full", "layer0.attn.v", "layer0.attn.q")
    v = randn(op.shape[1])
    with pytest.raises(AssertionError):
        assert_same(op @ v, expected @ v, "transposed")
