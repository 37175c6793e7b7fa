"""One wording of numbers and lists in what the ledger says."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def numbers(matrix: Tensor, digits: int = 3) -> str:
    """A small matrix or vector as text; entries below 1e-12 of the largest are rounding and read 0.

    >>> numbers(torch.tensor([[1.0, -0.5], [0.25, 1e-17]]))
    '[[1, -0.5], [0.25, 0]]'
    """
    if matrix.ndim == 0:
        return f"{float(matrix):.{digits}g}"
    kept = torch.where(matrix.abs() < 1e-12 * matrix.abs().max(), 0.0, matrix)
    return "[" + ", ".join(numbers(row, digits) for row in kept) + "]"


def fixed(values: Iterable[float], digits: int = 1) -> str:
    """Numbers with so many decimals, none of them a negative zero.

    >>> fixed([1.25, -0.01])
    '1.2, 0.0'
    """
    return ", ".join(f"{round(value, digits) + 0.0:.{digits}f}" for value in values)


def shown(values: Iterable[float], digits: int = 2) -> str:
    """A row as text.

    >>> shown([0.377, 0.0761])
    '[0.38, 0.08]'
    """
    return f"[{fixed(values, digits)}]"


def listed(values: list[float]) -> str:
    """The smallest and the largest as text, one number if they agree.

    >>> listed([1.0, 1.0]), listed([1.0, 2.5])
    ('1', '1 to 2.5')
    """
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"
