"""Figures taken from matrices and from many measurements."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from hessianlab.claims.check import Check, at_most
from hessianlab.experiments.common.slopes import log_log_slope

EXACT = 1e-10
"""Largest relative difference between two float64 computations of the same matrix."""

ROUNDING = -1e-10
"""A relative eigenvalue above this is not called negative."""


def gap(found: Tensor, wanted: Tensor) -> float:
    """Relative distance of two matrices; infinite if their sizes differ.

    >>> gap(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 5.0])) < 0.2
    True
    """
    if found.shape != wanted.shape:
        return math.inf
    size = float(wanted.norm())
    return float((found - wanted).norm()) / size if size > 0 else float(found.norm())


def same(what: str, pairs: Iterable[tuple[Tensor, Tensor]]) -> Check:
    """Passes if the two matrices of every pair agree up to rounding: two float64 computations of one matrix."""
    return at_most(f"{what}, largest relative difference", (gap(*pair) for pair in pairs), EXACT)


def median(values: Iterable[float]) -> float:
    """The middle one; of an even number the lower of two."""
    return float(torch.tensor(list(values)).median())


def largest(values: Iterable[float]) -> float:
    """The largest of some figures; not a number if one of them is not."""
    return float(np.max(list(values)))


def smallest(values: Iterable[float]) -> float:
    """The smallest of some figures; not a number if one of them is not."""
    return float(np.min(list(values)))


def farthest(values: Sequence[float], target: float) -> float:
    """The value farthest from a target: the one that decides whether all are close to it.

    >>> farthest([5.9, 6.0, 6.3], 6)
    6.3
    """
    return max(values, key=lambda value: abs(value - target))


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Least-squares slope in log-log, the exponent of a power law; not a number if a value vanishes.

    >>> round(slope([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    found = log_log_slope(x, y)
    return math.nan if found is None else found


def relative_minimum(matrix: Tensor) -> float:
    """Smallest eigenvalue of a symmetric matrix over its largest absolute one: below zero if it is indefinite."""
    values = torch.linalg.eigvalsh(matrix)
    top = float(values.abs().max())
    return float(values[0]) / top if top > 0 else 0.0


def negatives(minima: Iterable[float]) -> int:
    """How many relative eigenvalues are negative beyond rounding."""
    return sum(value < ROUNDING for value in minima)


def extremes(matrix: Tensor) -> tuple[float, float]:
    """Smallest and largest eigenvalue over the largest absolute one."""
    values = torch.linalg.eigvalsh(matrix)
    top = float(values.abs().max())
    return (float(values[0]) / top, float(values[-1]) / top) if top > 0 else (0.0, 0.0)


def negative_mass(matrix: Tensor) -> float:
    """``sum_{lambda < 0} |lambda| / sum |lambda|``: 0 for a positive semi-definite matrix, 1/2 for a balanced one."""
    values = torch.linalg.eigvalsh(matrix)
    values = torch.where(values.abs() > 1e-12 * values.abs().max(), values, 0)
    total = float(values.abs().sum())
    return float(-values[values < 0].sum()) / total if total > 0 else 0.0
