"""A grid of blocks seen as one matrix on a larger parameter, in that parameter's own order."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlens.errors import InputError, check_function, check_number, check_that, check_whole, describe_value
from hessianlens.failures import failures_as_input_errors
from hessianlens.operators.base import StructuredOperator
from hessianlens.operators.exponent_scaling import Scaled
from hessianlens.operators.grid import BlockGrid
from hessianlens.operators.kronecker import Rearranged
from hessianlens.operators.operator import Operator

Arrangement = Callable[[Tensor], list[Tensor]]


class ArrangedGrid(StructuredOperator):
    """The matrix of a grid in another order of rows and columns.

    The weights of all heads usually lie in one parameter, head beside head, possibly transposed; the grid has a block
    for every pair of heads. This is the same matrix indexed by the entries of that parameter. Norms, traces and inner
    products are those of the grid.

    Args:
        grid: The matrix by blocks.
        out_shape: Shape of the parameter that indexes the rows.
        in_shape: Shape of the parameter that indexes the columns.
        rows: Cuts a tensor of `out_shape` into the tensors of the grid's rows, taking no entry twice. Entries that
            it does not take, such as those of tokens that do not occur, have rows of zeros.
        columns: The same for the columns.
    """

    def __init__(
        self,
        grid: BlockGrid,
        out_shape: tuple[int, ...],
        in_shape: tuple[int, ...],
        rows: Arrangement,
        columns: Arrangement,
    ) -> None:
        if not isinstance(grid, BlockGrid):
            raise InputError(f"grid: got {describe_value(grid)}, expected a BlockGrid.")
        for name, shape, cut in (("rows", out_shape, rows), ("columns", in_shape, columns)):
            sizes = isinstance(shape, Sequence) and not isinstance(shape, str)
            check_that(sizes, name, shape, "the shape of a parameter")
            for size in shape:
                check_whole(name, size)
            check_function(name, cut, "a function that cuts a tensor")
        super().__init__([tuple(in_shape)], [tuple(out_shape)], grid.dtype, grid.device)
        self.grid, self._rows, self._columns = grid, rows, columns
        self._row_order = _order(rows, tuple(out_shape))
        self._column_order = _order(columns, tuple(in_shape))

    @property
    def multiply_adds(self) -> float:
        """Those of the grid."""
        return self.grid.multiply_adds

    def _factors(self) -> list[Tensor]:
        return self.grid._factors()

    def _matmat(self, X: list[Tensor]) -> list[Tensor]:
        flat = X[0].reshape(self.shape[1], -1)[self._column_order.to(X[0].device)]
        product = self.grid @ flat
        assert isinstance(product, Tensor)
        result = product.new_zeros(self.shape[0], product.shape[1])
        result[self._row_order.to(result.device)] = product
        return [result.reshape(*self._out_shape[0], -1)]

    def _adjoint(self) -> ArrangedGrid:
        adjoint = self.grid.adjoint()
        assert isinstance(adjoint, BlockGrid)
        arranged = ArrangedGrid(adjoint, self._in_shape[0], self._out_shape[0], self._columns, self._rows)
        arranged.why = self.why
        return arranged

    def _dense_into(self, target: Tensor) -> None:
        dense = target.new_empty(len(self._row_order), len(self._column_order))
        self.grid._dense_into(dense)
        target.zero_()
        target[self._row_order[:, None], self._column_order[None, :]] = dense

    def _trace(self) -> Tensor:
        return self._diagonal().sum()

    def _diagonal(self) -> Tensor:
        if not torch.equal(self._row_order, self._column_order):
            raise InputError("diagonal: the rows and columns of this matrix are arranged differently; it has none.")
        diagonal = self.grid._diagonal()
        return diagonal.new_zeros(self.shape[0]).index_copy(0, self._row_order.to(diagonal.device), diagonal)

    def _frobenius_square(self) -> Scaled:
        return self.grid._frobenius_square()

    def _frobenius_inner(self, other: StructuredOperator) -> Scaled:
        if not isinstance(other, ArrangedGrid) or not self._same_arrangement(other):
            raise InputError(f"other: got {type(other).__name__}, expected a grid arranged in the same way.")
        return self.grid._frobenius_inner(other.grid)

    def _rearranged(self) -> Rearranged:
        """Block by block, where every block of the grid is a rectangle of the parameter, perhaps transposed."""
        places = [
            [_rectangle(piece, shape[1]) for piece in cut(_numbers(shape))] if len(shape) == 2 else [None]
            for cut, shape in ((self._rows, self._out_shape[0]), (self._columns, self._in_shape[0]))
        ]
        rows, columns = ([one for one in side if one is not None] for side in places)
        transposed = {one.transposed for one in (*rows, *columns)}
        if (len(rows), len(columns)) != tuple(map(len, places)) or len(transposed) > 1:
            return super()._rearranged()
        turned = transposed == {True}
        pairs = list(
            itertools.product(zip(self.grid.rows, rows, strict=True), zip(self.grid.columns, columns, strict=True))
        )
        blocks = [(self.grid.block(r, c)._rearranged(), one, other) for (r, one), (c, other) in pairs]
        (a, b), (c, d) = self._out_shape[0], self._in_shape[0]

        def times(Y: Tensor, first: bool) -> Tensor:
            sizes = (a, c) if first else (b, d)
            found = Y.new_zeros(*sizes, Y.shape[-1])
            for block, one, other in blocks:
                taken, put = (1, 0) if first else (0, 1)
                act = block.times if first != turned else block.adjoint
                piece = Y[one.axes[taken][:, None], other.axes[taken][None, :]]
                found[one.axes[put][:, None], other.axes[put][None, :]] += act(piece)
            return found

        return Rearranged(lambda Y: times(Y, True), lambda X: times(X, False), blocks[0][0].why)

    def _same_arrangement(self, other: ArrangedGrid) -> bool:
        return torch.equal(self._row_order, other._row_order) and torch.equal(self._column_order, other._column_order)

    def __add__(self, other: object) -> Operator:
        if not isinstance(other, ArrangedGrid) or other.shape != self.shape or not self._same_arrangement(other):
            return super().__add__(other)
        total = self.grid + other.grid
        return self._with(total) if isinstance(total, BlockGrid) else super().__add__(other)

    def __mul__(self, scalar: int | float) -> ArrangedGrid:
        check_number("scalar", scalar)
        return self._with(self.grid * scalar)

    def _with(self, grid: BlockGrid) -> ArrangedGrid:
        arranged = ArrangedGrid(grid, self._out_shape[0], self._in_shape[0], self._rows, self._columns)
        arranged.why = self.why
        return arranged

    def algebra(self) -> str:
        """The algebra of the grid."""
        return self.grid.algebra()


@dataclass(frozen=True, eq=False)
class _Rectangle:
    """A block's place in a matrix: entry i, j is that at ``axes[0][i], axes[1][j]``, of the transpose the other way."""

    axes: tuple[Tensor, Tensor]
    transposed: bool


def _rectangle(numbers: Tensor, width: int) -> _Rectangle | None:
    """Where numbers stand in the matrix of this width that they count through; None if they form no rectangle."""
    if numbers.ndim != 2:
        return None
    for transposed in (False, True):
        places = numbers.T if transposed else numbers
        first, second = places[:, 0] // width, places[0] % width
        if torch.equal(places, first[:, None] * width + second[None, :]):
            return _Rectangle((first, second), transposed)
    return None


def _numbers(shape: tuple[int, ...]) -> Tensor:
    return torch.arange(int(torch.Size(shape).numel()), device="cpu").reshape(shape)


def _order(cut: Arrangement, shape: tuple[int, ...]) -> Tensor:
    """For every entry of the grid's order, its place in the parameter."""
    numbers = _numbers(shape)
    with failures_as_input_errors("rows and columns: the cut failed", f"it was given a tensor of shape {tuple(shape)}"):
        return torch.cat([piece.reshape(-1) for piece in cut(numbers)])
