"""Norms of blocks whose positions are not coupled, from their curvature: some rows of it at every position, then more.

With ``C_n`` the curvature at position n and a the inputs of the map,

    |sum_n a_n a_n^T (x) C_n|^2 = sum_nm (a_n . a_m)^2 <C_n, C_m>,

and ``<C_n, C_m>`` is a sum over the entries of C on and above its diagonal, so that C need not be held as a whole.

A map may reach the rest of the network through an elementwise function and the next map alone: the first map of an MLP,
or a gate, ``a_t = phi(z_s)`` entry by entry, and nothing else depends on ``z_s``. Then

    C_s = diag(phi') W_t C_t W_t^T diag(phi') + diag(phi'' * W_t g_t)

at every position, from the curvature at the outputs of the next map, which usually has fewer of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlens.network.base.hooks import Hooks
from hessianlens.network.base.question import Norms, probe_vectors
from hessianlens.network.base.recognition import Grouping, entrywise_slope
from hessianlens.network.base.uses import Kind, Piece, Use
from hessianlens.network.routes.linear_map.batch_graph import HookedBatch, SiteCurvature
from hessianlens.problems import Batch, Problem

_CHUNK_BYTES = 2**26
"""A strip that is held at once."""
_GROUPS = 4
"""Groups of positions; of two different ones only one order is computed."""
_FEWEST_ROWS = 32
"""Rows below which a strip of a matrix that is held would be taken apart for nothing."""


@dataclass(frozen=True, eq=False)
class RowPanel:
    """Some rows of the symmetric curvature at every position, ``[position, row, feature]``, from the first one on.

    Entries behind the square on the diagonal are multiplied with the root of two: they count for their mirror images.

    Attributes:
        start: Number of the first row, and of the first feature.
        ggn: The Gauss-Newton part.
        functional: The rest; None where there is none.
    """

    start: int
    ggn: Tensor
    functional: Tensor | None

    def part(self, name: str) -> Tensor | None:
        """That of a part; None if it is zero."""
        if name == "functional" or self.functional is None:
            return self.functional if name == "functional" else self.ggn
        return self.ggn if name == "ggn" else self.ggn + self.functional


def weight_off_diagonal(strip: Tensor) -> Tensor:
    """A strip as it comes, with what stands behind the square on its diagonal multiplied by the root of two, in place.

    >>> weight_off_diagonal(torch.ones(1, 1, 2))
    tensor([[[1.0000, 1.4142]]])
    """
    strip[..., strip.shape[1] :] *= math.sqrt(2)
    return strip


def streamed_norms(
    hooked: HookedBatch, pieces: Sequence[Piece], strips: Iterable[RowPanel], parts: Sequence[str], problem: Problem
) -> list[Norms]:
    """Norms of blocks with themselves, where no two positions are coupled; a weight and its bias in one pass.

    Args:
        hooked: A batch, with a delta at the map's outputs.
        pieces: Blocks of one map, with the same outputs.
        strips: The curvature at these.
        parts: Among "full", "ggn" and "functional".
        problem: Whose blocks they are.
    """
    sums = [_Weight(hooked, piece) if piece.weighs else _Vector(hooked, piece) for piece in pieces]
    matvecs = [_Matvecs(hooked, piece, probe_vectors(piece.block, problem)) for piece in pieces]
    for strip in strips:
        for part in parts:
            values = strip.part(part)
            if values is not None:
                for one in (*sums, *matvecs):
                    one.add(part, strip.start, values)
    found = zip(sums, matvecs, strict=True)
    return [
        Norms({p: max(square.square(p), 0.0) ** 0.5 for p in parts}, {p: matvec.products(p) for p in parts})
        for square, matvec in found
    ]


class _Matvecs:
    """The matrix times some vectors, from the strips that its norm comes from: ``C_n u_n`` at every position."""

    def __init__(self, hooked: HookedBatch, piece: Piece, vectors: Tensor) -> None:
        inputs = hooked.inputs(piece.use)
        self._piece, self._inputs, self._products = piece, None, dict[str, Tensor]()
        if inputs is not None:
            self._inputs = inputs.detach()[:, piece.inputs if piece.weighs else piece.features]
        positions = hooked.positions(piece.use.site)
        self._tangents = torch.stack([self._tangent(v, positions) for v in vectors.unbind(-1)], -1)

    def _tangent(self, vector: Tensor, positions: int) -> Tensor:
        (matrix,) = self._piece.cut(vector)
        if self._inputs is None:
            return matrix.expand(positions, -1)
        return self._inputs @ matrix if self._piece.weighs else self._inputs * matrix

    def add(self, part: str, start: int, strip: Tensor) -> None:
        rows = strip.shape[1]
        square, rest = strip[..., :rows], strip[..., rows:] / math.sqrt(2)
        u, v = self._tangents[:, start : start + rows], self._tangents[:, start + rows :]
        product = self._products.setdefault(part, torch.zeros_like(self._tangents))
        product[:, start : start + rows] += square @ u + rest @ v
        product[:, start + rows :] += rest.transpose(1, 2) @ u

    def products(self, part: str) -> Tensor:
        """``[*block, vector]``."""
        found = self._products.get(part)
        found = torch.zeros_like(self._tangents) if found is None else found
        return torch.stack([self._piece.join(self._vjp(one)) for one in found.unbind(-1)], -1)

    def _vjp(self, found: Tensor) -> Tensor:
        if self._inputs is None:
            return found.sum(0, keepdim=True)
        return self._inputs.T @ found if self._piece.weighs else (self._inputs * found).sum(0, keepdim=True)


class _Weight:
    """``|sum_n a_n a_n^T (x) C_n|^2`` from Gram matrices of strips."""

    def __init__(self, hooked: HookedBatch, piece: Piece) -> None:
        inputs = hooked.inputs(piece.use)
        assert inputs is not None
        a = inputs.detach()[:, piece.inputs].double()
        self._weights = (a @ a.T).square()
        self._squares: dict[str, float] = {}

    def add(self, part: str, start: int, strip: Tensor) -> None:
        self._squares[part] = self._squares.get(part, 0.0) + _weighted_gram(self._weights, strip.flatten(1))

    def square(self, part: str) -> float:
        return self._squares.get(part, 0.0)


class _Vector:
    """``|sum_n diag(a_n) C_n diag(a_n)|^2`` of a gain, or the same without a, of a bias."""

    def __init__(self, hooked: HookedBatch, piece: Piece) -> None:
        inputs = hooked.inputs(piece.use)
        self._gains = None if inputs is None else inputs.detach()[:, piece.features]
        self._squares: dict[str, float] = {}

    def add(self, part: str, start: int, strip: Tensor) -> None:
        if self._gains is not None:
            rows, columns = (self._gains[:, start : start + size] for size in strip.shape[1:])
            strip = strip * rows[..., None] * columns[:, None]
        total = strip.new_ones(len(strip)) @ strip.flatten(1)  # many times faster than a sum over the first axis
        self._squares[part] = self._squares.get(part, 0.0) + float(total.double().square().sum())

    def square(self, part: str) -> float:
        return self._squares.get(part, 0.0)


def _weighted_gram(weights: Tensor, flat: Tensor) -> float:
    """``sum_nm w_nm <c_n, c_m>``; pairs of two groups are computed once, and sums of them are in double precision."""
    low, high = flat.aminmax()
    largest = max(-float(low), float(high))
    if largest == 0:
        return 0.0
    limits = torch.finfo(flat.dtype)
    scale = 1.0
    if not limits.tiny**0.25 < largest < limits.max**0.25:  # squares must fit, and small ones must not vanish
        flat, scale = flat / largest, largest**2
    total, step = 0.0, -(-len(flat) // _GROUPS)
    for first in range(0, len(flat), step):
        last = min(first + step, len(flat))
        products = (flat[first:last] @ flat[first:].T).double() * weights[first:last, first:]
        products[:, last - first :] *= 2
        total += float(products.sum())
    return total * scale


def streamed_bytes(piece: Piece, grouping: Grouping, parts: int) -> int:
    """Memory that this holds beside the graph."""
    positions = grouping.groups
    row = positions * len(piece.features) * torch.float64.itemsize
    return parts * positions**2 * torch.float64.itemsize + 2 * parts * max(row, _CHUNK_BYTES)


def rows_at_once(piece: Piece, grouping: Grouping, itemsize: int) -> int:
    """Rows of a strip."""
    return max(1, _CHUNK_BYTES // (grouping.groups * len(piece.features) * itemsize))


def row_panels(found: SiteCurvature, size: int) -> Iterator[RowPanel]:
    """Strips of a curvature that is held, every position by itself.

    Args:
        found: The curvature.
        size: Rows of a strip.
    """
    ggn, functional = (part.squeeze(3).squeeze(1) for part in (found.ggn, found.functional))
    bends, size = bool(functional.any()), max(size, _FEWEST_ROWS)
    for start in range(0, ggn.shape[-1], size):
        cut = slice(start, start + size)
        rest = weight_off_diagonal(functional[:, cut, start:].clone()) if bends else None
        yield RowPanel(start, weight_off_diagonal(ggn[:, cut, start:].clone()), rest)


def row_panels_by_products(
    hooked: HookedBatch, piece: Piece, grouping: Grouping, size: int, tick: Callable[[], None]
) -> Iterator[RowPanel]:
    """One matvec per row.

    Args:
        hooked: A batch, with a delta at the map's outputs.
        piece: The block.
        grouping: Every position by itself.
        size: Rows of a strip.
        tick: Is called after every product.
    """
    held: list[tuple[Tensor, Tensor]] = []
    for _, place, tangent in hooked.tangents(piece.use.site, piece.features, grouping):
        ggn, functional = hooked.products(piece.use.site, tangent, piece.use.site)
        held.append((ggn[:, piece.features], functional[:, piece.features]))
        tick()
        if len(held) == size or place == len(piece.features) - 1:
            start = place + 1 - len(held)
            parts = (weight_off_diagonal(torch.stack(rows, 1)[..., start:]) for rows in zip(*held, strict=True))
            yield RowPanel(start, *parts)
            held = []


@dataclass(frozen=True, eq=False)
class FollowingMap:
    """What follows a map.

    Attributes:
        use: How the weight of the next map enters.
        weight: It, inputs by outputs.
        first: phi', ``[position, feature]``.
        second: phi'', the same.
    """

    use: Use
    weight: Tensor
    first: Tensor
    second: Tensor

    def strips(self, downstream: SiteCurvature, slope: Tensor, features: Tensor, size: int) -> Iterator[RowPanel]:
        """Both parts of ``C_s``.

        Args:
            downstream: ``C_t``, every position by itself.
            slope: ``g_t``, ``[position, output]``.
            features: Rows and columns that are asked for.
            size: Rows of a strip.
        """
        W, first = self.weight[features], self.first[:, features]
        own = self.second[:, features] * (slope @ W.T)
        parts = [part.squeeze(3).squeeze(1) for part in (downstream.ggn, downstream.functional)]
        room = [C.new_empty(len(C) * min(size, len(W)) * len(W)) for C in parts]
        for start in range(0, len(features), size):
            cut = slice(start, start + size)
            columns = first[:, start:].clone()
            columns[:, size:] *= math.sqrt(2)
            rows = [self._strip(C, W, first[:, cut], columns, start, to) for C, to in zip(parts, room, strict=True)]
            rows[1].diagonal(dim1=1, dim2=2).add_(own[:, cut])
            yield RowPanel(start, *rows)

    @staticmethod
    def _strip(C: Tensor, W: Tensor, rows: Tensor, columns: Tensor, start: int, room: Tensor) -> Tensor:
        """``diag(rows) W C W^T diag(columns)`` of every position, into a room that all strips share."""
        left = torch.matmul(W[start : start + rows.shape[1]], C).mul_(rows[..., None])
        found = room[: left.shape[0] * left.shape[1] * columns.shape[1]].view(-1, columns.shape[1])
        torch.mm(left.flatten(0, 1), W[start:].T, out=found)
        return found.view(*left.shape[:2], -1).mul_(columns[:, None])


def downstream_elementwise(problem: Problem, batch: Batch, site: int) -> FollowingMap | None:
    """What follows a map, if it is an elementwise function and the next map alone; None if not.

    Args:
        problem: From `hessianlens.problem`.
        batch: One batch of it.
        site: The map.
    """
    with problem.scope(), torch.enable_grad(), Hooks(problem.params, cut=True) as hooks:
        outputs = problem.forward(problem.params, batch)
    leaf = hooks.leaves.get(site)
    if leaf is None:
        return None
    followers = [use for use in hooks.record.uses if use.inputs is not None and _depends(use.inputs, leaf)]
    if len(followers) != 1 or _depends(outputs, leaf) or followers[0].kind not in (Kind.IN_OUT, Kind.OUT_IN):
        return None
    use = followers[0]
    assert use.inputs is not None
    if use.inputs.shape != leaf.shape:
        return None
    first = entrywise_slope(use.inputs, leaf, graph=True)
    if first is None:
        return None
    second = entrywise_slope(first, leaf) if first.requires_grad else torch.zeros_like(first)
    if second is None:
        return None
    weight = use.matrix(problem.params[use.parameter].detach())
    return FollowingMap(use, weight, first.detach().flatten(0, -2), second.detach().flatten(0, -2))


def _depends(value: Tensor, leaf: Tensor) -> bool:
    if not value.requires_grad:
        return False
    (found,) = torch.autograd.grad(value, leaf, torch.ones_like(value), retain_graph=True, allow_unused=True)
    return found is not None
