"""Products with a matrix of named blocks, none of which is built for them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

Names = tuple[Hashable, ...]


class ProductSource(ABC):
    """A symmetric matrix of named blocks that multiplies, with any of its rows and columns, without its blocks."""

    @abstractmethod
    def times(self, rows: Names, columns: Names, X: list[Tensor]) -> list[Tensor]:
        """The product of the chosen rows and columns with tensors ``[*parameter, vectors]``, one per column."""

    @abstractmethod
    def multiply_adds(self, rows: Names, columns: Names) -> float:
        """Multiply-adds of a product with a vector."""

    @abstractmethod
    def held_tensors(self, rows: Names, columns: Names) -> list[Tensor]:
        """The numbers that a product reads, some of them possibly more than once."""

    def trace(self, name: Hashable) -> Tensor | None:
        """The trace of a diagonal block; None where it takes the block."""
        return None

    def diagonal(self, name: Hashable) -> Tensor | None:
        """The diagonal of a diagonal block, shaped as the parameter; None where it takes the block."""
        return None

    def write(self, rows: Names, columns: Names, target: Tensor) -> bool:
        """Write the matrix of the chosen rows and columns, and tell whether that does not take its blocks."""
        return False


@dataclass(frozen=True, eq=False)
class Product:
    """Products with some rows and columns of a source, beside a closed form that need not be built.

    Attributes:
        source: The whole matrix.
        rows: Names of the rows.
        columns: Names of the columns.
    """

    source: ProductSource
    rows: Names
    columns: Names

    def times(self, X: list[Tensor]) -> list[Tensor]:
        """The product with tensors ``[*parameter, vectors]``."""
        return self.source.times(self.rows, self.columns, X)

    @property
    def multiply_adds(self) -> float:
        """Multiply-adds of a product with a vector."""
        return self.source.multiply_adds(self.rows, self.columns)

    def held_tensors(self) -> list[Tensor]:
        """The numbers that a product reads."""
        return self.source.held_tensors(self.rows, self.columns)

    def trace(self) -> Tensor | None:
        """The trace of a block, if it is a diagonal one and its trace does not take it."""
        return self.source.trace(self.rows[0]) if self._on_diagonal else None

    def diagonal(self) -> Tensor | None:
        """The diagonal of a block, if it is a diagonal one and its diagonal does not take it."""
        return self.source.diagonal(self.rows[0]) if self._on_diagonal else None

    def write(self, target: Tensor) -> bool:
        """Write all entries, if these do not take the blocks; whether it did."""
        return self.source.write(self.rows, self.columns, target)

    @property
    def _on_diagonal(self) -> bool:
        return len(self.rows) == 1 and self.rows == self.columns

    def at(self, rows: Sequence[Hashable], columns: Sequence[Hashable]) -> Product:
        """The same for other rows and columns of the source."""
        return replace(self, rows=tuple(rows), columns=tuple(columns))

    def adjoint(self) -> Product:
        """The transpose: the source is symmetric."""
        return replace(self, rows=self.columns, columns=self.rows)

    def scaled(self, number: float) -> Product:
        """A multiple."""
        return replace(self, source=_Combination(((number, self.source),)))

    def plus(self, other: Product | None) -> Product | None:
        """The sum, if the other one is known for the same names."""
        if other is None or (self.rows, self.columns) != (other.rows, other.columns):
            return None
        return replace(self, source=_Combination(((1.0, self.source), (1.0, other.source))))


class _Combination(ProductSource):
    """A sum of multiples."""

    def __init__(self, terms: Sequence[tuple[float, ProductSource]]) -> None:
        numbers: dict[ProductSource, float] = {}
        for number, source in terms:
            for c, found in source.terms if isinstance(source, _Combination) else [(1.0, source)]:
                numbers[found] = numbers.get(found, 0.0) + number * c
        self.terms: list[tuple[float, ProductSource]] = [(number, source) for source, number in numbers.items()]

    def times(self, rows: Names, columns: Names, X: list[Tensor]) -> list[Tensor]:
        """Those of the summands."""
        found = [[c * part for part in source.times(rows, columns, X)] for c, source in self.terms]
        return [sum(parts[1:], parts[0]) for parts in zip(*found, strict=True)]

    def multiply_adds(self, rows: Names, columns: Names) -> float:
        """Those of the summands."""
        return sum(source.multiply_adds(rows, columns) for _, source in self.terms)

    def held_tensors(self, rows: Names, columns: Names) -> list[Tensor]:
        """Those of the summands."""
        return [tensor for _, source in self.terms for tensor in source.held_tensors(rows, columns)]

    def trace(self, name: Hashable) -> Tensor | None:
        """Those of the summands, if all of them are known."""
        return self._sum([source.trace(name) for _, source in self.terms])

    def diagonal(self, name: Hashable) -> Tensor | None:
        """Those of the summands, if all of them are known."""
        return self._sum([source.diagonal(name) for _, source in self.terms])

    def write(self, rows: Names, columns: Names, target: Tensor) -> bool:
        """Those of the summands, if all of them are known."""
        for k, (number, source) in enumerate(self.terms):
            part = target if k == 0 else torch.empty_like(target)
            if not source.write(rows, columns, part):
                return False
            if k == 0:
                target.mul_(number)
            else:
                target.add_(part, alpha=number)
        return True

    def _sum(self, found: Sequence[Tensor | None]) -> Tensor | None:
        known = [number * part for (number, _), part in zip(self.terms, found, strict=True) if part is not None]
        return sum(known[1:], known[0]) if len(known) == len(found) else None
