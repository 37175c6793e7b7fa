"""What must hold of every operator, in closed form or not: the contract, stated once and checked for all of them."""

from __future__ import annotations

import torch
from curvlinops._torch_base import PyTorchLinearOperator
from torch import Tensor

import hessianlens as hl
from hessianlens.operators import Operator
from tests.oracles.comparison import assert_same
from tests.oracles.properties import (
    adjoint_is_transpose,
    dense_form,
    frobenius_norm,
    product_with_matrix,
    product_with_tensor_list,
    product_with_vector,
    scipy_export,
    trace_and_diagonal,
)


def right_kind(op: Operator, dense: Tensor) -> None:
    """One interface, and curvlinops' where it is asked for."""
    assert isinstance(op, Operator) and isinstance(op.to_curvlinops(), PyTorchLinearOperator)
    v = torch.linspace(-1, 1, dense.shape[1], dtype=dense.dtype)
    assert_same(op.to_curvlinops() @ v, dense @ v, "op.to_curvlinops() @ v")
    assert tuple(op.shape) == tuple(dense.shape) and op.dtype == dense.dtype and op.device == dense.device
    for found in (op.to_dense(), op.frobenius_norm(), op @ dense[0]):
        assert found.dtype == op.dtype


def tensor_list_of_matrices(op: Operator, dense: Tensor) -> None:
    M = torch.arange(2.0 * dense.shape[1], dtype=dense.dtype).reshape(-1, 2)
    pieces = [p.reshape(*s, 2) for p, s in zip(M.split(op._in_shape_flat), op._in_shape, strict=True)]
    assert_same(torch.cat([p.reshape(-1, 2) for p in op @ pieces]), dense @ M, "op @ [matrices]")


def adjoint_keeps_the_contract(op: Operator, dense: Tensor) -> None:
    adjoint = op.adjoint()
    assert isinstance(adjoint, Operator) and (adjoint.exact, adjoint.why) == (op.exact, op.why)
    assert_same(adjoint.frobenius_norm(), dense.norm(), "op.adjoint().frobenius_norm()")
    assert_same(adjoint.adjoint().to_dense(), dense, "op.adjoint().adjoint()")


def algebra_keeps_the_contract(op: Operator, dense: Tensor) -> None:
    """Sums, differences, negations and multiples are operators as this one."""
    combined = {
        "2 op": (2.0 * op, 2 * dense),
        "-op": (-op, -dense),
        "op / 4": (op / 4, dense / 4),
        "op + 2 op": (op + 2 * op, 3 * dense),
        "op / 4 - op": (op / 4 - op, -0.75 * dense),
        "sum([op, op])": (sum([op, op]), 2 * dense),
    }
    for name, (found, expected) in combined.items():
        assert isinstance(found, Operator) and found.exact == op.exact, name
        assert_same(found.to_dense(), expected, name)
        assert_same(found.frobenius_norm(), expected.norm(), f"|{name}|")
        if op._in_shape == op._out_shape:
            assert_same(found.diagonal(), expected.diagonal(), f"diagonal of {name}")


def told_in_words(op: Operator, dense: Tensor) -> None:
    for name in ("cost", "product_cost", "why", "method"):
        words = getattr(op, name)
        assert isinstance(words, str) and words.strip() == words and words, name
    assert "matvec" in op.cost and "\n" not in op.why and not op.why.endswith(".")
    assert type(op).__name__ in repr(op) and f"{dense.shape[0]}x{dense.shape[1]}" in repr(op)
    assert repr(op) == str(op) and " object at 0x" not in repr(op)


def estimators_ask_what_is_exact(op: Operator, dense: Tensor) -> None:
    """Estimates are of `hl.frobenius`: an operator in closed form has none, all others do."""
    assert isinstance(op.exact, bool)
    estimate = hl.frobenius(op, probes=min(4, op.shape[1] - 1))
    assert estimate.exact == op.exact
    if op.exact:
        assert abs(estimate.value - float(dense.norm())) <= 1e-9 * float(dense.norm())


CONTRACT = (
    right_kind,
    product_with_vector,
    product_with_matrix,
    product_with_tensor_list,
    tensor_list_of_matrices,
    adjoint_is_transpose,
    adjoint_keeps_the_contract,
    dense_form,
    frobenius_norm,
    trace_and_diagonal,
    scipy_export,
    algebra_keeps_the_contract,
    told_in_words,
    estimators_ask_what_is_exact,
)
