r"""Sharpness in the geometry of an optimiser: the largest ``d' A d`` over the unit ball of its norm.

An optimiser that steps along ``argmax <g, d>`` over the unit ball of a norm - gradient descent (Euclidean), sign
descent and Lion (maximum norm), Muon (spectral norm of each matrix) - meets the curvature

    S = max_{|d| <= 1} d' A d,

and a step ``-lr |g|* d(g)``, with the dual norm ``|.|*``, can raise the loss of a quadratic only if ``S > 2 / lr``. In
the Euclidean norm S is the largest eigenvalue, and is found as that. In the others it is found from below:
``d <- argmax <(A + s) d, .>`` never lowers ``d' A d`` for s at least as large as the most negative eigenvalue, and ends
at a local maximum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlens.checks import check_tensor
from hessianlens.errors import check_choice, check_seed, check_that, check_whole
from hessianlens.spectra.largest_eigenvalue import leading_eigenpair
from hessianlens.spectra.probes import Probes
from hessianlens.spectra.products import LinearOperator, check_square, multiply, start_vectors
from hessianlens.spectra.reverse_communication import Iteration, answer

GEOMETRIES = ("euclidean", "max", "spectral")
"""Norms of updates: gradient descent, sign descent and Lion, Muon."""
_RISE = 1e-12
"""A relative rise below which a step has led nowhere."""
_RESIDUAL = 1e-6
"""Residual of an eigenvalue over its size."""
_TURN = 1e-6
"""A relative turn below which a step is none."""


@dataclass(frozen=True, eq=False)
class Sharpness:
    """The largest curvature found over a unit ball.

    Attributes:
        value: ``d' A d``, a lower bound of the maximum; attained at `direction`.
        direction: d, of norm one.
        geometry: The norm.
        converged: Whether every start ended at a local maximum.
        spread: Lowest local maximum over the highest, of all starts: 1 if they agree.
        products: Number of products with A.
    """

    value: float
    direction: Float[Tensor, "n"]
    geometry: str
    converged: bool
    spread: float
    products: int

    def __repr__(self) -> str:
        state = "" if self.converged else ", NOT converged"
        return f"{self.value:.6g} ({self.geometry} norm, from below, {self.products} matvecs{state})"

    __str__ = __repr__


def sharpness(
    op: LinearOperator,
    geometry: str = "euclidean",
    *,
    shapes: Sequence[tuple[int, ...]] | None = None,
    start: Float[Tensor, "n"] | Float[Tensor, "n k"] | None = None,
    starts: int = 4,
    most: int = 100,
    seed: int = 0,
) -> Sharpness:
    """``max d' A d`` over the unit ball of a norm, by generalised power iteration from several starts.

    Args:
        op: A symmetric linear operator or matrix.
        geometry: "euclidean", "max" (the largest entry; sign descent, Lion) or "spectral" (the largest singular
            value of every matrix, the Euclidean norm of vectors; Muon).
        shapes: Shapes of the blocks that rows and columns are made of, in order; default: one vector.
        start: Where searches begin, such as the direction of an earlier one; several as columns.
        starts: Random starts beside it.
        most: Products per start.
        seed: Seed of the random starts.

    >>> A = torch.tensor([[2.0, -1.0], [-1.0, 2.0]], dtype=torch.float64)
    >>> sharpness(A).value, sharpness(A, "max").value  # at (1, -1): 6, over a ball of larger vectors
    (3.0..., 6.0)
    """
    n = check_square(op, "eigenvalues")
    check_choice("geometry", geometry, GEOMETRIES)
    check_whole("starts", starts, 0 if start is not None or geometry == "euclidean" else 1)
    check_whole("most", most, 2)
    own = [] if start is None else list(start_vectors(op, start))
    known = _shapes(shapes, n)
    if geometry == "euclidean":
        pair = leading_eigenpair(op, own[0] if own else None, rtol=_RESIDUAL, most=most * max(starts, 1), seed=seed)
        return Sharpness(pair.value, pair.vector, geometry, pair.converged, 1.0, pair.products)
    fresh = Probes(n, starts + 1, check_seed(seed), "gaussian", op.dtype, op.device)
    begin = [*own, *(fresh.vector(k) for k in range(starts))]
    return answer(ascent_iteration(geometry, known, begin, most), lambda V: multiply(op, V))


def ascent_iteration(
    geometry: str, shapes: Sequence[tuple[int, ...]], begin: Sequence[Tensor], most: int
) -> Iteration[Sharpness]:
    """`sharpness` in another norm than the Euclidean one, by reverse communication.

    Args:
        geometry: "max" or "spectral".
        shapes: As for `sharpness`.
        begin: Where the searches begin.
        most: Products per start.
    """
    oracle, found = _oracle(geometry, shapes), []
    for vector in begin:
        found.append((yield from _ascend(oracle(vector), oracle, most)))
    best = max(found, key=lambda one: one.value)
    lowest = min(one.value for one in found)
    return Sharpness(
        best.value,
        best.direction,
        geometry,
        all(one.converged for one in found),
        lowest / best.value if best.value > 0 else math.nan,
        sum(one.products for one in found),
    )


Oracle = Callable[[Tensor], Tensor]
"""``argmax <g, d>`` over the unit ball."""


@dataclass(frozen=True, eq=False)
class _LocalMaximum:
    value: float
    direction: Tensor
    converged: bool
    products: int


def _ascend(d: Tensor, oracle: Oracle, most: int) -> Iteration[_LocalMaximum]:
    """Steps that never lower ``d' A d``: the shift is doubled where one would, and halved where nothing moves."""
    product, made, shift, too_small = (yield d[:, None])[:, 0], 1, 0.0, -1.0
    value = _inner(d, product)
    least = max(float(product.norm() / d.norm()), abs(value) / _inner(d, d)) / 16
    while made < most:
        following = oracle(product + shift * d)
        if _same(following, d):
            smaller = shift / 2 if shift > least else 0.0
            if smaller <= too_small or shift == 0:
                return _LocalMaximum(value, d, True, made)
            shift = smaller
            continue
        image, made = (yield following[:, None])[:, 0], made + 1
        reached = _inner(following, image)
        if reached > value + _RISE * abs(value):
            d, product, value, too_small = following, image, reached, -1.0
        else:  # A has negative directions: take smaller turns
            too_small, shift = shift, max(2 * shift, least)
    return _LocalMaximum(value, d, False, made)


def _same(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).norm() <= _TURN * other.norm())


def _inner(x: Tensor, y: Tensor) -> float:
    return float((x.double() * y.double()).sum())


def _shapes(shapes: Sequence[tuple[int, ...]] | None, n: int) -> list[tuple[int, ...]]:
    sound = isinstance(shapes, Sequence) and all(isinstance(shape, (tuple, list, torch.Size)) for shape in shapes)
    check_that(shapes is None or sound, "shapes", shapes, "shapes of matrices and vectors, such as [(4, 3), (3,)]")
    known: list[tuple[int, ...]]
    known = [(n,)] if shapes is None else [tuple(check_whole("shapes", k) for k in shape) for shape in shapes]
    check_that(sum(math.prod(shape) for shape in known) == n, "shapes", known, f"shapes with {n} entries together")
    return known


def _oracle(geometry: str, shapes: Sequence[tuple[int, ...]]) -> Oracle:
    if geometry == "max":
        return lambda g: torch.where(g < 0, -1.0, 1.0).to(g)
    sizes = [math.prod(shape) for shape in shapes]

    def polar(g: Tensor) -> Tensor:
        pieces = zip(g.split(sizes), shapes, strict=True)
        return torch.cat([_polar_factor(piece, shape) for piece, shape in pieces])

    return polar


def _polar_factor(g: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``U V'`` of a matrix ``U S V'``; a vector is divided by its length."""
    if len(shape) < 2:
        return _normalised(g)
    U, _, Vh = torch.linalg.svd(g.reshape(shape[0], -1), full_matrices=False)
    return (U @ Vh).flatten()


def dual_norm(g: Float[Tensor, "..."], geometry: str) -> float:
    """``max <g, d>`` over the unit ball of a norm: the length, the sum of absolute entries or of singular values.

    Args:
        g: A gradient of one parameter, in its shape.
        geometry: As for `sharpness`.

    >>> dual_norm(torch.diag(torch.tensor([3.0, -4.0])), "spectral"), dual_norm(torch.tensor([3.0, -4.0]), "euclidean")
    (7.0, 5.0)
    """
    check_tensor("g", g, tuple(range(9)))
    check_choice("geometry", geometry, GEOMETRIES)
    g = g.detach().double()
    if geometry == "max":
        return float(g.abs().sum())
    return float(g.norm() if geometry == "euclidean" or g.ndim < 2 else torch.linalg.svdvals(g.flatten(1)).sum())


def _normalised(g: Tensor) -> Tensor:
    length = g.norm()
    return g / length if float(length) > 0 else torch.full_like(g, 1 / math.sqrt(len(g)))
