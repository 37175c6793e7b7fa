"""Inertia: shares of negative, zero and positive eigenvalues, counted or from stochastic Lanczos quadrature."""

from __future__ import annotations

from torch import Tensor

from hessianlens.spectra.densities import LARGEST_DENSE, density
from hessianlens.spectra.inertia_shares import Inertia, check_thresholds, inertia_of
from hessianlens.spectra.probes import check_count
from hessianlens.spectra.products import LinearOperator, Progress, check_square, in_closed_form
from hessianlens.spectra.spectrum import SpectralDensity
from hessianlens.state_guard import restores_state

_PRODUCTS_FOR_A_COUNT = 2
"""Products that a count of the eigenvalues may take, over those of a quadrature, which gives an interval."""


@restores_state
def inertia(
    op: LinearOperator | SpectralDensity,
    probes: int = 10,
    steps: int = 64,
    seed: int = 0,
    *,
    threshold: float | None = None,
    relative: float | None = None,
    method: str = "auto",
    chunk: int | None = None,
    check_symmetry: bool = True,
    progress: Progress | None = None,
) -> Inertia:
    """Shares of negative, zero and positive eigenvalues, and ``sum_{lambda<0} |lambda| / sum |lambda|``.

    Eigenvalues are counted where that takes at most twice the products, for operators of up to
    ``2 probes * steps`` rows, and for matrices and operators in closed form, each of up to 2048 rows. Else shares come
    from stochastic Lanczos quadrature: their 95 % intervals hold the error over the probes and everything that the
    finite number of steps leaves open. Small eigenvalues are what it leaves open; with ``relative=1e-3`` they are
    counted apart, as zero, and the other two shares are known better. So they are from few probes of many steps:
    ``probes=4, steps=160`` takes as many products as the defaults.

    Args:
        op: A symmetric linear operator or matrix, or a spectral density that is already there.
        probes: Number of random directions.
        steps: Lanczos steps for each.
        seed: Seed of the probes.
        threshold: Eigenvalues of at most this size count as zero; by default ``10 sqrt(n) eps max |lambda|``.
        relative: The same over the largest absolute eigenvalue, in place of `threshold`.
        method: "auto", "lanczos" or "dense".
        chunk: Directions followed at once.
        check_symmetry: Whether to test ``u^T A v = v^T A u`` on one random pair first.
        progress: Called with the directions finished so far and their total.

    >>> import torch
    >>> A = torch.diag(torch.tensor([-1.0, 0.0, 1.0, 2.0], dtype=torch.float64))
    >>> inertia(A, relative=0.01)
    share of 4 eigenvalues: negative 0.25 (exact), zero 0.25 (exact), positive 0.5 (exact); negative mass 0.25 (exact)
    (|eigenvalue| <= 0.02 counts as zero, 1e-02 of the largest)
    >>> inertia(torch.diag(torch.linspace(-1, 3, 400)), 4, 30, method="lanczos", relative=0.01).negative
    between 0.194 and 0.297 (4 probes)
    """
    check_thresholds(threshold, relative)
    if not isinstance(op, SpectralDensity):
        if isinstance(method, str) and method == "auto" and _countable(op, probes, steps):
            method = "dense"
        op = density(
            op, probes, steps, seed, method=method, chunk=chunk, check_symmetry=check_symmetry, progress=progress
        )
    return inertia_of(op, threshold, relative)


def _countable(op: LinearOperator, probes: int, steps: int) -> bool:
    """Whether the matrix is there already, or takes at most twice the products of a quadrature."""
    n = check_square(op, "an inertia")
    check_count("probes", probes, 1, "the number of directions")
    check_count("steps", steps, 1, "each is one product")
    there = isinstance(op, Tensor) or in_closed_form(op)
    return n <= LARGEST_DENSE and (there or n <= _PRODUCTS_FOR_A_COUNT * probes * steps)
