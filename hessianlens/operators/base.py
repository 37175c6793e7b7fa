"""What every structured matrix can do exactly, beyond its products with vectors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hessianlens.checks import check_dtype
from hessianlens.errors import InputError, check_that, check_whole, expect
from hessianlens.operators.exponent_scaling import Scaled
from hessianlens.operators.operator import Operator
from hessianlens.sizes import readable
from hessianlens.state_guard import restores_state

if TYPE_CHECKING:
    from typing import Self

_FEW_ENTRIES = 2**14
"""Entries of a matrix that is shown without being asked for."""
IMMEDIATE_MAX_MULTIPLY_ADDS = 3e8
"""Multiply-adds that take no time worth waiting for."""


class StructuredOperator(Operator):
    """A matrix kept in factored form: its products, trace, diagonal and Frobenius geometry are exact and cheap.

    Rows and columns are indexed by parameter tensors, vectorised row-major. The algebra is curvlinops'
    (``@`` with vectors, matrices and tensor lists, ``+ - * /``, ``.adjoint()``, ``.to_scipy()``); sums and scalings of
    structured operators stay structured. Exact means: no sampling, only the rounding of the dtype, relative to the
    largest entries of the matrix (docs/explanation/operators.md says more).
    """

    method = "closed form"
    exact = True
    why = "it is stored as a sum of products of small factors"
    _dense_working = 2.2
    _prints_cost = True

    def __init__(
        self,
        in_shape: list[tuple[int, ...]],
        out_shape: list[tuple[int, ...]],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__(in_shape, out_shape)
        self._dtype, self._device = dtype, device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the matrix entries."""
        return self._dtype

    @property
    def device(self) -> torch.device:
        """The device the factors live on."""
        return self._device

    @property
    @abstractmethod
    def multiply_adds(self) -> float:
        """Multiply-adds of one product with a vector; blocks that a product needs are built for it."""

    @property
    def held_bytes(self) -> int:
        """Memory of the distinct factors that a product reads."""
        distinct = {(t.data_ptr(), t.shape): t for t in self._factors()}
        return sum(t.numel() * t.element_size() for t in distinct.values())

    @abstractmethod
    def _factors(self) -> list[Tensor]:
        """The numbers that a product reads, some of them possibly more than once."""

    @property
    def product_cost(self) -> str:
        """The multiply-adds of a product, as text."""
        return f"{self.multiply_adds:.2g} multiply-adds per matvec"

    @property
    def cost(self) -> str:
        """What a product costs and what is held, as text."""
        return f"{self.product_cost}, {readable(self.held_bytes)} held"

    @abstractmethod
    def _dense_into(self, target: Tensor) -> None:
        """Write the matrix into a (view of a) tensor of its shape."""

    @abstractmethod
    def _trace(self) -> Tensor: ...

    @abstractmethod
    def _diagonal(self) -> Tensor: ...

    @restores_state
    def frobenius_inner(self, other: StructuredOperator) -> Tensor:
        """The exact Frobenius inner product: the sum of the products of all entries of two matrices."""
        return self._frobenius_inner(self._comparable(other)).number(self.dtype, "frobenius_inner")

    def _comparable(self, other: object) -> StructuredOperator:
        if not isinstance(other, StructuredOperator):
            raise InputError(f"other: got {type(other).__name__}, expected a structured operator.")
        expect(
            self._in_shape == other._in_shape and self._out_shape == other._out_shape,
            f"other: got an operator {other.shape[0]}x{other.shape[1]} on other parameter shapes, "
            f"expected {self.shape[0]}x{self.shape[1]} on the same ones.",
        )
        expect(
            self.dtype == other.dtype and self.device == other.device,
            f"other: got {other.dtype} on {other.device}, expected {self.dtype} on {self.device}.",
        )
        return other

    @abstractmethod
    def _frobenius_inner(self, other: StructuredOperator) -> Scaled: ...

    @abstractmethod
    def _frobenius_square(self) -> Scaled: ...

    @restores_state
    def frobenius_distance(self, other: StructuredOperator) -> Tensor:
        """The Frobenius norm of the difference.

        Exact up to rounding; between two different factorings of nearly the same matrix, rounding leaves about the
        square root of the machine precision times the norm.
        """
        difference = self - self._comparable(other)
        if not isinstance(difference, StructuredOperator):
            raise InputError("other: got an operator of another structure; compare the dense forms instead.")
        return difference.frobenius_norm()

    @abstractmethod
    def algebra(self) -> str:
        """The matrix in index notation."""

    @abstractmethod
    def __mul__(self, scalar: int | float) -> Self: ...

    def __rmul__(self, scalar: int | float) -> Self:
        return self * scalar

    def __neg__(self) -> Self:
        return self * -1.0

    def _records(self) -> list[dict[str, Any]]:
        return [{**super()._records()[0], "algebra": self.algebra()}]

    def _seen_at_once(self) -> bool:
        small = self.shape[0] * self.shape[1] <= _FEW_ENTRIES
        return small and min(self.shape) * self.multiply_adds <= IMMEDIATE_MAX_MULTIPLY_ADDS

    def __str__(self) -> str:
        rows, columns = self.shape
        cost = f", {self.cost}" if self._prints_cost else ""
        return (
            f"{type(self).__name__} {rows}x{columns} {str(self.dtype).removeprefix('torch.')}{cost}: {self.algebra()}"
        )

    __repr__ = __str__


def check_parameter(name: str, shape: object) -> None:
    """The shape of a matrix parameter."""
    two = isinstance(shape, Sequence) and len(shape) == 2 and not isinstance(shape, str)
    check_that(two, name, shape, "two sizes, such as (4, 3)")
    assert isinstance(shape, Sequence)
    for size in shape:
        check_whole(name, size)


def check_shape(name: str, shape: object) -> None:
    """The shape of any parameter."""
    sizes = isinstance(shape, Sequence) and len(shape) > 0 and not isinstance(shape, str)
    check_that(sizes, name, shape, "the sizes of a parameter, such as (4, 3)")
    assert isinstance(shape, Sequence)
    for size in shape:
        check_whole(name, size)


def check_place(dtype: object, device: object) -> None:
    """Where the numbers of a matrix live, and in which precision."""
    check_dtype(dtype)
    check_that(isinstance(device, torch.device), "device", device, "a torch.device")
