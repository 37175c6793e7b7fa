"""The trace."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlens.errors import check_choice
from hessianlens.spectra.estimate import Estimate
from hessianlens.spectra.probes import Probes, check_count
from hessianlens.spectra.products import (
    LinearOperator,
    Progress,
    basis,
    check_progress,
    check_square,
    in_closed_form,
    probe,
)
from hessianlens.spectra.sketched import hutch_plus_plus, xtrace
from hessianlens.state_guard import restores_state

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

    An operator in closed form (``op.exact``) answers by itself. With as many probes as rows the basis vectors are used,
    which is exact.

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
    if in_closed_form(op):
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
