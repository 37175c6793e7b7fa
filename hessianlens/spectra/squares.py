"""A Frobenius norm from the lengths of products with probes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from hessianlens.spectra.estimate import Estimate


def norm_from_squares(squares: Tensor, *, seed: int | None, exact: bool = False) -> Estimate:
    """``|A|_F = sqrt(E |A v|^2)`` from squared lengths; their sum over a basis is exact."""
    if exact:
        return Estimate.exactly(math.sqrt(float(squares.sum())), len(squares), "basis")
    square = Estimate.from_samples(squares, len(squares), seed, "hutchinson")
    value = math.sqrt(square.value)
    stderr = square.stderr / (2 * value) if value else 0.0
    return Estimate(value, stderr, len(squares), seed, "hutchinson", square.dof)


def norm_from_lengths(lengths: Sequence[Tensor], *, seed: int | None, exact: bool = False) -> Estimate:
    """The same from the lengths themselves, one number each."""
    return norm_from_squares(torch.stack(list(lengths)).cpu().square(), seed=seed, exact=exact)
