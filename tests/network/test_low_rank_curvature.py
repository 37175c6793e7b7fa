"""Few outputs behind weights whose derivative is not symmetric: norms, blocks and products are those of autograd."""

from __future__ import annotations

import itertools
from functools import cache

import pytest
from torch import Tensor, nn

import hessianlens as hl
from hessianlab.chain.source import chained_attention
from hessianlens.losses.curvature_forms import FactoredTokenCurvature
from hessianlens.network.routes.last_attention.exact import exact_attention
from hessianlens.problems import Problem
from tests.curvature import networks
from tests.oracles.autograd import DenseHessian
from tests.oracles.comparison import assert_same
from tests.oracles.network import PARTS, dense_network_hessian
from tests.oracles.properties import dense_form, frobenius_norm, product_with_matrix, trace_and_diagonal
from tests.variants import ALL_ACTIVATIONS, moved_on, randn

ATTENTIONS = {"diagonal plus low rank": ALL_ACTIVATIONS["softplus / row sum"](), "dense": moved_on}
"""Activations whose derivative is not symmetric, by the form in which it is kept."""
MLPS = ("relu", "gelu")
ROLES = ("q", "k", "v", "o", "q.bias", "v.bias")

TOKENS = networks.tokens(2) % 2


def _hvp(out: Tensor, batch: object = None) -> Tensor:
    """Of both signs of curvature, and none of its directions an output."""
    return (out.sin() * out.roll(1, -1).exp()).sum()


@cache
def made(attention: str, mlp: str, layers: int) -> tuple[Problem, DenseHessian]:
    """Two outputs of six features: the curvature behind the last attention stays factored."""
    options = {"vocab": 2, "d_model": 6, "layers": layers, "attention": ATTENTIONS[attention], "mlp_activation": mlp}
    model: nn.Module = networks.toy(**options)
    problem = hl.problem(model, {"tokens": TOKENS}, _hvp)
    blocks = [problem.blocks[f"layer0.attn.{role}"] for role in ROLES]
    pieces = {block.name: (block.parameter, block.index) for block in blocks}
    dense = dense_network_hessian(model, [TOKENS], lambda outputs, _: _hvp(outputs[0]), pieces)
    (found,) = exact_attention(problem).derivatives
    assert isinstance(found.ggn, FactoredTokenCurvature) and (found.head is None) == (mlp == "relu")
    return problem, dense


@pytest.mark.expensive
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("mlp", MLPS)
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_shared_norms(attention: str, mlp: str, role: str) -> None:
    problem, dense = made(attention, mlp, layers=1)
    name = f"layer0.attn.{role}"
    found = exact_attention(problem)._shared_norms(problem.blocks[name])
    expected = {part: float(dense.block(own, name, name).norm()) for part, own in PARTS.items()}
    assert found == pytest.approx(expected, rel=1e-10, abs=1e-14)


@pytest.mark.expensive
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("mlp", MLPS)
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_blocks(attention: str, mlp: str, part: str) -> None:
    problem, dense = made(attention, mlp, layers=1)
    form = exact_attention(problem)
    for row, column in itertools.combinations_with_replacement(dense.ranges, 2):
        op, expected = (
            form.operator(part, problem.blocks[row], problem.blocks[column]),
            dense.block(PARTS[part], row, column),
        )
        if float(expected.abs().max()) < 1e-14:
            assert float(op.frobenius_norm()) < 1e-14
            continue
        dense_form(op, expected)
        frobenius_norm(op, expected)
        product_with_matrix(op, expected)
        if row == column:
            trace_and_diagonal(op, expected)


@pytest.mark.expensive
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_products_below_the_last_layer(attention: str, role: str) -> None:
    problem, dense = made(attention, "relu", layers=2)
    name = f"layer0.attn.{role}"
    block = problem.blocks[name]
    V = randn(3, *block.shape)
    ggn, functional = chained_attention(exact_attention(problem)).products([(block, V)])[name]
    for part, found in {"ggn": ggn, "functional": functional, "full": ggn + functional}.items():
        assert_same(found.flatten(1).T, dense.block(PARTS[part], name, name) @ V.flatten(1).T, part)
