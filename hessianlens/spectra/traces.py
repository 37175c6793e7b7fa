"""The trace: Hutchinson, or exact on a sketch of the range and estimated beyond it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlens.errors import check_choice
from hessianlens.memory import ensure_fits
from hessianlens.spectra.estimate import Estimate
from hessianlens.spectra.probes import Probes, check_count, chunk_size
from hessianlens.spectra.products import (
    LinearOperator,
    Progress,
    announce,
    basis,
    check_progress,
    check_square,
    in_closed_form,
    multiply_in_chunks,
    probe,
)
from hessianlens.state_guard import restores_state


class _Range(NamedTuple):
    """The range of ``A V``: an orthonormal basis ``Q`` without directions that are rounding, and ``A Q``."""

    AV: Float[Tensor, "n s"]
    Q: Float[Tensor, "n r"]
    AQ: Float[Tensor, "n r"]


def _range(op: LinearOperator, V: Float[Tensor, "n s"], size: int) -> _Range:
    ensure_fits("The sketch", (V.shape[0], 4 * V.shape[1]), torch.float64, V.device, "take fewer probes")
    AV = multiply_in_chunks(op, V, size).double()
    Q, _, _ = _significant(AV, torch.finfo(op.dtype).eps)
    return _Range(AV, Q, multiply_in_chunks(op, Q, size).double() if Q.shape[1] else Q)


def _significant(matrix: Float[Tensor, "n s"], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """The singular value decomposition without what is rounding."""
    U, sizes, W = torch.linalg.svd(matrix, full_matrices=False)
    rank = int((sizes > 10 * eps * sizes.max()).sum()) if len(sizes) else 0
    return U[:, :rank], sizes[:rank], W[:rank]


def hutch_plus_plus(op: LinearOperator, probes: Probes, chunk: int | None, progress: Progress | None) -> Estimate:
    """``tr Q^T A Q`` plus Hutchinson's estimator on the complement of Q; `hessianlens.spectra.trace` says more."""
    total, sketch = probes.count, probes.count // 3
    size = chunk_size(chunk, probes.dim, total)
    announce(op, total)
    _, Q, AQ = _range(op, probes.matrix(0, sketch), size)
    parts, done = [], 2 * sketch
    for start in range(sketch, total - sketch, size):
        V = probes.matrix(start, min(start + size, total - sketch)).double()
        V = V - Q @ (Q.T @ V)
        parts.append((V * multiply_in_chunks(op, V, size).double()).sum(0))
        done += V.shape[1]
        if progress is not None:
            progress(done, total)
    rest = Estimate.from_samples(torch.cat(parts), total, probes.seed, "hutch++")
    return Estimate(float((Q * AQ).sum()) + rest.value, rest.stderr, total, probes.seed, "hutch++", rest.dof)


def xtrace(op: LinearOperator, probes: Probes, chunk: int | None, progress: Progress | None) -> Estimate:
    """XTrace with a jackknife error bar; `hessianlens.spectra.trace` says more."""
    half = probes.count // 2
    announce(op, 2 * half)
    V = probes.matrix(0, half)
    AV, Q, AQ = _range(op, V, chunk_size(chunk, probes.dim, half))
    V = V.double()
    small = _Compressed(Q.T @ V, Q.T @ AV, AQ.T @ V, Q.T @ AQ, (V * AV).sum(0), torch.finfo(op.dtype).eps)
    left_out = torch.stack([small.without(i).terms().mean() for i in range(half)])
    spread = float((left_out - left_out.mean()).norm())
    if progress is not None:
        progress(2 * half, 2 * half)
    error = math.sqrt((half - 1) / half) * spread
    return Estimate(float(small.terms().mean()), error, 2 * half, probes.seed, "xtrace", half - 1)


@dataclass(frozen=True)
class _Compressed:
    """All that XTrace needs of A and the probes V, on the range Q of ``A V``."""

    QV: Float[Tensor, "r s"]
    QAV: Float[Tensor, "r s"]
    AQV: Float[Tensor, "r s"]
    QAQ: Float[Tensor, "r r"]
    forms: Float[Tensor, "s"]
    eps: float

    def without(self, i: int) -> _Compressed:
        """The same with one probe less."""
        keep = torch.arange(len(self.forms), device=self.forms.device) != i
        return _Compressed(self.QV[:, keep], self.QAV[:, keep], self.AQV[:, keep], self.QAQ, self.forms[keep], self.eps)

    def terms(self) -> Float[Tensor, "s"]:
        """Hutch++ with probe i alone on the complement of the range of ``A v_j``, j != i.

        With the range of all probes as coordinates that of the others is ``I - d d^T``, d the direction that only
        probe i gives.
        """
        U, sizes, W = _significant(self.QAV, self.eps)
        d = _own_directions(sizes, W)
        QV, QAV, AQV, QAQ = U.T @ self.QV, U.T @ self.QAV, U.T @ self.AQV, U.T @ self.QAQ @ U
        P = QV - d * (d * QV).sum(0)
        within = QAQ.trace() - (d * (QAQ @ d)).sum(0)
        return within + self.forms + (P * (QAQ @ P - QAV - AQV)).sum(0)


def _own_directions(sizes: Float[Tensor, "r"], W: Float[Tensor, "r s"]) -> Float[Tensor, "r s"]:
    """For each column of ``diag(sizes) W`` the unit vector orthogonal to all others; 0 if they span it too.

    A column is outside of the span of the others where the projection ``W^T W`` has a 1 on its diagonal; the vector is
    then its row of the pseudo-inverse ``W^T diag(1 / sizes)``, normalised.
    """
    alone = W.square().sum(0) > 1 - 1e-8
    rows = W / sizes[:, None]
    return torch.where(alone, rows / rows.norm(dim=0), 0)


METHODS = {
    "hutchinson": (2, "the error bar is their spread"),
    "hutch++": (4, "a third is the sketch, a third its trace, and two of the rest give an error bar"),
    "xtrace": (4, "half of them are the sketch, and two of those give an error bar"),
}
"""Name -> least number of probes, and why."""


@restores_state
def trace(
    op: LinearOperator,
    probes: int = 20,
    seed: int = 0,
    method: str = "hutchinson",
    *,
    distribution: str = "rademacher",
    chunk: int | None = None,
    progress: Progress | None = None,
) -> Estimate:
    """The trace of a square operator by one of three unbiased estimators, each with an error bar.

    =============  ===============================================================  ==================================
    method         estimate                                                         standard error
    =============  ===============================================================  ==================================
    "hutchinson"   mean of ``v^T A v`` over all probes                              spread of the samples
    "hutch++"      ``tr Q^T A Q`` + mean of ``u^T A u``, ``u = (I - Q Q^T) v``,     spread of the second part; given Q
                   Q an orthonormal basis of ``A S``, a third of the probes each    the first has no error
    "xtrace"       mean over ``i`` of Hutch++ with ``v_i`` as the only probe and    jackknife: every ``v_i`` left out
                   all other ``v_j`` as the sketch, half of the probes in it        once; on the safe side
    =============  ===============================================================  ==================================

    Hutch++ (Meyer, Musco, Musco and Woodruff 2021) and XTrace (Epperly, Tropp and Webber 2024) gain where the spectrum
    decays, and keep a third or half of the probes, times the number of rows, in memory. The terms of XTrace share
    their sketches, so that their spread, the usual error estimate, is too small by up to 40 % where the spectrum is
    flat; the jackknife is on average never too small (inequality of Efron and Stein), but several times too large
    where the spectrum falls by orders of magnitude.

    Intervals are Student's: traces have either sign, and their samples are skewed to either side. Where one eigenvalue
    dominates too many of them miss (`Estimate` says how many), fewer with "hutch++", whose sketch takes it out.

    An operator in closed form (``op.exact``) answers by itself, where that takes no more products. With as many probes
    as rows the basis vectors are used, which is exact.

    Args:
        op: A square linear operator or matrix; it need not be symmetric.
        probes: Number of products with A, in total.
        seed: Seed of the probes.
        method: "hutchinson", "hutch++" or "xtrace" (which uses an even number, and so one less than an odd number).
        distribution: "rademacher", "gaussian" or "sphere".
        chunk: Vectors multiplied at once; by default as many as fit in 256 MiB.
        progress: Called with the products made so far and their total.

    >>> A = torch.arange(400.0).reshape(20, 20).double()
    >>> print(trace(A, probes=10, seed=0))
    (3.5 [0.9, 6.1])e+03 (10 probes)
    >>> print(f"{trace(A, probes=10, method='hutch++').value:.6f}", trace(A, probes=20))
    3990.000000 3990 (exact)
    """
    n = check_square(op, "a trace")
    check_progress(progress)
    check_choice("method", method, METHODS)
    drawn = Probes(n, probes, seed, distribution, op.dtype, op.device)
    if in_closed_form(op, probes):
        return Estimate.exactly(float(op.trace().detach()))
    check_count("probes", probes, 1, "the number of products")
    if probes >= n:
        return Estimate.exactly(float(_quadratic_forms(op, basis(op), chunk, progress).sum()), n, "basis")
    check_count("probes", probes, *METHODS[method])
    if method == "hutchinson":
        return Estimate.from_samples(_quadratic_forms(op, drawn, chunk, progress), probes, seed, method)
    return (xtrace if method == "xtrace" else hutch_plus_plus)(op, drawn, chunk, progress)


def _quadratic_forms(
    op: LinearOperator, probes: Probes, chunk: int | None, progress: Progress | None
) -> Float[Tensor, "probes"]:
    return torch.cat([(V.double() * AV.double()).sum(0) for V, AV in probe(op, probes, chunk, progress)])
