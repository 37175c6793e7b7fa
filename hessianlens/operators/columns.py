"""The entries of a matrix that is known through its products: one matvec per column, some columns at a time.

A matrix with fewer rows than columns goes through its adjoint, and so takes one matvec per row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from hessianlens.errors import expect
from hessianlens.memory import ensure_fits
from hessianlens.operators.scaled import Scaled, ldexp
from hessianlens.operators.tensor_list_operator import TensorListOperator

_WORKSPACE = 2**25
"""Numbers of the columns that are held at once."""


def columns_of(op: TensorListOperator) -> Iterator[tuple[int, Tensor]]:
    """Some columns of the matrix at a time, with the number of the first of them."""
    rows, count = op.shape
    most = max(1, min(count, _WORKSPACE // max(rows, count)))
    ensure_fits("Some of the columns", (rows + count, most), op.dtype, op.device, "use smaller blocks")
    for start in range(0, count, most):
        basis = torch.zeros(count, min(most, count - start), dtype=op.dtype, device=op.device)
        basis.diagonal(-start).fill_(1)
        found = op @ basis
        assert isinstance(found, Tensor)
        expect(
            bool(torch.isfinite(found).all()),
            "operator: a product with a finite vector has infinite or NaN entries, expected finite ones.",
        )
        yield start, found


def write_columns(op: TensorListOperator, target: Tensor) -> None:
    """Write the matrix into a tensor of its shape."""
    rows, count = op.shape
    if rows < count:
        op, target = op.adjoint(), target.T
    for start, found in columns_of(op):
        target[:, start : start + found.shape[1]] = found


def diagonal_by_columns(op: TensorListOperator) -> Tensor:
    """The diagonal of a square matrix."""
    return torch.cat([found.diagonal(-start) for start, found in columns_of(op)])


def square_by_columns(op: TensorListOperator) -> Scaled:
    """The squared Frobenius norm; neither the matrix is held, nor need the square fit in the dtype."""
    rows, count = op.shape
    thin = op.adjoint() if rows < count else op
    return Scaled.total([_square(found) for _, found in columns_of(thin)], op.device)


def _square(entries: Tensor) -> Scaled:
    """The sum of squares of numbers whose squares need not fit."""
    exponent = math.frexp(float(entries.abs().max()))[1]
    return Scaled(ldexp(entries.double(), -exponent).square().sum(), 2 * exponent)
