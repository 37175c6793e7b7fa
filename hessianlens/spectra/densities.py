"""The spectral density, by stochastic Lanczos quadrature."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlens.errors import check_choice, check_flag, check_that
from hessianlens.memory import ensure_fits
from hessianlens.spectra.lanczos_quadrature import RitzPairs, gauss_quadrature, lanczos_iteration, lanczos_room
from hessianlens.spectra.probes import Probes, check_count, chunk_size
from hessianlens.spectra.products import (
    LinearOperator,
    Progress,
    announce,
    check_progress,
    check_square,
    check_symmetric,
    multiply,
    symmetric_dense,
)
from hessianlens.spectra.reverse_communication import Iteration, answer
from hessianlens.spectra.spectrum import SpectralDensity
from hessianlens.state_guard import restores_state

METHODS = ("auto", "lanczos", "dense")
LARGEST_DENSE = 2048
"""Rows up to which the eigenvalues themselves are computed."""


@restores_state
def density(
    op: LinearOperator,
    probes: int = 10,
    steps: int = 64,
    seed: int = 0,
    *,
    method: str = "auto",
    distribution: str = "rademacher",
    chunk: int | None = None,
    check_symmetry: bool = True,
    progress: Progress | None = None,
    keep: RitzPairs | None = None,
) -> SpectralDensity:
    """The distribution of the eigenvalues of a symmetric operator.

    ``1/n tr f(A) = E q^T f(A) q`` for a random direction q, and ``q^T f(A) q = sum_j w_j f(theta_j)`` with the nodes
    and weights of ``steps`` steps of Lanczos from q (Ubaru, Chen and Saad 2017), here with full reorthogonalisation.

    With ``method="auto"`` the eigenvalues themselves are computed where ``n <= probes * steps``, so that this takes no
    more products, and ``n <= 2048``. The result is then exact.

    Args:
        op: A symmetric linear operator or matrix.
        probes: Number of random directions; at least 2, to have error bars.
        steps: Lanczos steps for each, at most n.
        seed: Seed of the probes.
        method: "auto", "lanczos" or "dense".
        distribution: "rademacher", "gaussian" or "sphere"; the directions are normalised.
        chunk: Directions followed at once; by default as many as fit in 256 MiB with all their Lanczos vectors.
        check_symmetry: Whether to test ``u^T A v = v^T A u`` on one random pair first.
        progress: Called with the directions finished so far and their total.
        keep: Is given the leading Ritz vectors with their products, for `hessianlens.spectra.leading_eigenpair`; none
            where the eigenvalues themselves are computed.

    >>> A = torch.diag(torch.tensor([1.0, 1.0, 3.0], dtype=torch.float64))
    >>> spectrum = density(A)
    >>> print(spectrum)
    spectral density of 3 eigenvalues in [1, 3] (exact)
    >>> spectrum.cdf(2.0).value, spectrum.moment(2).value
    (tensor([0.6667], dtype=torch.float64), 3.667)
    """
    n = check_square(op, "a spectral density")
    check_progress(progress)
    check_flag("check_symmetry", check_symmetry)
    check_that(keep is None or isinstance(keep, RitzPairs), "keep", keep, "RitzPairs to be filled")
    check_choice("method", method, METHODS)
    check_count("probes", probes, 1, "the number of directions")
    check_count("steps", steps, 1, "each is one product")
    drawn = Probes(n, probes, seed, distribution, op.dtype, op.device)
    announce(op, min(n, probes * steps))
    if check_symmetry:
        check_symmetric(op, seed)
    if method == "dense" or (method == "auto" and _is_small(drawn, steps)):
        return _dense(symmetric_dense(op, chunk, progress), op.dtype)
    check_count("probes", probes, 2, "the error bar is their spread")
    return answer(_lanczos(drawn, min(steps, n), chunk, progress, keep), lambda V: multiply(op, V))


def density_iteration(
    probes: Probes, steps: int, chunk: int, keep: RitzPairs, room: Float[Tensor, "c m n"] | None = None
) -> Iteration[SpectralDensity]:
    """`density` of a symmetric operator by reverse communication, with ``method="auto"``.

    Args:
        probes: The random directions, two at least.
        steps: Lanczos steps for each.
        chunk: Directions followed at once.
        keep: As for `density`.
        room: From `lanczos_room`.
    """
    if _is_small(probes, steps):
        matrix = yield torch.eye(probes.dim, dtype=probes.dtype, device=probes.device)
        return _dense((matrix + matrix.T).double() / 2, probes.dtype)
    return (yield from _lanczos(probes, min(steps, probes.dim), chunk, None, keep, room))


def _is_small(probes: Probes, steps: int) -> bool:
    """Whether the eigenvalues themselves take no more products."""
    return probes.dim <= min(probes.count * steps, LARGEST_DENSE)


def _dense(matrix: Float[Tensor, "n n"], dtype: torch.dtype) -> SpectralDensity:
    nodes = torch.linalg.eigvalsh(matrix)[None]
    n = nodes.shape[1]
    return SpectralDensity(nodes, torch.full_like(nodes, 1 / n), n, n, None, "dense", dtype)


def _lanczos(
    probes: Probes,
    steps: int,
    chunk: int | None,
    progress: Progress | None,
    keep: RitzPairs | None,
    room: Float[Tensor, "c m n"] | None = None,
) -> Iteration[SpectralDensity]:
    n, device = probes.dim, probes.device or torch.get_default_device()
    size = min(chunk_size(chunk, n, probes.count, copies=steps), probes.count)
    ensure_fits("The nodes", (3 * probes.count, steps), torch.float64, device, "take fewer probes or steps")
    ensure_fits(
        "The Lanczos vectors", (size, steps + 1, n), probes.dtype, device, "take fewer steps or a smaller chunk"
    )
    rules, done = [], 0
    seen = None if keep is None else keep.see
    for start in probes.chunks(size):
        if room is None or len(room) != start.shape[1]:
            room = lanczos_room(n, start.shape[1], steps, probes.dtype, device)
        rules.append(gauss_quadrature(*(yield from lanczos_iteration(start, steps, seen, room))))
        done += start.shape[1]
        if progress is not None:
            progress(done, probes.count)
    nodes, weights, residuals = (torch.cat(parts) for parts in zip(*rules, strict=True))
    return SpectralDensity(nodes, weights, n, probes.count, probes.seed, "lanczos", probes.dtype, residuals)


def density_at_zero(op: LinearOperator) -> SpectralDensity:
    """The spectral density of an operator that is zero up to rounding: all eigenvalues are zero.

    >>> print(density_at_zero(torch.zeros(3, 3)))
    spectral density of 3 eigenvalues in [0, 0] (exact)
    """
    n, nodes = int(op.shape[0]), torch.zeros(1, 1, dtype=torch.float64, device=op.device)
    return SpectralDensity(nodes, torch.ones_like(nodes), n, n, None, "dense", op.dtype)
