"""A matrix of named blocks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hessianlens.display import Cells, Grid, Picture
from hessianlens.errors import (
    InputError,
    check_flag,
    check_function,
    check_number,
    check_that,
    describe_value,
    expect,
    suggest_names,
)
from hessianlens.failures import failures_as_input_errors
from hessianlens.operators.base import IMMEDIATE_MAX_MULTIPLY_ADDS, StructuredOperator, check_place, check_shape
from hessianlens.operators.dense_block import write_transposed
from hessianlens.operators.exponent_scaling import Scaled
from hessianlens.operators.operator import Operator
from hessianlens.operators.product import Product
from hessianlens.state_guard import restores_state

Name = Hashable
BlockBuilder = Callable[[Name, Name], StructuredOperator]

_FEW_ENTRIES = 2**22
"""Entries of a matrix whose norms are shown without being asked for."""


class BlockGrid(StructuredOperator):
    """A block matrix whose rows and columns carry parameter names.

    ``H["Q", "K"]`` is a block, ``H[:]`` the whole matrix, ``H[["Q", "K"], :]`` the matrix of some of its blocks. Blocks
    are built when first asked for.

    Args:
        rows: Name and shape of the parameter of each row of blocks, in order.
        columns: The same for the columns.
        build: Gives the block of a row name and a column name.
        dtype: Dtype of the entries.
        device: Device of the blocks.
        symmetric: Whether ``H[x, y]`` is the transpose of ``H[y, x]``; then only one of the two is built.
        product: Multiplies without the blocks, where that is known.
    """

    def __init__(
        self,
        rows: Mapping[Name, tuple[int, ...]],
        columns: Mapping[Name, tuple[int, ...]],
        build: BlockBuilder,
        dtype: torch.dtype,
        device: torch.device,
        symmetric: bool = False,
        product: Product | None = None,
    ) -> None:
        for name, shapes in (("rows", rows), ("columns", columns)):
            named = isinstance(shapes, Mapping) and len(shapes) > 0
            check_that(named, name, shapes, "shapes of parameters by name")
            for shape in shapes.values():
                check_shape(name, shape)
        check_function("build", build, "a function of two names that gives a block")
        check_place(dtype, device)
        check_flag("symmetric", symmetric)
        super().__init__(list(columns.values()), list(rows.values()), dtype, device)
        self.rows, self.columns = dict(rows), dict(columns)
        self._build, self._symmetric, self._product = build, symmetric, product
        self._built: dict[tuple[Name, Name], StructuredOperator] = {}

    @property
    def product(self) -> Product | None:
        """What multiplies without the blocks, where that is known."""
        return self._product

    @restores_state
    def block(self, row: Name, column: Name) -> StructuredOperator:
        """One block, built at the first call."""
        if not _known((row, column), self._built):
            self._select(row, self.rows)
            self._select(column, self.columns)
            mirrored = self._built.get((column, row)) if self._symmetric else None
            if mirrored is None:
                with failures_as_input_errors(
                    "build: it failed", f"it was asked for the block of {row!r} and {column!r}"
                ):
                    block: object = self._build(row, column)
            else:
                block = mirrored.adjoint()
            if not isinstance(block, StructuredOperator):
                raise InputError(
                    f"build: returned {describe_value(block)} for {row!r} and {column!r}, expected an operator."
                )
            expect(
                block._out_shape == [self.rows[row]] and block._in_shape == [self.columns[column]],
                f"build: returned a block {block.shape[0]}x{block.shape[1]} for {row!r} and {column!r}, expected one "
                f"between parameters of shapes {tuple(self.rows[row])} and {tuple(self.columns[column])}.",
            )
            self._built[row, column] = block
        return self._built[row, column]

    def __getitem__(self, key: object) -> StructuredOperator:
        if isinstance(key, slice) and key == slice(None):
            return self
        if not isinstance(key, tuple) or len(key) != 2 or key in list(self.rows):
            raise InputError(
                f"Block {describe_value(key)}: expected two names, rows and columns, such as {self._example()}, "
                "or [:] for the whole matrix."
            )
        rows, one_row = self._select(key[0], self.rows)
        columns, one_column = self._select(key[1], self.columns)
        if one_row and one_column:
            return self.block(rows[0], columns[0])
        return self.subgrid(rows, columns)

    def subgrid(self, rows: Sequence[Name], columns: Sequence[Name]) -> BlockGrid:
        """The matrix of the chosen rows and columns of blocks, in the order given."""
        rows, _ = self._select(rows if isinstance(rows, slice) else _listed(rows), self.rows)
        columns, _ = self._select(columns if isinstance(columns, slice) else _listed(columns), self.columns)
        return BlockGrid(
            {r: self.rows[r] for r in rows},
            {c: self.columns[c] for c in columns},
            self.block,
            self.dtype,
            self.device,
            symmetric=self._symmetric and list(rows) == list(columns),
            product=None if self._product is None else self._product.at(rows, columns),
        )

    def _example(self) -> str:
        return f"[{next(iter(self.rows))!r}, {list(self.columns)[-1]!r}]"

    def _select(self, key: object, names: Mapping[Name, tuple[int, ...]]) -> tuple[list[Name], bool]:
        """The names a key stands for, and whether it is a single one."""
        if isinstance(key, slice):
            expect(
                key == slice(None),
                f"Block slice {describe_value(key)}: only the full slice : is understood; give a list of names.",
            )
            return list(names), False
        if isinstance(key, list):
            chosen, single = key, False
        else:
            chosen, single = [key], True
        for name in chosen:
            if not _known(name, names):
                known = suggest_names(name, map(repr, names), otherwise="this matrix has")
                raise InputError(f"Block {describe_value(name)}: unknown name; {known}")
        expect(len(chosen) > 0, "Block list: got no name, expected at least one.")
        expect(len(set(chosen)) == len(chosen), f"Block list: got {describe_value(chosen)}, expected every name once.")
        return chosen, single

    def _blocks(self) -> list[tuple[int, int, StructuredOperator]]:
        return [
            (i, j, self.block(row, column)) for i, row in enumerate(self.rows) for j, column in enumerate(self.columns)
        ]

    @property
    def multiply_adds(self) -> float:
        """Those of a product without blocks; else those of all blocks, which are built for it."""
        if self._product is not None:
            return self._product.multiply_adds
        return sum((block.multiply_adds for _, _, block in self._blocks()), 0.0)

    def _factors(self) -> list[Tensor]:
        if self._product is not None:
            return self._product.held_tensors()
        return [tensor for _, _, block in self._blocks() for tensor in block._factors()]

    def _matmat(self, X: list[Tensor]) -> list[Tensor]:
        if self._product is not None:
            return self._product.times([x if x.dtype == self._dtype else x.to(self._dtype) for x in X])
        vectors = X[0].shape[-1]
        out = [torch.zeros(*shape, vectors, dtype=self.dtype, device=self.device) for shape in self._out_shape]
        for i, j, block in self._blocks():
            out[i] = out[i] + block._matmat([X[j]])[0]
        return out

    def _adjoint(self) -> BlockGrid:
        def build(row: Name, column: Name) -> StructuredOperator:
            adjoint = self.block(column, row).adjoint()
            assert isinstance(adjoint, StructuredOperator)
            return adjoint

        return self._like(build, None if self._product is None else self._product.adjoint(), transposed=True)

    def _like(self, build: BlockBuilder, product: Product | None, transposed: bool = False) -> BlockGrid:
        rows, columns = (self.columns, self.rows) if transposed else (self.rows, self.columns)
        made = BlockGrid(rows, columns, build, self.dtype, self.device, self._symmetric, product)
        made.why = self.why
        return made

    def _dense_into(self, target: Tensor) -> None:
        if self._product is not None and self._product.write(target):
            return
        cells = [line.split(self._in_shape_flat, 1) for line in target.split(self._out_shape_flat)]
        for i, row in enumerate(self.rows):
            for j, column in enumerate(self.columns):
                if i <= j or not self._symmetric:
                    self.block(row, column)._dense_into(cells[i][j])
                if i < j and self._symmetric:
                    write_transposed(cells[i][j], cells[j][i])

    def _diagonal_blocks(self) -> list[StructuredOperator]:
        pairs = zip(self.rows, self.columns, strict=True)
        return [self.block(row, column) for row, column in pairs]

    def _trace(self) -> Tensor:
        return torch.stack([block._trace() for block in self._diagonal_blocks()]).sum()

    def _diagonal(self) -> Tensor:
        return torch.cat([block._diagonal() for block in self._diagonal_blocks()])

    def _weighted_blocks(self) -> list[tuple[float, Name, Name]]:
        """Blocks with the number of times each counts in a sum over all of them."""
        if not self._symmetric:
            return self._all_blocks()
        names = list(self.rows)
        return [(1.0 if i == j else 2.0, names[i], names[j]) for i in range(len(names)) for j in range(i, len(names))]

    def _all_blocks(self) -> list[tuple[float, Name, Name]]:
        return [(1.0, row, column) for row in self.rows for column in self.columns]

    def _frobenius_square(self) -> Scaled:
        squares = [self.block(r, c)._frobenius_square().times(n) for n, r, c in self._weighted_blocks()]
        return Scaled.total(squares, self.device)

    def _frobenius_inner(self, other: StructuredOperator) -> Scaled:
        if not isinstance(other, BlockGrid) or not self._same_layout(other):
            raise InputError(
                f"other: got {type(other).__name__}, expected a block grid with the same names in the same order."
            )
        both = self._weighted_blocks() if other._symmetric else self._all_blocks()
        parts = [self.block(r, c)._frobenius_inner(other.block(r, c)).times(n) for n, r, c in both]
        return Scaled.total(parts, self.device)

    def _same_layout(self, other: BlockGrid) -> bool:
        mine, theirs = ([list(g.rows.items()), list(g.columns.items()), g.dtype, g.device] for g in (self, other))
        return mine == theirs

    @restores_state
    def norms(self) -> dict[tuple[Name, Name], Tensor]:
        """The exact Frobenius norm of every block."""
        found: dict[tuple[Name, Name], Tensor] = {}
        for _, row, column in self._weighted_blocks():
            found[row, column] = self.block(row, column).frobenius_norm()
            if self._symmetric:
                found[column, row] = found[row, column]
        return found

    def _records(self) -> list[dict[str, Any]]:
        norms = self.norms()
        return [
            {
                "row": block_name(row),
                "column": block_name(column),
                "row_shape": tuple(self.rows[row]),
                "column_shape": tuple(self.columns[column]),
                "norm": float(norms[row, column]),
            }
            for row in self.rows
            for column in self.columns
        ]

    def _cells(self) -> Cells:
        """Names and shapes: the norms are in the picture."""
        names = {**self.rows, **self.columns}
        return ["parameter", "shape"], [[block_name(n), " x ".join(map(str, s))] for n, s in names.items()]

    def _seen_at_once(self) -> bool:
        few = self.shape[0] * self.shape[1] <= _FEW_ENTRIES
        return few and min(self.shape) * self.multiply_adds <= IMMEDIATE_MAX_MULTIPLY_ADDS

    def _picture(self, asked: bool) -> Picture | None:
        """The norm of every block."""
        if not (asked or self._seen_at_once()):
            return None
        norms = self.norms()
        rows, columns = (tuple(map(block_name, side)) for side in (self.rows, self.columns))
        values = [[float(norms[r, c]) for c in self.columns] for r in self.rows]
        return Grid(rows, columns, values, "norm of each block")

    def __add__(self, other: object) -> Operator:
        if not isinstance(other, BlockGrid) or not self._same_layout(other):
            return super().__add__(other)
        both = other

        def build(row: Name, column: Name) -> StructuredOperator:
            total = self.block(row, column) + both.block(row, column)
            assert isinstance(total, StructuredOperator)
            return total

        total = self._like(build, None if self._product is None else self._product.plus(both._product))
        total._symmetric = self._symmetric and both._symmetric
        return total

    def __mul__(self, scalar: int | float) -> BlockGrid:
        check_number("scalar", scalar)

        def build(row: Name, column: Name) -> StructuredOperator:
            return self.block(row, column) * scalar

        return self._like(build, None if self._product is None else self._product.scaled(float(scalar)))

    def algebra(self) -> str:
        """Names of the blocks, then each block in index notation."""
        lines = [f"  [{r!r}, {c!r}] = {self.block(r, c).algebra()}" for _, r, c in self._weighted_blocks()]
        note = " (symmetric; upper blocks shown)" if self._symmetric else ""
        return f"blocks {', '.join(map(str, self.rows))} x {', '.join(map(str, self.columns))}{note}\n" + "\n".join(
            lines
        )


def block_name(name: object) -> str:
    """A name of a parameter as a text.

    >>> block_name("Q"), block_name(("Q", 1))
    ('Q', 'Q 1')
    """
    return " ".join(map(str, name)) if isinstance(name, tuple) else str(name)


def _known(name: object, names: Mapping[Any, object]) -> bool:
    """Whether a name is one of these; what cannot be the key of a mapping is not."""
    try:
        return name in names
    except TypeError:
        return False


def _listed(names: object) -> list[Name]:
    many = isinstance(names, Iterable) and not isinstance(names, (str, Tensor))
    check_that(many, "Block list", names, "a list of names")
    return list(names)  # type: ignore[call-overload]
