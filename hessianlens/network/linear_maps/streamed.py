"""Norms of a block whose curvature is too large to be held: one row of it at every position, then the next.

With ``C_n`` the curvature at position n and a the inputs of the map,

    |sum_n a_n a_n^T (x) C_n|^2 = sum_nm (a_n . a_m)^2 <C_n, C_m>,

and ``<C_n, C_m>`` is a sum over the rows of C, which come one product at a time for all positions at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlens.network.linear_maps.grouping import Grouping
from hessianlens.network.linear_maps.piece import Piece
from hessianlens.network.linear_maps.tapped import Tapped

_CHUNK_BYTES = 2**25
"""Rows that are held at once."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows of the curvature at every position, ``[row, position, feature]``, from the first one's diagonal on.

    Attributes:
        places: Numbers of the rows, one after the other.
        ggn: The Gauss-Newton part.
        functional: The rest.
    """

    places: list[int]
    ggn: Tensor
    functional: Tensor

    def part(self, name: str) -> Tensor:
        """Those of a part."""
        return self.ggn + self.functional if name == "full" else self.ggn if name == "ggn" else self.functional


def streamed_norms(
    tapped: Tapped, pieces: Sequence[Piece], rows_of_all: Iterable[Rows], parts: Sequence[str]
) -> list[dict[str, float]]:
    """Norms of blocks with themselves, where no two positions are coupled; a weight and its bias in one pass.

    Args:
        tapped: A batch, with a delta at the map's outputs.
        pieces: Blocks of one map, with the same outputs.
        rows_of_all: The curvature at these, row by row.
        parts: Among "full", "ggn" and "functional".
    """
    sums = [_Weight(tapped, piece) if piece.weighs else _Vector(tapped, piece) for piece in pieces]
    for rows in rows_of_all:
        for part in parts:
            values = rows.part(part)
            for one in sums:
                one.add(part, rows.places, values)
    return [{part: max(one.square(part), 0.0) ** 0.5 for part in parts} for one in sums]


class _Weight:
    """``|sum_n a_n a_n^T (x) C_n|^2`` from Gram matrices of rows."""

    def __init__(self, tapped: Tapped, piece: Piece) -> None:
        inputs = tapped.inputs(piece.use.parameter)
        assert inputs is not None
        self._inputs = inputs.detach()[:, piece.inputs].double()
        self._grams: dict[str, Tensor | float] = {}

    def add(self, part: str, places: list[int], rows: Tensor) -> None:
        self._grams[part] = self._grams.get(part, 0.0) + _gram(rows)

    def square(self, part: str) -> float:
        return float(((self._inputs @ self._inputs.T).square() * self._grams[part]).sum())


class _Vector:
    """``|sum_n diag(a_n) C_n diag(a_n)|^2`` of a gain, or the same without a, of a bias."""

    def __init__(self, tapped: Tapped, piece: Piece) -> None:
        inputs = tapped.inputs(piece.use.parameter)
        self._gains = None if inputs is None else inputs.detach()[:, piece.features].double()
        self._squares: dict[str, float] = {}

    def add(self, part: str, places: list[int], rows: Tensor) -> None:
        values = rows
        if self._gains is not None:
            values = rows * self._gains[:, places].T[..., None] * self._gains[:, places[0] :]
        total = values.sum(1, dtype=torch.float64)
        total = total * _sides(total[:, None])
        self._squares[part] = self._squares.get(part, 0.0) + float(total.square().sum())

    def square(self, part: str) -> float:
        return self._squares[part]


def _gram(rows: Tensor) -> Tensor | float:
    """``[position, position]`` inner products of rows of symmetric matrices.

    Largest entries are one on the way, so that squares fit in single precision; sums of chunks are in double.
    """
    low, high = rows.aminmax()
    largest = max(-float(low), float(high))
    if largest == 0:
        return 0.0
    flat = (rows * (_sides(rows) / largest)[:, None]).transpose(0, 1).flatten(1)
    return (flat @ flat.T).double() * largest**2


def _sides(rows: Tensor) -> Tensor:
    """``[row, feature]``: what stands behind the diagonal counts for its mirror image, what stands before it not."""
    found = torch.full((len(rows), rows.shape[-1]), math.sqrt(2), dtype=rows.dtype, device=rows.device).triu(1)
    found.diagonal().fill_(1)
    return found


def streamed_bytes(piece: Piece, grouping: Grouping, parts: int) -> int:
    """Memory that this holds beside the graph."""
    positions = grouping.groups
    row = positions * len(piece.features) * torch.float64.itemsize
    return parts * positions**2 * torch.float64.itemsize + 2 * parts * max(row, _CHUNK_BYTES)


def rows_at_once(piece: Piece, grouping: Grouping) -> int:
    """Rows that fit into a chunk."""
    return max(1, _CHUNK_BYTES // (grouping.groups * len(piece.features) * torch.float64.itemsize))


def rows_by_products(tapped: Tapped, piece: Piece, grouping: Grouping, tick: Callable[[], None]) -> Iterator[Rows]:
    """One product a row.

    Args:
        tapped: A batch, with a delta at the map's outputs.
        piece: The block.
        grouping: Every position by itself.
        tick: Is called after every product.
    """
    size = rows_at_once(piece, grouping)
    places: list[int] = []
    held: list[tuple[Tensor, Tensor]] = []
    for _, place, tangent in tapped.tangents(piece.use.site, piece.features, grouping):
        ggn, functional = tapped.products(piece.use.site, tangent, piece.use.site)
        held.append((ggn[:, piece.features], functional[:, piece.features]))
        places.append(place)
        tick()
        if len(places) == size or place == len(piece.features) - 1:
            yield Rows(places, *(torch.stack(rows)[..., places[0] :] for rows in zip(*held, strict=True)))
            places, held = [], []
