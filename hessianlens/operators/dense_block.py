"""Write terms, and transposes, into a dense block in the order in which its entries lie in memory."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from hessianlens.notation import COLUMN_AXES, ROW_AXES
from hessianlens.operators.term import Factor, contract, index_sizes

_ROWS, _COLUMNS = 256, 2048
"""Of a tile: a column of it stays in the fastest cache while its neighbours are read."""
_PADDING = 8
"""Numbers between rows of a tile: lengths that are powers of two would put a column in one place of the cache."""


def write_transposed(source: Tensor, target: Tensor) -> None:
    """``target = source'``, by tiles: reading columns of a large matrix one after the other would miss every cache.

    >>> import torch
    >>> target = torch.empty(2, 3)
    >>> write_transposed(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), target)
    >>> target.tolist()
    [[1.0, 3.0, 5.0], [2.0, 4.0, 6.0]]
    """
    if source.device.type != "cpu":
        target.copy_(source.T)
        return
    height, width = source.shape
    rows, columns = min(height, _ROWS), min(width, _COLUMNS)
    tile = source.new_empty(rows, columns + _PADDING)[:, :columns]
    if (rows, columns) == (height, width):
        target.copy_(tile.copy_(source).T)
        return
    for r in range(0, height, rows):
        for c in range(0, width, columns):
            part = source[r : r + rows, c : c + columns]
            own = tile[: part.shape[0], : part.shape[1]].copy_(part)
            target[c : c + columns, r : r + rows].copy_(own.T)


_AXES = ROW_AXES + COLUMN_AXES


def accumulate_term(entries: Tensor, factors: Sequence[Factor], coefficient: float, first: bool) -> None:
    """Add a product of factors to ``entries[a, b, c, d]``; the first one overwrites what is there.

    An identity between a row and a column axis touches the diagonal of those two axes only. Otherwise, where it needs
    no more room than the result, one row vector is kept for last: ``sum_n p[n,a] U[n,b,c,d]`` is a single matrix
    product whose result already lies in the right order.
    """
    identity = next((f for f in factors if f.tensor is None), None)
    if identity is not None:
        _on_diagonal(entries, identity, [f for f in factors if f is not identity], coefficient, first)
        return
    part = _row_vector_last(factors, coefficient, entries.numel())
    if part is None:
        part = contract(factors, _AXES, coefficient)
    _put(entries, part, first)


def _put(target: Tensor, part: Tensor, first: bool) -> None:
    if first:
        target.copy_(part)
    else:
        target.add_(part)


def _on_diagonal(entries: Tensor, identity: Factor, others: Sequence[Factor], coefficient: float, first: bool) -> None:
    if first:
        entries.zero_()
    x, y = (_AXES.index(letter) for letter in identity.indices)
    kept = [letter for letter in _AXES if letter not in identity.indices]
    diagonal = torch.diagonal(entries, dim1=x, dim2=y)
    renamed = [f.relabel({ord(identity.indices[1]): identity.indices[0]}) for f in others]
    through = any(identity.indices[0] in f.indices for f in renamed)
    output = "".join(kept) + (identity.indices[0] if through else "")
    part = contract(renamed, output, coefficient)
    diagonal.add_(part if through else part[..., None])


def _row_vector_last(factors: Sequence[Factor], coefficient: float, room: int) -> Tensor | None:
    """The product with one factor, the only one with a row axis and without a column axis, contracted last."""
    for place, factor in enumerate(factors):
        own = [x for x in factor.indices if x in _AXES]
        if len(own) != 1 or own[0] not in ROW_AXES or factor.tensor is None:
            continue
        summed = "".join(x for x in factor.indices if x not in own)
        others = [*factors[:place], *factors[place + 1 :]]
        if any(own[0] in other.indices for other in others):
            continue
        rest = "".join(x for x in _AXES if x not in own)
        sizes = index_sizes(others)
        if not set(summed) <= set(sizes) or prod(sizes[x] for x in summed + rest) > room:
            return None
        U = contract(others, summed + rest, coefficient)
        return torch.einsum(f"{factor.indices},{summed}{rest}->{_AXES}", factor.tensor, U)
    return None
