"""Matrices in half precision: products are taken in single precision, so that nothing overflows on the way."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import hessianlens as hl


def matrix(dtype: torch.dtype, size: float) -> Tensor:
    return (size * torch.randn(80, 80, generator=torch.Generator().manual_seed(0))).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [1.0, 1e4])
def test_norm_trace_and_diagonal(dtype: torch.dtype, size: float) -> None:
    A = matrix(dtype, size)
    true = A.double()
    assert hl.frobenius(A, probes=80).value == pytest.approx(float(true.norm()), rel=1e-6)
    assert hl.trace(A, probes=80).value == pytest.approx(float(true.trace()), rel=1e-6)
    assert torch.allclose(hl.diagonal(A, probes=80).value, true.diagonal(), rtol=1e-6)
    low, high = hl.frobenius(A, probes=40).interval()
    assert low <= float(true.norm()) <= high
    low, high = hl.trace(A, probes=40).interval()
    assert low <= float(true.trace()) <= high


@pytest.mark.parametrize("dtype, size", [(torch.float32, 1e30), (torch.float64, 1e200), (torch.float64, 1e-200)])
def test_norms_whose_squares_do_not_fit(dtype: torch.dtype, size: float) -> None:
    A = torch.randn(30, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scaled = (size * A).to(dtype)
    assert hl.frobenius(scaled, probes=30).value / size == pytest.approx(float(A.norm()), rel=1e-6)
    assert hl.frobenius(scaled, probes=20).value / size == pytest.approx(hl.frobenius(A, probes=20).value, rel=1e-6)
