"""The matrix-multiply peak of the machine, timed in the rounds of a benchmark."""

from __future__ import annotations

from collections.abc import Callable

import torch

SIZE = 1024
"""Rows and columns of the two matrices: far beyond the caches, and a few hundredths of a second."""
NAME = "matrix product"
"""Under which it is timed beside competitors."""


def matrix_product(dtype: torch.dtype) -> Callable[[], object]:
    """The product of two large square matrices, as a run."""
    generator = torch.Generator().manual_seed(0)
    A, B = (torch.randn(SIZE, SIZE, generator=generator, dtype=dtype) for _ in range(2))
    out = torch.empty_like(A)
    return lambda: torch.mm(A, B, out=out)


def operations_per_second(seconds: float) -> float:
    """From the time of `matrix_product`; a multiply-add counts as two operations."""
    return 2 * SIZE**3 / seconds
