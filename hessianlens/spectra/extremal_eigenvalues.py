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
from hessianlens.memory import ensure_fits
from hessianlens.spectra.probes import Probes, check_count
from hessianlens.spectra.products import (
    AsymmetricOperator,
    LinearOperator,
    Progress,
    announce,
    check_progress,
    check_square,
    check_symmetric,
    multiply,
    symmetric_dense,
)
from hessianlens.spectra.thick_restart_lanczos import (
    STEPS_BEFORE_FIRST_LOOK,
    RitzEigenpairs,
    ThickRestartLanczos,
    basis_size,
    lanczos_eigenpairs,
)
from hessianlens.state_guard import restores_state

WHICH = {"largest": "LA", "smallest": "SA", "both": "BE", "magnitude": "LM"}
"""Our name -> ARPACK's."""
METHODS = ("auto", "lanczos", "arpack", "dense")
_DENSE_UP_TO = 200


@dataclass(frozen=True, eq=False)
class Eigenvalues(DisplayableRows):
    """Eigenvalues with a bound on their error.

    Attributes:
        values: The eigenvalues, in the order of `which`.
        residuals: ``|A v - lambda v|`` for unit vectors v, from the products that were made; a symmetric A has an
            eigenvalue at most this far from each value.
        vectors: Unit eigenvectors as columns, if asked for.
        converged: Whether all eigenvalues asked for were found to the tolerance; if not, those found are given.
        products: Number of products with A; the columns of a dense matrix count as products.
        which: "largest", "smallest", "both" or "magnitude".
        seed: Seed of the start vector; None for a dense matrix.
        method: "lanczos", "arpack" or "dense".
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

    Lanczos with thick restarts for large operators: it looks for convergence after every product, and its residuals
    take none. SciPy's ``eigsh`` (implicitly restarted Lanczos) makes 20 products before it looks, and is there for
    comparison. The dense matrix for up to 200 rows, or where more than half of all eigenvalues are asked for. As any
    Krylov method from one vector, Lanczos may miss copies of a multiple eigenvalue.

    Args:
        op: A symmetric linear operator or matrix.
        k: How many, at each end if `which` is "both".
        which: "largest" (falling), "smallest" (rising), "both" (rising) or "magnitude" (falling in absolute value).
        rtol: Residual over the eigenvalue at which it stops; by default 1e-10 in float64 and 1e-5 below.
        seed: Seed of the start vector.
        vectors: Whether to keep the eigenvectors.
        max_iterations: Restarts allowed; ten times the number of rows if omitted.
        method: "auto", "lanczos", "arpack" or "dense".
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
    if method == "auto":
        method = "dense" if n <= _DENSE_UP_TO or 2 * total > n else "lanczos"
    announce(op, n if method == "dense" else min(n, 2 * total + STEPS_BEFORE_FIRST_LOOK))
    if check_symmetry and method != "lanczos":  # which sees by itself
        check_symmetric(op, seed)
    if rtol is None:
        rtol = 1e-10 if op.dtype == torch.float64 else 1e-5
    used = None if method == "dense" else seed
    if method == "dense":
        found = _dense(op, total, which, chunk, progress)
    else:
        expect(total < n, f"k: got {total} of {n} eigenvalues, expected fewer for Lanczos; use method='dense'.")
        given = _SearchOptions(op, total, which, rtol, seed, max_iterations, check_symmetry, progress)
        found = _arpack(given) if method == "arpack" else _lanczos(given)
    order = _order(found.values, which)
    kept = found.vectors[:, order] if vectors else None
    return Eigenvalues(
        found.values[order], found.residuals[order], kept, found.converged, found.products, which, used, method
    )


def _dense(op: LinearOperator, total: int, which: str, chunk: int | None, progress: Progress | None) -> RitzEigenpairs:
    matrix = symmetric_dense(op, chunk, progress)
    values, V = torch.linalg.eigh(matrix)
    V = V[:, _wanted(values, which)[:total]]
    return _rayleigh(V, matrix @ V, True, len(matrix))


@dataclass(frozen=True, eq=False)
class _SearchOptions:
    """What an iterative method is given: the arguments of `eigenvalues`."""

    op: LinearOperator
    total: int
    which: str
    rtol: float
    seed: int
    max_iterations: int | None
    check_symmetry: bool
    progress: Progress | None


def _lanczos(given: _SearchOptions) -> RitzEigenpairs:
    """With thick restarts; products between Lanczos vectors also tell whether the operator is symmetric."""
    op, n, total = given.op, int(given.op.shape[0]), given.total
    starts = Probes(n, n, given.seed, "gaussian", device=op.device)
    size, eps = basis_size(n, total), torch.finfo(op.dtype).eps
    ensure_fits("The Lanczos vectors", (size + 1, n), torch.float64, op.device, "ask for fewer eigenvalues")
    made = _Counted(op, given.progress)
    search = ThickRestartLanczos(made, starts.vector, total, lambda values: _wanted(values, given.which), size)
    search.step()
    if search.annihilated:  # only the zero operator annihilates a random vector
        return _of_zero(op, total, given.seed)
    restarts = 10 * n if given.max_iterations is None else given.max_iterations
    found = lanczos_eigenpairs(search, given.rtol, 4 * eps, restarts)
    difference, length = search.asymmetry
    if given.check_symmetry and not difference <= eps**0.5 * 2 * length:
        raise AsymmetricOperator(difference, 2 * length, length)
    return found


class _Counted:
    """Products with float64 vectors, counted."""

    def __init__(self, op: LinearOperator, progress: Progress | None) -> None:
        self.op, self.progress, self.products = op, progress, 0

    def __call__(self, v: Tensor) -> Tensor:
        self.products += 1
        if self.progress is not None:
            self.progress(self.products, 0)
        return multiply(self.op, v[:, None])[:, 0].double()


def _arpack(given: _SearchOptions) -> RitzEigenpairs:
    """By ``eigsh``; residuals take one product each."""
    op, n, made = given.op, int(given.op.shape[0]), _Counted(given.op, given.progress)
    start = Probes(n, 1, given.seed, "gaussian").vector(0).numpy()

    def matvec(v: np.ndarray) -> np.ndarray:
        return made(torch.from_numpy(v).reshape(n)).cpu().numpy()

    if not matvec(start).any():  # only the zero operator annihilates a random vector; ARPACK refuses to start from it
        return _of_zero(op, given.total, given.seed)
    linear, converged = sparse.LinearOperator((n, n), matvec=matvec, dtype=np.float64), True
    try:
        _, found = sparse.eigsh(
            linear, k=given.total, which=WHICH[given.which], tol=given.rtol, v0=start, maxiter=given.max_iterations
        )
    except sparse.ArpackNoConvergence as failure:
        found, converged = failure.eigenvectors, False
    V = torch.from_numpy(np.ascontiguousarray(found)).to(op.device)
    AV = torch.stack([made(v) for v in V.T], 1) if V.shape[1] else V
    return _rayleigh(V, AV, converged, made.products)


def _of_zero(op: LinearOperator, total: int, seed: int) -> RitzEigenpairs:
    """Any vectors are eigenvectors."""
    n = int(op.shape[0])
    V = torch.linalg.qr(Probes(n, total, seed, "gaussian").matrix(0, total))[0].to(op.device)
    zeros = torch.zeros(total, dtype=V.dtype, device=V.device)
    return RitzEigenpairs(zeros, V, zeros, True, 1)


def _rayleigh(V: Float[Tensor, "n k"], AV: Float[Tensor, "n k"], converged: bool, products: int) -> RitzEigenpairs:
    """``lambda = v^T A v`` of unit vectors, and ``|A v - lambda v|``."""
    values = (V * AV).sum(0)
    return RitzEigenpairs(values, V, (AV - V * values).norm(dim=0), converged, products)


def _wanted(values: Float[Tensor, "m"], which: str) -> Tensor:
    """All indices, those that are asked for first; of both ends in turn."""
    if which != "both":
        return _order(values, which)
    rising = torch.argsort(values, stable=True)
    n = len(rising)
    ends = torch.stack([rising, rising.flip(0)], 1).flatten()  # smallest, largest, second smallest, ...
    return ends[:n]


def _order(values: Float[Tensor, "k"], which: str) -> Tensor:
    key = {"largest": -values, "magnitude": -values.abs()}.get(which, values)
    return torch.argsort(key, stable=True)
