"""What must hold of every structured operator, stated once and checked for all of them."""

from __future__ import annotations

import torch
from torch import Tensor

from hessianlens.operators import StructuredOperator
from tests.oracles.comparison import assert_same


def _vectors(op: StructuredOperator, columns: int, count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(columns, count, generator=generator, dtype=torch.float64).to(op.dtype)


def product_with_vector(op: StructuredOperator, dense: Tensor) -> None:
    v = _vectors(op, dense.shape[1], 1)[:, 0]
    assert_same(op @ v, dense @ v, "op @ v")


def product_with_matrix(op: StructuredOperator, dense: Tensor) -> None:
    M = _vectors(op, dense.shape[1], 3)
    assert_same(op @ M, dense @ M, "op @ M")


def product_with_tensor_list(op: StructuredOperator, dense: Tensor) -> None:
    v = _vectors(op, dense.shape[1], 1)[:, 0]
    pieces = [p.reshape(s) for p, s in zip(v.split(op._in_shape_flat), op._in_shape, strict=True)]
    assert_same(torch.cat([p.reshape(-1) for p in op @ pieces]), dense @ v, "op @ [tensors]")


def adjoint_is_transpose(op: StructuredOperator, dense: Tensor) -> None:
    v = _vectors(op, dense.shape[0], 2)
    assert_same(op.adjoint() @ v, dense.T @ v, "op.adjoint() @ M")
    assert_same(op.adjoint().to_dense(), dense.T, "op.adjoint().to_dense()")


def dense_form(op: StructuredOperator, dense: Tensor) -> None:
    assert_same(op.to_dense(), dense, "op.to_dense()")


def frobenius_norm(op: StructuredOperator, dense: Tensor) -> None:
    assert_same(op.frobenius_norm() ** 2, (dense**2).sum(), "op.frobenius_norm()")


def frobenius_inner(op: StructuredOperator, dense: Tensor) -> None:
    assert_same(op.frobenius_inner(2.0 * op), 2 * (dense**2).sum(), "op.frobenius_inner(2 op)")


def distance(op: StructuredOperator, dense: Tensor) -> None:
    assert_same(op.frobenius_distance(3.0 * op), 2 * dense.norm(), "op.frobenius_distance(3 op)", 1e-9)


def trace_and_diagonal(op: StructuredOperator, dense: Tensor) -> None:
    if op._in_shape == op._out_shape:
        assert_same(op.diagonal(), dense.diagonal(), "op.diagonal()")
        assert abs(float(op.trace() - dense.trace())) <= 1e-10 * float(dense.norm()) * dense.shape[0] ** 0.5


def algebra_stays_structured(op: StructuredOperator, dense: Tensor) -> None:
    combined = 2.0 * op - op / 4 + op
    assert isinstance(combined, StructuredOperator)
    assert_same(combined.to_dense(), 2.75 * dense, "2 op - op/4 + op")


def scipy_export(op: StructuredOperator, dense: Tensor) -> None:
    v = _vectors(op, dense.shape[1], 1)[:, 0]
    assert_same(torch.from_numpy(op.to_scipy() @ v.numpy()), dense @ v, "op.to_scipy() @ v")


def printed_algebra(op: StructuredOperator, dense: Tensor) -> None:
    text = str(op)
    assert f"{dense.shape[0]}x{dense.shape[1]}" in text
    assert op.algebra() in text


PROPERTIES = (
    product_with_vector,
    product_with_matrix,
    product_with_tensor_list,
    adjoint_is_transpose,
    dense_form,
    frobenius_norm,
    frobenius_inner,
    distance,
    trace_and_diagonal,
    algebra_stays_structured,
    scipy_export,
    printed_algebra,
)
