"""Products and sums of operators that refuse what cannot be multiplied or added, and say why."""

from __future__ import annotations

import math
from typing import Any

from curvlinops._torch_base import PyTorchLinearOperator
from torch import Tensor

from hessianlens.checks import check_dense
from hessianlens.errors import InputError, check_number, check_that, expect


class CheckedOperator(PyTorchLinearOperator):
    """curvlinops' interface, with `InputError` for vectors, operators and numbers that do not fit."""

    def _check_input_and_preprocess(self, X: Any) -> Any:
        vectors = X if isinstance(X, list) else [X]
        for vector in vectors:
            check_dense("vector", vector, "torch tensor, or a list of them")
            expect(not vector.is_complex(), f"vector: got dtype {vector.dtype}, expected real numbers.")
            expect(
                vector.device == self.device,
                f"vector: got one on {vector.device}, expected {self.device} as the operator.",
            )
            expect(vector.ndim > 0, "vector: got a number, expected a vector or a matrix.")
        try:
            return super()._check_input_and_preprocess(X)
        except ValueError as error:
            shapes = ", ".join(str(tuple(v.shape)) for v in vectors if isinstance(v, Tensor))
            raise InputError(
                f"vector: got shape {shapes or 'of nothing'} for an operator {self.shape[0]}x{self.shape[1]}, expected "
                f"({self.shape[1]},), ({self.shape[1]}, k), or a list of tensors shaped as the parameters."
            ) from error

    def __matmul__(self, X: Any) -> Any:
        if isinstance(X, PyTorchLinearOperator):
            expect(
                self._in_shape == X._out_shape,
                f"operator: got one with {X.shape[0]} rows, expected {self.shape[1]} on the same parameters.",
            )
        return super().__matmul__(X)

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, PyTorchLinearOperator):
            return NotImplemented
        expect(
            self._in_shape == other._in_shape and self._out_shape == other._out_shape,
            f"operator: got one {other.shape[0]}x{other.shape[1]} on other parameters, expected "
            f"{self.shape[0]}x{self.shape[1]} on the same ones.",
        )
        return super().__add__(other)

    def __mul__(self, scalar: Any) -> Any:
        return super().__mul__(check_number("scalar", scalar))

    def __truediv__(self, scalar: Any) -> Any:
        return self * reciprocal(scalar)

    def __sub__(self, other: Any) -> Any:
        if not isinstance(other, PyTorchLinearOperator):
            return NotImplemented
        return self + (-1.0) * other


def reciprocal(scalar: object) -> float:
    """One over a number that is not zero."""
    number = check_number("scalar", scalar)
    check_that(number != 0 and abs(1 / number) < math.inf, "scalar", scalar, "a number to divide by")
    return 1 / number
