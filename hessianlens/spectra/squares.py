"""A Frobenius norm from squared lengths of products: the only place that turns these into an `Estimate`."""

from __future__ import annotations

import math

from jaxtyping import Float
from torch import Tensor

from hessianlens.spectra.estimate import Estimate


def norm_from_squares(squares: Float[Tensor, "probes"], *, seed: int | None, exact: bool = False) -> Estimate:
    """``|A|_F`` from ``|A v_k|^2``, as ``|A|_F^2 = E |A v|^2`` for ``E v v^T = I``.

    The estimate is the root of the mean ``m``; its standard error is that of the mean, ``s``, through the derivative
    of the root: ``s / (2 sqrt(m))``. The squares of further probes, or of the products with ``A^T``, are appended to
    those that are there: the estimate from all of them is a function of all of them.

    Args:
        squares: Squared lengths, one a probe.
        seed: Seed of the probes.
        exact: Whether the vectors are all of the basis: the squared norm is then the sum.

    >>> import torch
    >>> squares = torch.tensor([4.1, 3.2, 5.0, 3.9])
    >>> print(norm_from_squares(squares, seed=0))
    2.01 [1.80, 2.77] (4 probes: few)
    >>> print(norm_from_squares(squares[:1], seed=0), norm_from_squares(squares, seed=None, exact=True), sep="; ")
    2.0 [0.9, 64.6] (1 probe: few); 4.02492 (exact)
    """
    squares = squares.double()
    count = len(squares)
    if exact:
        return Estimate.exactly(math.sqrt(float(squares.sum())), count, "basis")
    value = math.sqrt(float(squares.mean()))
    if count == 1 or value == 0:
        stderr = 0.0 if value == 0 else math.inf
    else:
        stderr = float(squares.std()) / math.sqrt(count) / (2 * value)
    return Estimate(value, stderr, count, seed, "hutchinson", count - 1, skewed=True)
