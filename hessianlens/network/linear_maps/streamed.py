"""Norms of a block whose curvature is too large to be held: one row of it at every position, then the next.

With ``C_n`` the curvature at position n and a the inputs of the map,

    |sum_n a_n a_n^T (x) C_n|^2 = sum_nm (a_n . a_m)^2 <C_n, C_m>,

and ``<C_n, C_m>`` is a sum over the rows of C, which come one product at a time for all positions at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlens.network.linear_maps.grouping import Grouping
from hessianlens.network.linear_maps.piece import Piece
from hessianlens.network.linear_maps.tapped import Tapped
from hessianlens.network.linear_maps.taps import Kind

_CHUNK_BYTES = 2**27
"""Rows that are held at once."""


@dataclass(frozen=True, eq=False)
class _Rows:
    """Some rows of a part at every position, ``[row, position, feature]``, in float64; with the numbers of the rows."""

    places: list[int]
    values: dict[str, Tensor]


def streamed_norms(
    tapped: Tapped, piece: Piece, grouping: Grouping, parts: Sequence[str], tick: Callable[[], None]
) -> dict[str, float]:
    """Norms of a block with itself, where no two positions are coupled.

    Args:
        tapped: A batch, with a delta at the map's outputs.
        piece: The block.
        grouping: Every position by itself.
        parts: Among "full", "ggn" and "functional".
        tick: Is called after every product.
    """
    inputs = tapped.inputs(piece.use.parameter)
    given = None if inputs is None else inputs.detach().double()
    gains = given[:, piece.features] if given is not None and piece.use.kind is Kind.GAIN else None
    totals = dict.fromkeys(parts, 0.0)
    grams: dict[str, Tensor] = {}
    for rows in _chunks(tapped, piece, grouping, parts, tick):
        for part, values in rows.values.items():
            if given is not None and gains is None:
                flat = values.transpose(0, 1).flatten(1)
                grams[part] = grams[part].addmm_(flat, flat.T) if part in grams else flat @ flat.T
                continue
            if gains is not None:
                values = values * gains[:, rows.places].T[..., None] * gains
            totals[part] += float(values.sum(1).square().sum())
    if given is not None and gains is None:
        a = given[:, piece.inputs]
        weights = (a @ a.T).square()
        totals = {part: float((weights * gram).sum()) for part, gram in grams.items()}
    return {part: max(totals[part], 0.0) ** 0.5 for part in parts}


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
            found[:, piece.features].double() for found in tapped.products(piece.use.site, tangent, piece.use.site)
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
