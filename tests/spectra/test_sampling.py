"""What all sampled results have in common: seeds, chunks, number of products, progress."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from hessianlens.spectra import Estimate, density, diagonal, eigenvalues, frobenius, inertia, median_entry, trace
from tests.spectra.registry import Counting, symmetric
from tests.variants import DOUBLE

A = symmetric(24)
MEASURES: dict[str, tuple[Callable[..., Any], int]] = {
    "frobenius": (partial(frobenius, probes=10), 10),
    "frobenius gaussian": (partial(frobenius, probes=10, distribution="gaussian"), 10),
    "hutchinson": (partial(trace, probes=10), 10),
    "hutch++": (partial(trace, probes=10, method="hutch++"), 10),
    "xtrace": (partial(trace, probes=10, method="xtrace"), 10),
    "diagonal": (partial(diagonal, probes=10), 10),
    "median": (partial(median_entry, columns=10), 10),
    "density": (partial(density, probes=4, steps=6, method="lanczos", check_symmetry=False), 24),
    "inertia": (partial(inertia, probes=4, steps=6, method="lanczos", check_symmetry=False), 24),
}


def numbers(result: Any) -> Tensor:
    """All that was estimated, as a vector."""
    if hasattr(result, "nodes"):
        return torch.cat([result.nodes.reshape(-1), result.weights.reshape(-1)])
    if hasattr(result, "mass"):
        return torch.tensor([x for e in (result.negative, result.mass) for x in (e.value, e.stderr)])
    return torch.cat([torch.as_tensor(x, dtype=DOUBLE).reshape(-1) for x in (result.value, result.stderr)])


@pytest.mark.parametrize("kind", MEASURES)
def test_same_seed_same_result(kind: str) -> None:
    measure, _ = MEASURES[kind]
    assert torch.equal(numbers(measure(A, seed=3)), numbers(measure(A, seed=3)))
    assert not torch.equal(numbers(measure(A, seed=3)), numbers(measure(A, seed=4)))


@pytest.mark.parametrize("kind", MEASURES)
def test_chunks_change_nothing_but_rounding(kind: str) -> None:
    measure, _ = MEASURES[kind]
    for chunk in (1, 3, 100):
        op = Counting(A)
        assert torch.allclose(numbers(measure(op, chunk=chunk)), numbers(measure(A)), rtol=1e-9, atol=1e-9)
        assert op.widest <= chunk


@pytest.mark.parametrize("kind", MEASURES)
def test_the_number_of_products_is_the_one_asked_for(kind: str) -> None:
    """Also for an operator that is known after the first product."""
    measure, products = MEASURES[kind]
    for matrix in (A, torch.eye(24, dtype=DOUBLE)):
        op = Counting(matrix)
        measure(op)
        assert op.vectors == products


def test_a_sketch_of_zero_needs_no_products_of_its_basis() -> None:
    op = Counting(torch.zeros(24, 24, dtype=DOUBLE))
    for method in ("hutch++", "xtrace"):
        estimate = trace(op, 10, method=method)
        assert (estimate.value, estimate.stderr) == (0, 0)


@pytest.mark.parametrize("kind", MEASURES)
def test_progress_reaches_its_total(kind: str) -> None:
    measure, _ = MEASURES[kind]
    calls: list[tuple[int, int]] = []
    measure(A, chunk=2, progress=lambda done, total: calls.append((done, total)))
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})
    assert calls[-1][0] == calls[-1][1]


def test_results_say_how_they_were_found() -> None:
    assert trace(A, 10, 3, "hutch++") == trace(A, 10, 3, "hutch++")
    found = trace(A, 11, 3, "xtrace")
    assert (found.probes, found.seed, found.method) == (10, 3, "xtrace")
    assert diagonal(A, 10, 3)[2].probes == 10
    assert eigenvalues(A).method == "dense"


def test_gradients_are_not_kept() -> None:
    op = A.clone().requires_grad_()
    assert not diagonal(op, 5).value.requires_grad
    assert frobenius(op, 5) == frobenius(A, 5)


def test_interval_is_students() -> None:
    estimate = Estimate(1.0, 0.1, 3, 0, "hutchinson")
    low, high = estimate.interval(0.95)
    assert (high - low) / 2 == pytest.approx(0.1 * 4.302653, rel=1e-6)
    assert estimate.interval(0.5)[1] < high
