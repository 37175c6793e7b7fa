"""Products of operators that refuse what cannot be multiplied, and say why."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from hessianlens.checks import check_dense
from hessianlens.errors import InputError, expect
from hessianlens.operators.tensor_list_operator import TensorListOperator, is_linear_operator
from hessianlens.state_guard import restores_state


class CheckedOperator(TensorListOperator):
    """A linear operator with `InputError` for vectors and operators that do not fit."""

    def _check_input_and_preprocess(self, X: Any) -> Any:
        vectors = X if isinstance(X, list) else [X]
        for vector in vectors:
            check_dense("vector", vector, "torch tensor, or a list of them")
            if vector.is_complex():
                raise InputError(f"vector: got dtype {vector.dtype}, expected real numbers.")
            if vector.device != self.device:
                raise InputError(f"vector: got one on {vector.device}, expected {self.device} as the operator.")
            expect(vector.ndim > 0, "vector: got a number, expected a vector or a matrix.")
        try:
            return super()._check_input_and_preprocess(X)
        except ValueError as error:
            shapes = ", ".join(str(tuple(v.shape)) for v in vectors if isinstance(v, Tensor))
            raise InputError(
                f"vector: got shape {shapes or 'of nothing'} for an operator {self.shape[0]}x{self.shape[1]}, expected "
                f"({self.shape[1]},), ({self.shape[1]}, k), or a list of tensors shaped as the parameters."
            ) from error

    @restores_state
    def __matmul__(self, X: Any) -> Any:
        if is_linear_operator(X):
            expect(
                self._in_shape == X._out_shape,
                f"operator: got one with {X.shape[0]} rows, expected {self.shape[1]} on the same parameters.",
            )
        return super().__matmul__(X)
