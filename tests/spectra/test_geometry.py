"""Sharpness in other norms against exhaustive search, eigenvalues and what optimisers do to a quadratic."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

import hessianlens as hl
from hessianlens.spectra.geometry import GEOMETRIES, sharpness

DOUBLE = torch.float64


def symmetric(n: int, seed: int, positive: bool = False) -> Tensor:
    A = torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)
    return A @ A.T / n if positive else (A + A.T) / 2


@pytest.mark.every_case
@pytest.mark.parametrize("positive", [True, False])
def test_maximum_norm_against_every_sign_vector(positive: bool) -> None:
    for seed in range(12):
        A = symmetric(10, seed, positive)
        signs = torch.tensor(list(product((-1.0, 1.0), repeat=10)), dtype=DOUBLE)
        truth = float(((signs @ A) * signs).sum(1).max())
        found = sharpness(A, "max", starts=48, most=400)
        assert found.converged and found.value == pytest.approx(truth, rel=1e-10)


def test_euclidean_norm_is_the_largest_eigenvalue() -> None:
    A = torch.diag(torch.tensor([-9.0, 1.0, 2.0, 5.0], dtype=DOUBLE))
    assert sharpness(A, most=3000).value == pytest.approx(5.0, rel=1e-5)


def test_spectral_norm_against_a_fine_search() -> None:
    """Over 2 x 2 matrices the vertices of the ball are rotations and reflections: one angle each."""
    for seed in range(6):
        A = symmetric(4, seed)
        angles = torch.linspace(0, 2 * torch.pi, 20001, dtype=DOUBLE)
        c, s = angles.cos(), angles.sin()
        turns = torch.cat([torch.stack([c, -s, s, c], 1), torch.stack([c, s, s, -c], 1)])
        truth = float(((turns @ A) * turns).sum(1).max())
        found = sharpness(A, "spectral", shapes=[(2, 2)], starts=12, most=500)
        assert found.value == pytest.approx(truth, rel=1e-5)
        assert float(torch.linalg.matrix_norm(found.direction.reshape(2, 2), 2)) == pytest.approx(1.0)


@pytest.mark.every_case
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_the_value_is_attained_in_the_ball(geometry: str) -> None:
    A = symmetric(12, 3)
    found = sharpness(A, geometry, shapes=[(3, 3), (3,)])
    assert float(found.direction @ A @ found.direction) == pytest.approx(found.value, rel=1e-10)
    assert found.spread <= 1 and found.products <= 4 * 100


def test_steps_raise_a_quadratic_only_above_the_threshold() -> None:
    """``x - lr |g|_1 sign(g)`` lowers ``x' A x / 2`` wherever ``S < 2 / lr``, and not everywhere above."""
    A = symmetric(8, 5, positive=True)
    S = sharpness(A, "max", starts=16).value
    x = torch.randn(400, 8, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    for factor, raises in ((0.99, False), (40.0, True)):
        lr = factor * 2 / S
        g = x @ A
        after = x - lr * g.abs().sum(1, keepdim=True) * g.sign()
        change = ((after @ A) * after).sum(1) - ((x @ A) * x).sum(1)
        assert bool((change > 1e-12).any()) == raises


def test_a_warm_start_takes_fewer_products() -> None:
    A = symmetric(40, 1)
    cold = sharpness(A, "max", starts=4, most=1000)
    warm = sharpness(A + 1e-6 * torch.eye(40, dtype=DOUBLE), "max", start=cold.direction, starts=0, most=1000)
    assert cold.converged and warm.products < cold.products / 2 and warm.value > cold.value * (1 - 1e-4)


def test_of_a_block_of_a_model() -> None:
    model, task = hl.models.Transformer(d_model=4, d_mlp=8, dtype=DOUBLE), hl.tasks.Addition(digits=1)
    problem = hl.problem(model, task.batch(2, seed=0), task.cross_entropy)
    op = hl.hessian(problem, "layer0.attn.v")
    dense = op.to_dense()
    for geometry in GEOMETRIES:
        shape = [problem.blocks["layer0.attn.v"].shape]
        one, other = (sharpness(A, geometry, shapes=shape, most=200) for A in (op, dense))
        assert one.value == pytest.approx(other.value, rel=1e-6)


def test_bad_arguments() -> None:
    A = symmetric(4, 0)
    with pytest.raises(hl.InputError, match="geometry"):
        sharpness(A, "nuclear")
    with pytest.raises(hl.InputError, match="shapes"):
        sharpness(A, "spectral", shapes=[(2, 3)])
    with pytest.raises(hl.InputError, match="zeros"):
        sharpness(A, start=torch.zeros(4, dtype=DOUBLE))
