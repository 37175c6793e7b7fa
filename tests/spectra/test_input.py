"""Wrong input is named: the argument, what it got, what was expected."""

from __future__ import annotations

import pytest
import torch

from hessianlens.errors import InputError
from hessianlens.spectra import (
    Estimate,
    density,
    diagonal,
    eigenvalues,
    frobenius,
    heterogeneity,
    inertia,
    median_entry,
    trace,
)
from tests.spectra.registry import symmetric
from tests.variants import randn

A, WIDE = symmetric(30), randn(3, 30)
NAN = A.clone()
NAN[2, 3] = torch.nan

CASES = {
    "no probe, norm": (lambda: frobenius(A, 0), r"probes: got 0, expected a whole number of at least 1"),
    "one probe, trace": (lambda: trace(A, 1), r"probes: got 1,.*at least 2"),
    "no probe": (lambda: trace(A, 0), r"probes: got 0,.*at least 1"),
    "one probe, diagonal": (lambda: diagonal(A, 1), r"probes: got 1,.*at least 2"),
    "three probes, hutch++": (lambda: trace(A, 3, method="hutch++"), r"probes: got 3,.*at least 4 \(a third is"),
    "three probes, xtrace": (lambda: trace(A, 3, method="xtrace"), r"probes: got 3,.*at least 4 \(half of them"),
    "one direction": (lambda: density(A, 1, 10), r"probes: got 1,.*at least 2"),
    "no steps": (lambda: density(A, 2, 0), r"steps: got 0,.*at least 1"),
    "one column": (lambda: median_entry(A, 1), r"columns: got 1,.*at least 2"),
    "trace of a rectangle": (lambda: trace(WIDE), r"op: got shape 3x30, expected a square operator.*a trace"),
    "diagonal of a rectangle": (lambda: diagonal(WIDE), r"square operator; only those have a diagonal"),
    "eigenvalues of a rectangle": (lambda: eigenvalues(WIDE), r"only those have eigenvalues"),
    "density of a rectangle": (lambda: density(WIDE), r"only those have a spectral density"),
    "eigenvalues of an unsymmetric matrix": (lambda: eigenvalues(randn(30, 30)), r"expected a symmetric operator"),
    "density of an unsymmetric matrix": (lambda: density(randn(30, 30)), r"expected a symmetric operator"),
    "inertia of an unsymmetric matrix": (lambda: inertia(randn(30, 30)), r"expected a symmetric operator"),
    "method": (lambda: trace(A, method="hutch+"), r"method: got 'hutch\+', expected one of 'hutchinson', 'hutch\+\+'"),
    "method of density": (lambda: density(A, method="slq"), r"method: got 'slq', expected one of 'auto', 'lanczos'"),
    "method of eigenvalues": (lambda: eigenvalues(A, method="lobpcg"), r"method: got 'lobpcg', expected one of"),
    "distribution": (lambda: frobenius(A, distribution="normal"), r"distribution: got 'normal', expected one of"),
    "which": (lambda: eigenvalues(A, which="LM"), r"which: got 'LM', expected one of 'largest', 'smallest', 'both'"),
    "too many eigenvalues": (lambda: eigenvalues(A, 16, "both"), r"k: got 16 with which='both', expected at most 30"),
    "no eigenvalue": (lambda: eigenvalues(A, 0), r"k: got 0,.*at least 1"),
    "tolerance": (lambda: eigenvalues(A, rtol=-1.0), r"rtol: got -1.0, expected"),
    "both tolerances": (lambda: eigenvalues(A, rtol=0.1, tol=0.1), r"tol: got both tol and rtol"),
    "all eigenvalues by ARPACK": (lambda: eigenvalues(A, 30, method="arpack"), r"use method='dense'"),
    "seed": (lambda: frobenius(A, seed=-1), r"seed: got -1, expected a non-negative whole number"),
    "chunk": (lambda: frobenius(A, chunk=0), r"chunk: got 0, expected a whole number of at least 1"),
    "three axes": (lambda: frobenius(randn(2, 3, 4)), r"op: got shape \(2, 3, 4\), expected a matrix"),
    "no columns": (lambda: frobenius(randn(3, 0)), r"op: got shape 3x0, expected at least one"),
    "integers": (lambda: frobenius(torch.ones(3, 3, dtype=torch.int64)), r"op: got dtype torch.int64, expected a real"),
    "not finite": (lambda: frobenius(NAN, 5), r"op: a product with finite vectors has infinite or NaN entries"),
    "level": (lambda: frobenius(A).interval(95.0), r"level: got 95.0, expected a probability"),
    "sigma": (lambda: density(A).on_grid(10, sigma=-1.0), r"sigma: got -1.0, expected a positive width"),
    "bounds": (lambda: density(A).on_grid(10, bounds=(1.0, 0.0)), r"bounds: got \(1.0, 0.0\), expected the lower"),
    "moment": (lambda: density(A).moment(-1), r"power: got -1"),
    "threshold": (lambda: inertia(A, threshold=-1.0), r"threshold: got -1.0, expected a size"),
    "score": (lambda: heterogeneity({"a": A, "b": A}, "kl"), r"score: got 'kl', expected one of 'js', 'norm'"),
    "one block": (lambda: heterogeneity({"a": A}), r"blocks: got 1, expected at least two"),
    "unknown block": (lambda: heterogeneity({"a": A, "b": A})["a", "c"], r"block: got 'c'; expected one of a, b"),
    "wrong result": (
        lambda: heterogeneity({"a": A, "b": Estimate.exactly(1.0)}),
        r"blocks\['b'\]: got Estimate, expected SpectralDensity for 'js'",
    ),
    "different numbers of probes": (
        lambda: heterogeneity({str(k): density(A, k, 5, method="lanczos") for k in (3, 4)}),
        r"blocks: got spectra with \[3, 4\] probes, expected the same number",
    ),
    "too fine a grid": (lambda: heterogeneity({"a": A, "b": 2 * A}, sigma=1e-9), r"sigma: got 1e-09.*larger width"),
}


@pytest.mark.parametrize("case", CASES)
def test_message(case: str) -> None:
    call, message = CASES[case]
    with pytest.raises(InputError, match=message):
        call()


def test_what_is_no_operator() -> None:
    with pytest.raises(InputError, match="op"):
        frobenius([[1.0]])  # type: ignore[arg-type]
