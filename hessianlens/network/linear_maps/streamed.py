"""Norms of a block whose curvature is too large to be held: one row of it at every position, then the next.

With ``C_n`` the curvature at position n and a the inputs of the map,

    |sum_n a_n a_n^T (x) C_n|^2 = sum_nm (a_n . a_m)^2 <C_n, C_m>,

and ``<C_n, C_m>`` is a sum over the rows of C, which come one product at a time for all positions at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlens.network.linear_maps.grouping import Grouping
from hessianlens.network.linear_maps.piece import Piece
from hessianlens.network.linear_maps.tapped import Tapped

_CHUNK_BYTES = 2**27
"""Rows that are held at once."""


@dataclass(frozen=True, eq=False)
class _Rows:
    """Some rows of a part at every position, ``[row, position, feature]``; with the numbers of the rows."""

    places: list[int]
    values: dict[str, Tensor]


def streamed_norms(
    tapped: Tapped, pieces: Sequence[Piece], grouping: Grouping, parts: Sequence[str], tick: Callable[[], None]
) -> list[dict[str, float]]:
    """Norms of blocks with themselves, where no two positions are coupled; a weight and its bias in one pass.

    Args:
        tapped: A batch, with a delta at the map's outputs.
        pieces: Blocks of one map, with the same outputs.
        grouping: Every position by itself.
        parts: Among "full", "ggn" and "functional".
        tick: Is called after every product.
    """
    sums = [_Weight(tapped, piece) if piece.weighs else _Vector(tapped, piece) for piece in pieces]
    for rows in _chunks(tapped, pieces[0], grouping, parts, tick):
        for part, values in rows.values.items():
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
        self._grams[part] = self._grams.get(part, 0.0) + _gram(rows, places[0])

    def square(self, part: str) -> float:
        return float(((self._inputs @ self._inputs.T).square() * self._grams[part]).sum())


class _Vector:
    """``|sum_n diag(a_n) C_n diag(a_n)|^2`` of a gain, or the same without a, of a bias."""

    def __init__(self, tapped: Tapped, piece: Piece) -> None:
        inputs = tapped.inputs(piece.use.parameter)
        self._gains = None if inputs is None else inputs.detach()[:, piece.features].double()
        self._squares: dict[str, float] = {}

    def add(self, part: str, places: list[int], rows: Tensor) -> None:
        values = rows.double()
        if self._gains is not None:
            values = values * self._gains[:, places].T[..., None] * self._gains
        self._squares[part] = self._squares.get(part, 0.0) + float(values.sum(1).square().sum())

    def square(self, part: str) -> float:
        return self._squares[part]


def _gram(rows: Tensor, first: int) -> Tensor | float:
    """``[position, position]`` inner products of rows of symmetric matrices, from the diagonal on.

    What stands behind the diagonal counts for its mirror image too. Largest entries are one on the way, so that squares
    fit in single precision; sums of chunks are in double.
    """
    low, high = rows.aminmax()
    largest = max(-float(low), float(high))
    if largest == 0:
        return 0.0
    kept = rows[..., first:] / largest
    count, width = kept.shape[0], kept.shape[2]
    sides = torch.full((count, width), math.sqrt(2), dtype=kept.dtype, device=kept.device).triu(1)
    sides.diagonal().fill_(1)
    flat = (kept * sides[:, None]).transpose(0, 1).flatten(1)
    return (flat @ flat.T).double() * largest**2


def streamed_bytes(piece: Piece, grouping: Grouping, parts: int) -> int:
    """Memory that this holds beside the graph."""
    positions = grouping.groups
    row = positions * len(piece.features) * torch.float64.itemsize
    return parts * positions**2 * torch.float64.itemsize + 2 * parts * max(row, _CHUNK_BYTES)


def _chunks(
    tapped: Tapped, piece: Piece, grouping: Grouping, parts: Sequence[str], tick: Callable[[], None]
) -> Iterator[_Rows]:
    size = max(1, _CHUNK_BYTES // (grouping.groups * len(piece.features) * torch.float64.itemsize))
    places: list[int] = []
    held: dict[str, list[Tensor]] = {part: [] for part in parts}
    for _, place, tangent in tapped.tangents(piece.use.site, piece.features, grouping):
        ggn, functional = (
            found[:, piece.features] for found in tapped.products(piece.use.site, tangent, piece.use.site)
        )
        found = {"ggn": ggn, "functional": functional, "full": ggn + functional}
        for part in parts:
            held[part].append(found[part])
        places.append(place)
        tick()
        if len(places) == size:
            yield _Rows(places, {part: torch.stack(rows) for part, rows in held.items()})
            places, held = [], {part: [] for part in parts}
    if places:
        yield _Rows(places, {part: torch.stack(rows) for part, rows in held.items()})
