"""Figures taken from matrices and from many measurements."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from hessianlens.lab.experiments.common.slopes import log_log_slope


def gap(found: Tensor, wanted: Tensor) -> float:
    """Relative distance of two matrices; infinite if their sizes differ.

    >>> gap(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 5.0])) < 0.2
    True
    """
    if found.shape != wanted.shape:
        return math.inf
    size = float(wanted.norm())
    return float((found - wanted).norm()) / size if size > 0 else float(found.norm())


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
