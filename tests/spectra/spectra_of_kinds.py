"""Squared lengths ``|A v|^2 / |A|^2`` of matrices from one eigenvalue to a flat spectrum, for many seeds at once."""

from __future__ import annotations

from functools import cache

import numpy as np

COLUMNS = 60
SEEDS = 2000
MOST = 50
"""Probes of every seed."""


def _few(squares: list[float]) -> np.ndarray:
    return np.array([*squares, *[0.0] * (COLUMNS - len(squares))])


def _over_bulk(share: float) -> np.ndarray:
    """One eigenvalue over a flat bulk whose squares sum to `share` times its own."""
    return np.array([1.0, *[share / (COLUMNS - 1)] * (COLUMNS - 1)])


KINDS: dict[str, np.ndarray] = {
    "one": _few([1]),
    "two": _few([1, 1]),
    "three": _few([1] * 3),
    "five": _few([1] * 5),
    "five, falling": _few([4.0**-k for k in range(5)]),
    "one over a tenth": _over_bulk(0.1),
    "one over a third": _over_bulk(1 / 3),
    "one over as much": _over_bulk(1),
    "one over thrice": _over_bulk(3),
    "one over tenfold": _over_bulk(10),
    "power law": (1.0 + np.arange(COLUMNS)) ** -2,
    "evenly spaced": np.linspace(-1, 1, COLUMNS) ** 2,
    "flat": np.repeat([1.0, 0.9], COLUMNS // 2),
}
"""Squares of the eigenvalues."""


@cache
def _all_kinds(distribution: str) -> np.ndarray:
    """Seeds, probes, kinds. Eigenvectors are random, the same for all; the truth is 1."""
    rng = np.random.default_rng(0)
    Q, _ = np.linalg.qr(rng.standard_normal((COLUMNS, COLUMNS)))
    shape = (SEEDS * MOST, COLUMNS)
    V = 2.0 * rng.integers(0, 2, shape) - 1 if distribution == "rademacher" else rng.standard_normal(shape)
    shares = np.stack([squares / squares.sum() for squares in KINDS.values()], axis=1)
    return ((V @ Q) ** 2 @ shares).reshape(SEEDS, MOST, len(KINDS))


def squared_lengths(kind: str, distribution: str) -> np.ndarray:
    """A row per seed, a column per probe."""
    return _all_kinds(distribution)[:, :, list(KINDS).index(kind)]
