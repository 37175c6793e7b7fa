"""Agreement with curvlinops, the standard of this field, and what its interface gives for free."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from curvlinops import CGInverseLinearOperator, GGNLinearOperator, HessianLinearOperator, hutchinson_trace
from curvlinops.examples import TensorLinearOperator
from scipy.sparse.linalg import eigsh
from torch import Tensor, nn

import hessianlens as hl
from tests.curvature import networks
from tests.curvature.networks import pairs
from tests.oracles.comparison import assert_same
from tests.variants import randn

THEIRS = {"full": HessianLinearOperator, "ggn": GGNLinearOperator}
OURS = {"full": hl.hessian, "ggn": hl.ggn}


class Flat(nn.Module):
    """Tokens side by side, as curvlinops wants them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        return self.model(inputs).flatten(0, -2)


SETTINGS = {
    "MLP": (networks.mlp, pairs(4, 4, classes=3, length=None), ["0.weight", "0.bias", "3.weight", "3.bias"]),
    "toy": (
        lambda: networks.toy(heads=2, norm="pre"),
        pairs(2, 2),
        ["W_U", "blocks.0.attention.W_Q", "blocks.0.attention.b_V", "blocks.0.mlp.W_in"],
    ),
}


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("part", THEIRS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_same_operator(setting: str, part: str, reduction: str) -> None:
    make, batches, parameters = SETTINGS[setting]
    model = make().eval()
    named = dict(model.named_parameters())
    theirs = THEIRS[part](
        Flat(model),
        nn.CrossEntropyLoss(reduction=reduction),
        [named[name] for name in parameters],
        [(inputs, targets.flatten()) for inputs, targets in batches],
        check_deterministic=False,
    )
    problem = hl.problem(model, batches, "cross_entropy", reduction=reduction)
    blocks = [name for name, block in problem.blocks.items() if block.parameter in parameters]
    ours = OURS[part](problem, blocks, method="hvp")
    V = randn(theirs.shape[1], 3)
    assert_same(ours @ V, (theirs @ V).detach(), f"{setting} {part}", 1e-9)


def test_the_interface_of_curvlinops() -> None:
    """Sums, multiples, products of operators and SciPy's eigenvalues."""
    problem = hl.problem(networks.mlp(), pairs(4, classes=3, length=None), "cross_entropy")
    blocks = list(problem.blocks)
    full, ggn, functional = (make(problem, blocks, method="hvp") for make in (hl.hessian, hl.ggn, hl.functional))
    v = randn(full.shape[1])
    assert_same((ggn + functional) @ v, full @ v, "ggn + functional")
    assert_same((2.0 * full - ggn) @ v, 2 * (full @ v) - ggn @ v, "2 full - ggn")
    assert_same((ggn @ full) @ v, ggn @ (full @ v), "ggn full")
    dense = full @ torch.eye(full.shape[1], dtype=torch.float64)
    largest = eigsh(full.to_scipy(), k=2, which="LA", return_eigenvectors=False)
    assert np.allclose(sorted(largest), torch.linalg.eigvalsh(dense)[-2:].numpy())


def test_estimators_take_matrix_free_operators() -> None:
    problem = hl.problem(networks.mlp(), pairs(4, classes=3, length=None), "cross_entropy")
    op = hl.hessian(problem, "0.weight")
    dense = op @ torch.eye(12, dtype=torch.float64)
    assert abs(hl.frobenius(op, probes=12).value - float(dense.norm())) < 1e-12
    estimate = hl.trace(op, probes=8, seed=0)
    assert abs(estimate.value - float(dense.trace())) < 5 * estimate.stderr + 1e-12
    assert np.allclose(float(hl.eigenvalues(op, 1).values[0]), float(torch.linalg.eigvalsh(dense)[-1]))


def test_operators_go_through_the_algebra_inverses_and_estimators_of_curvlinops() -> None:
    """As they are, without a subclass in common; only a product with theirs on the left asks for one."""
    problem = hl.problem(networks.mlp(), pairs(4, classes=3, length=None), "cross_entropy")
    ours, ggn = hl.hessian(problem, "0.bias", method="hvp"), hl.ggn(problem, "0.bias", method="hvp")
    dense = ours.to_dense()
    other = randn(*dense.shape)
    theirs, v = TensorLinearOperator(other), randn(len(dense))
    assert_same((theirs + ours) @ v, (other + dense) @ v, "theirs + ours")
    assert_same((theirs - ours) @ v, (other - dense) @ v, "theirs - ours")
    assert_same((ours @ theirs) @ v, dense @ other @ v, "ours theirs")
    assert_same((ours @ theirs).adjoint() @ v, other.T @ dense @ v, "(ours theirs)^T")
    assert_same((theirs @ ours.to_curvlinops()) @ v, other @ dense @ v, "theirs ours")
    damped = ggn + TensorLinearOperator(torch.eye(len(dense), dtype=torch.float64))
    inverse = CGInverseLinearOperator(damped, tolerance=1e-12)
    assert_same(inverse @ v, torch.linalg.solve(damped.to_dense(), v), "CG", 1e-6)
    torch.manual_seed(0)
    traces = torch.stack([hutchinson_trace(ours, 3) for _ in range(300)])
    assert abs(float(traces.mean() - dense.trace())) < 5 * float(traces.std()) / 300**0.5
