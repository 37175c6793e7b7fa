"""Eigenvalues at the ends of the spectrum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse.linalg as sparse
import torch
from jaxtyping import Float
from torch import Tensor

from hessianlens.checks import renamed_arguments
from hessianlens.display import DisplayableRows, Picture, Spikes
from hessianlens.errors import check_choice, check_flag, check_number, expect
from hessianlens.spectra.probes import Probes, check_count, chunk_size
from hessianlens.spectra.products import (
    LinearOperator,
    Progress,
    announce,
    check_progress,
    check_square,
    check_symmetric,
    multiply,
    multiply_in_chunks,
    symmetric_dense,
)
from hessianlens.state_guard import restores_state

WHICH = {"largest": "LA", "smallest": "SA", "both": "BE", "magnitude": "LM"}
"""Our name -> ARPACK's."""
METHODS = ("auto", "arpack", "dense")
_DENSE_UP_TO = 200
_BASIS = 20
"""Vectors of ARPACK's basis at least, each of which is a product."""


@dataclass(frozen=True, eq=False)
class Eigenvalues(DisplayableRows):
    """Eigenvalues with a bound on their error.

    Attributes:
        values: The eigenvalues, in the order of `which`.
        residuals: ``|A v - lambda v|`` for unit vectors v, computed afresh; a symmetric A has an eigenvalue at most
            this far from each value.
        vectors: Unit eigenvectors as columns, if asked for.
        converged: Whether all eigenvalues asked for were found to the tolerance; if not, those found are given.
        products: Number of products with A; the columns of a dense matrix count as products.
        which: "largest", "smallest", "both" or "magnitude".
        seed: Seed of the start vector; None for a dense matrix.
        method: "arpack" or "dense".
    """

    values: Float[Tensor, "k"]
    residuals: Float[Tensor, "k"]
    vectors: Float[Tensor, "n k"] | None
    converged: bool
    products: int
    which: str
    seed: int | None
    method: str

    def _records(self) -> list[dict[str, Any]]:
        both = zip(self.values.tolist(), self.residuals.tolist(), strict=True)
        return [{"rank": k, "eigenvalue": value, "residual": residual} for k, (value, residual) in enumerate(both)]

    def _picture(self, asked: bool) -> Picture | None:
        """The eigenvalues in order, blue above zero and red below."""
        if not len(self.values):
            return None
        return Spikes(self.values.tolist(), f"eigenvalues, {self.which}", self.residuals.tolist())

    def __str__(self) -> str:
        found = ", ".join(f"{float(value):.6g}" for value in self.values)
        residual = float(self.residuals.max()) if len(self.residuals) else float("nan")
        state = "" if self.converged else ", NOT all converged"
        return f"{self.which}: {found} (residuals up to {residual:.1e}, {self.method}, {self.products} matvecs{state})"

    __repr__ = __str__


@renamed_arguments(tol="rtol")
@restores_state
def eigenvalues(
    op: LinearOperator,
    k: int = 1,
    which: str = "largest",
    *,
    rtol: float | None = None,
    seed: int = 0,
    vectors: bool = False,
    max_iterations: int | None = None,
    method: str = "auto",
    chunk: int | None = None,
    check_symmetry: bool = True,
    progress: Progress | None = None,
) -> Eigenvalues:
    """``A v = lambda v`` at one end or both ends of the spectrum of a symmetric operator, with true residuals.

    SciPy's ``eigsh`` (implicitly restarted Lanczos) for large operators; the dense matrix for up to 200 rows, or where
    more than half of all eigenvalues are asked for. As any Krylov method from one vector, ``eigsh`` may miss copies of
    a multiple eigenvalue.

    Args:
        op: A symmetric linear operator or matrix.
        k: How many, at each end if `which` is "both".
        which: "largest" (falling), "smallest" (rising), "both" (rising) or "magnitude" (falling in absolute value).
        rtol: Relative accuracy at which ``eigsh`` stops; by default 1e-10 in float64 and 1e-5 below.
        seed: Seed of the start vector.
        vectors: Whether to keep the eigenvectors.
        max_iterations: Restarts allowed; SciPy's default if omitted.
        method: "auto", "arpack" or "dense".
        chunk: Vectors multiplied at once, where there are several.
        check_symmetry: Whether to test ``u^T A v = v^T A u`` on one random pair first.
        progress: Called with the products so far and their total; 0 where the total is not known.

    >>> A = torch.diag(torch.arange(1.0, 6.0, dtype=torch.float64))
    >>> eigenvalues(A, k=2).values
    tensor([5., 4.], dtype=torch.float64)
    >>> eigenvalues(A, which="both").values
    tensor([1., 5.], dtype=torch.float64)
    """
    n = check_square(op, "eigenvalues")
    check_progress(progress)
    check_flag("check_symmetry", check_symmetry)
    check_choice("which", which, WHICH)
    check_choice("method", method, METHODS)
    check_count("k", k, 1, "the number of eigenvalues")
    check_flag("vectors", vectors)
    total = 2 * k if which == "both" else k
    expect(total <= n, f"k: got {k} with which={which!r}, expected at most {n} eigenvalues of a {n}x{n} operator.")
    if rtol is not None:
        check_number("rtol", rtol, 0.0)
    if max_iterations is not None:
        check_count("max_iterations", max_iterations, 1, "restarts")
    announce(op, min(n, max(2 * total + 1, _BASIS)))
    if check_symmetry:
        check_symmetric(op, seed)
    start = Probes(n, 1, seed, "gaussian")
    if method == "dense" or (method == "auto" and (n <= _DENSE_UP_TO or 2 * total > n)):
        V, products, converged, method, used = _dense(op, total, which, chunk, progress), n, True, "dense", None
    else:
        expect(total < n, f"k: got {total} of {n} eigenvalues, expected fewer for ARPACK; use method='dense'.")
        V, products, converged = _arpack(op, total, which, rtol, start, max_iterations, progress)
        method, used = "arpack", seed
    values, residuals = _rayleigh(op, V, chunk)
    order = _order(values, which)
    kept = V[:, order] if vectors else None
    return Eigenvalues(values[order], residuals[order], kept, converged, products + len(order), which, used, method)


def _dense(op: LinearOperator, total: int, which: str, chunk: int | None, progress: Progress | None) -> Tensor:
    values, V = torch.linalg.eigh(symmetric_dense(op, chunk, progress))
    n = len(values)
    if which == "both":
        return V[:, [*range(total // 2), *range(n - total // 2, n)]]
    return V[:, _order(values, which)[:total]]


def _arpack(
    op: LinearOperator,
    total: int,
    which: str,
    rtol: float | None,
    start: Probes,
    max_iterations: int | None,
    progress: Progress | None,
) -> tuple[Tensor, int, bool]:
    """Eigenvectors, the number of products and whether all converged."""
    products, n = 0, start.dim

    def matvec(v: np.ndarray) -> np.ndarray:
        nonlocal products
        products += 1
        if progress is not None:
            progress(products, 0)
        return multiply(op, torch.from_numpy(v).reshape(n, 1))[:, 0].double().cpu().numpy()

    v0 = start.vector(0).numpy()
    if not matvec(v0).any():  # only the zero operator annihilates a random vector; ARPACK refuses to start from it
        return torch.linalg.qr(Probes(n, total, start.seed, "gaussian").matrix(0, total))[0].to(op.device), 1, True
    if rtol is None:
        rtol = 1e-10 if op.dtype == torch.float64 else 1e-5
    linear = sparse.LinearOperator((n, n), matvec=matvec, dtype=np.float64)
    converged = True
    try:
        _, V = sparse.eigsh(linear, k=total, which=WHICH[which], tol=rtol, v0=v0, maxiter=max_iterations)
    except sparse.ArpackNoConvergence as failure:
        V, converged = failure.eigenvectors, False
    return torch.from_numpy(np.ascontiguousarray(V)).to(op.device), products, converged


def _rayleigh(op: LinearOperator, V: Float[Tensor, "n k"], chunk: int | None) -> tuple[Tensor, Tensor]:
    """``lambda = v^T A v`` of unit vectors, and ``|A v - lambda v|``."""
    if V.shape[1] == 0:
        return V[0], V[0]
    AV = multiply_in_chunks(op, V, chunk_size(chunk, V.shape[0], V.shape[1])).double()
    values = (V * AV).sum(0)
    return values, (AV - V * values).norm(dim=0)


def _order(values: Float[Tensor, "k"], which: str) -> Tensor:
    key = {"largest": -values, "magnitude": -values.abs()}.get(which, values)
    return torch.argsort(key, stable=True)
