"""Traces that are exact on a sketch of the range and estimated beyond it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlens.memory import ensure_fits
from hessianlens.spectra.estimate import Estimate
from hessianlens.spectra.probes import Probes, chunk_size
from hessianlens.spectra.products import LinearOperator, Progress, announce, multiply_in_chunks


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
