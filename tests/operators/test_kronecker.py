"""The nearest Kronecker products against the singular values of the rearranged dense matrix, and curvlinops' KFAC."""

from __future__ import annotations

import pytest
import torch
from curvlinops import KFACLinearOperator
from torch import Tensor, nn

import hessianlens as hl
from hessianlens.operators import ArrangedGrid, Operator, StructuredOperator
from tests.operators.registry import OPERATORS
from tests.variants import randn

DOUBLE = torch.float64
MATRIX_BLOCKS = [kind for kind in OPERATORS if kind != "grid" and not kind.endswith(("outer", "functional", "full"))]


def rearranged(op: Operator, dense: Tensor) -> Tensor:
    (a, b), (c, d) = op._out_shape[0], op._in_shape[0]
    return dense.reshape(a, b, c, d).permute(0, 2, 1, 3).reshape(a * c, b * d)


@pytest.mark.parametrize("kind", MATRIX_BLOCKS)
def test_the_fit_is_the_nearest(kind: str) -> None:
    op, dense = OPERATORS[kind]()
    R = rearranged(op, dense)
    truth = torch.linalg.svdvals(R)
    rank = min(3, min(R.shape))
    fit = op.kronecker_fit(rank)
    size = float(dense.norm())
    assert torch.allclose(torch.tensor(fit.singular_values, dtype=DOUBLE), truth[:rank], rtol=1e-10, atol=1e-10 * size)
    assert float((dense - fit.to_dense()).norm()) == pytest.approx(fit.error, rel=1e-6, abs=2e-7 * size)
    assert fit.error == pytest.approx(float(truth[rank:].norm()), rel=1e-6, abs=2e-7 * size)
    assert fit.norm == pytest.approx(size, rel=1e-10)
    v = randn(dense.shape[1])
    assert torch.allclose(fit @ v, fit.to_dense() @ v, atol=1e-10 * max(size, 1.0))


@pytest.mark.parametrize("kind", ["Kronecker sum", "low-rank factors", "sum of unlike terms"])
def test_closed_forms_are_not_formed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op, _ = OPERATORS[kind]()
    expected = op.kronecker_fit(2).singular_values

    def forbidden(*_: object) -> None:
        raise AssertionError("the dense matrix was formed")

    monkeypatch.setattr(type(op), "_dense_into", forbidden)
    assert op.kronecker_fit(2).singular_values == expected
    assert op.kronecker_fit().why == "from the sum over tokens"


def test_distance_from_given_factors() -> None:
    op, dense = OPERATORS["Kronecker sum"]()
    A, B = randn(3, 3, seed=8), randn(2, 2, seed=9)
    assert op.kronecker_distance(A, B) == pytest.approx(float((dense - torch.kron(A, B)).norm()), rel=1e-12)
    fit = op.kronecker_fit()
    assert op.kronecker_distance(*fit.factors[0]) == pytest.approx(fit.error, rel=1e-6)
    for factor in (0.97, 1.03):
        assert op.kronecker_distance(factor * fit.factors[0][0], fit.factors[0][1]) > fit.error


@pytest.mark.parametrize("name", ["layer0.attn.q", "layer0.attn.v", "layer0.attn.q.head1", "layer0.mlp.in", "unembed"])
def test_blocks_of_networks_from_their_tokens(name: str) -> None:
    model = hl.models.Transformer(heads=2, d_model=4, d_mlp=6, dtype=DOUBLE)
    task = hl.tasks.Addition(digits=1)
    problem = hl.problem(model, task.batch(2, seed=0), task.cross_entropy)
    for call in (hl.hessian, hl.ggn):
        op = call(problem, name)
        fit = op.kronecker_fit(2)
        truth = torch.linalg.svdvals(rearranged(op, call(problem, name, method="hvp").to_dense()))
        assert torch.allclose(torch.tensor(fit.singular_values, dtype=DOUBLE), truth[:2], rtol=1e-8)
        assert fit.why == "from the sum over tokens"


def test_transposed_parameters_of_linear_layers() -> None:
    """Weights of `nn.Linear` are transposed against their sum over tokens."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    problem = hl.problem(model, (randn(7, 3), randn(7, 2, seed=1)), "square")
    op = hl.hessian(problem, "0.weight")
    closed = op.closed
    assert isinstance(closed, ArrangedGrid) and closed.shape == (15, 15)
    truth = torch.linalg.svdvals(rearranged(closed, op.to_dense()))
    assert torch.allclose(torch.tensor(op.kronecker_fit(3).singular_values, dtype=DOUBLE), truth[:3], rtol=1e-8)
    assert op.kronecker_fit().why == "from the sum over tokens"


def test_kfac_of_curvlinops_is_never_nearer() -> None:
    """Exact for a linear map, where the curvature is one Kronecker product; behind a nonlinearity the fit is nearer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5, bias=False), nn.Tanh(), nn.Linear(5, 2, bias=False)).double()
    X, Y = randn(7, 3), randn(7, 2, seed=1)
    problem = hl.problem(model, (X, Y), "square")
    params = [p for p in model.parameters() if p.requires_grad]
    kfac = KFACLinearOperator(
        model, nn.MSELoss(), params, [(X, Y)], fisher_type="type-2", separate_weight_and_bias=True
    )
    dense = kfac @ torch.eye(kfac.shape[1], dtype=DOUBLE)
    for name, start, size in (("0.weight", 0, 15), ("2.weight", 15, 10)):
        op = hl.ggn(problem, name)
        mine, exact = op.kronecker_fit(), op.to_dense()
        theirs = dense[start : start + size, start : start + size]
        distance = float((exact - theirs).norm())
        assert mine.error <= distance + 1e-9
        if name == "2.weight":
            assert distance < 1e-10 * mine.norm and mine.relative_error < 1e-7
        else:
            assert mine.error < 0.9 * distance


def test_bad_arguments() -> None:
    op, _ = OPERATORS["Kronecker sum"]()
    with pytest.raises(hl.InputError, match="rank"):
        op.kronecker_fit(5)
    with pytest.raises(hl.InputError, match="two matrices"):
        grid, _ = OPERATORS["grid"]()
        assert isinstance(grid, StructuredOperator)
        grid.kronecker_fit()
    with pytest.raises(hl.InputError, match="matrix of shape"):
        op.kronecker_distance(torch.eye(3), torch.eye(3))
    with pytest.raises(hl.InputError, match="finite"):
        op.kronecker_distance(torch.full((3, 3), torch.nan), torch.eye(2))
    with pytest.raises(hl.InputError, match="vector"):
        _ = op.kronecker_fit() @ torch.ones(3)
