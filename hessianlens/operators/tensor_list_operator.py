"""The interface of a linear operator between lists of tensors, as curvlinops has it, with checks of what it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator as SciPyOperator
from torch import Tensor

from hessianlens.checks import check_dense
from hessianlens.errors import InputError, expect
from hessianlens.state_guard import restores_state

Shapes = Sequence[Sequence[int]]


class TensorListOperator:
    """A matrix between two spaces of tensor lists, known by its products with vectors.

    The interface is that of curvlinops' ``PyTorchLinearOperator``, so that estimators and inverses of curvlinops take
    operators of this package, and sums may have operators of both. A kind of operator has at least ``_matmat``,
    ``_adjoint``, ``dtype`` and ``device``.

    Args:
        in_shape: Shapes of the tensors that it multiplies.
        out_shape: Shapes of the tensors that come out.
    """

    SELF_ADJOINT: bool = False

    def __init__(self, in_shape: Shapes, out_shape: Shapes) -> None:
        self._in_shape: list[Any] = [torch.Size(shape) for shape in in_shape]
        self._out_shape: list[Any] = [torch.Size(shape) for shape in out_shape]
        self._in_shape_flat = [shape.numel() for shape in self._in_shape]
        self._out_shape_flat = [shape.numel() for shape in self._out_shape]
        self.shape = (sum(self._out_shape_flat), sum(self._in_shape_flat))

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the matrix and of the vectors that it multiplies."""
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        """Device of the matrix and of the vectors that it multiplies."""
        raise NotImplementedError

    def _matmat(self, X: list[Tensor]) -> list[Tensor]:
        """Product with a matrix, given and returned as a list of tensors with one more axis for its columns."""
        raise NotImplementedError

    def _adjoint(self) -> Any:
        raise NotImplementedError

    def adjoint(self) -> Any:
        """The transpose, as an operator."""
        return self if self.SELF_ADJOINT else self._adjoint()

    def __matmul__(self, X: Any) -> Any:
        if is_linear_operator(X):
            return OperatorProduct(self, X)
        pieces, is_list, is_vector, columns = self._check_input_and_preprocess(X)
        result = self._matmat(pieces)
        for piece, shape in zip(result, self._out_shape, strict=True):
            if piece.shape != (*shape, columns):
                raise ValueError(
                    f"{type(self).__name__}: a product has shape {tuple(piece.shape)}, not {shape} columns"
                )
        if is_list:
            return [piece.squeeze(-1) for piece in result] if is_vector else result
        flat = torch.cat([piece.reshape(n, columns) for piece, n in zip(result, self._out_shape_flat, strict=True)])
        return flat.squeeze(-1) if is_vector else flat

    def _check_input_and_preprocess(self, X: Any) -> tuple[list[Tensor], bool, bool, int]:
        """A list of tensors with an axis for columns; whether a list and whether a vector was given; columns."""
        if isinstance(X, list):
            return self._of_list(X)
        if X.ndim > 2 or X.shape[0] != self.shape[1]:
            raise ValueError(f"shape {tuple(X.shape)}")
        columns = 1 if X.ndim == 1 else int(X.shape[1])
        pieces = X.split(self._in_shape_flat)
        split = [piece.reshape(*shape, columns) for piece, shape in zip(pieces, self._in_shape, strict=True)]
        return split, False, X.ndim == 1, columns

    def _of_list(self, X: list[Tensor]) -> tuple[list[Tensor], bool, bool, int]:
        if len(X) != len(self._in_shape):
            raise ValueError(f"{len(X)} tensors")
        pairs = list(zip(X, self._in_shape, strict=True))
        if all(x.shape == shape for x, shape in pairs):
            return [x.unsqueeze(-1) for x in X], True, True, 1
        columns = {x.shape[-1] for x in X}
        if len(columns) > 1 or any(x.ndim != len(shape) + 1 or x.shape[:-1] != shape for x, shape in pairs):
            raise ValueError(f"shapes {[tuple(x.shape) for x in X]}")
        return X, True, False, columns.pop()

    def to_scipy(self, dtype: Any = None) -> SciPyOperator:
        """The operator for SciPy; `dtype` is NumPy's, of its vectors."""
        forward, backward = self._on_arrays(), self.adjoint()._on_arrays()
        return SciPyOperator(
            self.shape,
            matvec=forward,
            rmatvec=backward,
            matmat=forward,
            rmatmat=backward,
            dtype=np.dtype(dtype),
        )

    def to_curvlinops(self) -> Any:
        """The operator as an instance of curvlinops' own class, for code that asks for one; needs curvlinops.

        Sums, estimators and inverses of curvlinops take operators of this package as they are. A product of operators
        with one of curvlinops on the left, ``theirs @ ours.to_curvlinops()``, asks for the class.
        """
        from hessianlens.operators.curvlinops_bridge import CurvlinopsView

        return CurvlinopsView(self)

    def _on_arrays(self) -> Callable[[np.ndarray], np.ndarray]:
        def product(X: np.ndarray) -> np.ndarray:
            result = self @ torch.as_tensor(X, dtype=self.dtype, device=self.device)
            result = result.float() if result.dtype == torch.bfloat16 else result  # which NumPy does not have
            array: np.ndarray = result.detach().cpu().numpy().astype(X.dtype)
            return array

        return product


class OperatorProduct(TensorListOperator):
    """``A B``, by one product with each.

    >>> import hessianlens as hl
    >>> layer = hl.SelfAttention.random(d_model=4, d_k=3, seed=0, dtype=torch.float64)
    >>> X, Y = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    >>> H = hl.attention_hessian(layer, X, hl.SquareLoss(Y)).full
    >>> A, B, v = H["Q", "V"], H["V", "Q"], torch.ones(12, dtype=torch.float64)
    >>> torch.allclose((A @ B) @ v, A @ (B @ v))
    True
    """

    def __init__(self, A: Any, B: Any) -> None:
        for what in ("device", "dtype"):
            if getattr(A, what) != getattr(B, what):
                raise ValueError(f"operators: got {what}s {getattr(A, what)} and {getattr(B, what)}, expected one.")
        super().__init__(B._in_shape, A._out_shape)
        self._A, self._B = A, B

    @property
    def dtype(self) -> torch.dtype:
        """That of both factors."""
        dtype: torch.dtype = self._A.dtype
        return dtype

    @property
    def device(self) -> torch.device:
        """That of both factors."""
        device: torch.device = self._A.device
        return device

    def _matmat(self, X: list[Tensor]) -> list[Tensor]:
        result: list[Tensor] = self._A._matmat(self._B._matmat(X))
        return result

    def _adjoint(self) -> OperatorProduct:
        return OperatorProduct(self._B.adjoint(), self._A.adjoint())


_INTERFACE = ("_matmat", "adjoint", "_in_shape", "_out_shape", "dtype", "device")


def is_linear_operator(value: object) -> TypeGuard[TensorListOperator]:
    """Whether a value has the interface: an operator of this package or of curvlinops."""
    return isinstance(value, TensorListOperator) or all(hasattr(value, name) for name in _INTERFACE)


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
