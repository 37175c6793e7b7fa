"""Products with blocks of the last attention layer, by the layer's tangent pass: nothing a token is built for them.

A block of the model is some heads side by side, without the row that biases add, or that row alone; and a key or value
head may serve several query heads. So a change of a block is a change of every head that it serves, with zeros in the
other rows, and its gradient is the sum of theirs:

    H[r, c] = sum_xy R_x^T H[x, y] R_y        x, y the heads that use r, c;  R puts a piece in its rows
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from torch import Tensor

from hessianlens.operators import BlockGrid, StructuredOperator, TokenSum
from hessianlens.operators.product import Names, Product, ProductSource
from hessianlens.operators.term import Term


@dataclass(frozen=True, eq=False)
class PiecePlace:
    """Where a piece of a block lies in the layer.

    Attributes:
        heads: Names of the weights that are this piece, one per head that uses it.
        rows: Its rows in each of them.
        shape: Their shape.
    """

    heads: tuple[Hashable, ...]
    rows: slice
    shape: tuple[int, int]

    @property
    def own_shape(self) -> tuple[int, int]:
        """The shape of the piece."""
        return len(range(self.shape[0])[self.rows]), self.shape[1]

    @property
    def whole(self) -> bool:
        """Whether it has all rows."""
        return self.own_shape == self.shape

    def spread(self, given: Tensor) -> Tensor:
        """A change of the piece as one of a head's weight, ``[*weight, z]``."""
        if self.whole:
            return given
        found = given.new_zeros(*self.shape, given.shape[-1])
        found[self.rows] = given
        return found


class PieceProducts(ProductSource):
    """The layer's products as pieces of a model's blocks see them.

    Args:
        layer: Products between the weights of all heads.
        parts: Where the pieces lie, by name.
    """

    def __init__(self, layer: Product, parts: Mapping[Hashable, PiecePlace]) -> None:
        self._layer, self._parts = layer.source, parts

    def times(self, rows: Names, columns: Names, X: list[Tensor]) -> list[Tensor]:
        """All heads in one pass."""
        given = dict(zip(columns, X, strict=True))
        moved = {head: self._parts[name].spread(x) for name, x in given.items() for head in self._parts[name].heads}
        asked = self._heads(rows)
        found = dict(zip(asked, self._layer.times(asked, tuple(moved), list(moved.values())), strict=True))
        return [self._total([found[head] for head in self._parts[name].heads], name) for name in rows]

    def _heads(self, names: Names) -> Names:
        return tuple(head for name in names for head in self._parts[name].heads)

    def _total(self, found: Sequence[Tensor], name: Hashable) -> Tensor:
        return sum(found[1:], found[0])[self._parts[name].rows]

    def multiply_adds(self, rows: Names, columns: Names) -> float:
        """Those of the layer."""
        return self._layer.multiply_adds(self._heads(rows), self._heads(columns))

    def held_tensors(self, rows: Names, columns: Names) -> list[Tensor]:
        """Those of the layer."""
        return self._layer.held_tensors(self._heads(rows), self._heads(columns))

    def trace(self, name: Hashable) -> Tensor | None:
        """Where one head uses the piece."""
        part = self._parts[name]
        if part.whole and len(part.heads) == 1:
            return self._layer.trace(part.heads[0])
        diagonal = self.diagonal(name)
        return None if diagonal is None else diagonal.sum()

    def diagonal(self, name: Hashable) -> Tensor | None:
        """Where one head uses the piece: two that share it meet off the diagonal of the layer."""
        part = self._parts[name]
        found = self._layer.diagonal(part.heads[0]) if len(part.heads) == 1 else None
        return None if found is None else found[part.rows]

    def write(self, rows: Names, columns: Names, target: Tensor) -> bool:
        """One block at a time: the sum over all pairs of heads, if they are known."""
        if len(rows) > 1 or len(columns) > 1:
            return False
        first, second = self._parts[rows[0]], self._parts[columns[0]]
        if first.whole and second.whole and len(first.heads) == 1 == len(second.heads):
            return self._layer.write(first.heads, second.heads, target)
        shape = (*first.shape, *second.shape)
        found = target.new_empty(prod(first.shape), prod(second.shape))
        for k, (x, y) in enumerate(product(first.heads, second.heads)):
            if not self._layer.write((x,), (y,), found):
                return False
            cut = found.view(shape)[first.rows, :, second.rows].reshape(target.shape)
            target.copy_(cut) if k == 0 else target.add_(cut)
        return True


def piece_grid(
    layer: BlockGrid, rows: Mapping[Hashable, PiecePlace], columns: Mapping[Hashable, PiecePlace]
) -> BlockGrid:
    """The matrix between some pieces; its blocks are sums over the heads that share them, and wait until needed.

    Args:
        layer: The matrix between the weights of all heads.
        rows: The pieces that index the rows, by name.
        columns: The same for the columns.
    """
    product = None
    if layer.product is not None:
        product = Product(PieceProducts(layer.product, {**rows, **columns}), tuple(rows), tuple(columns))

    def build(r: Hashable, c: Hashable) -> TokenSum:
        first, second = rows[r], columns[c]

        def terms() -> Sequence[Term]:
            found = _sum([layer.block(x, y) for x in first.heads for y in second.heads])
            return found.restricted((first.rows, slice(None)), (second.rows, slice(None))).terms

        own = None if product is None else product.at([r], [c])
        return TokenSum(terms, first.own_shape, second.own_shape, layer.dtype, layer.device, own)

    same = list(rows) == list(columns)
    return BlockGrid(_shapes(rows), _shapes(columns), build, layer.dtype, layer.device, same, product)


def _shapes(pieces: Mapping[Hashable, PiecePlace]) -> dict[Hashable, tuple[int, ...]]:
    return {name: part.own_shape for name, part in pieces.items()}


def _sum(blocks: Sequence[StructuredOperator]) -> TokenSum:
    total = blocks[0]
    for block in blocks[1:]:
        both = total + block
        assert isinstance(both, TokenSum)
        total = both
    assert isinstance(total, TokenSum)
    return total
