"""Norms of the parts of one diagonal block of a network's last attention layer, from Gram matrices that they share.

Every part is ``sum_n p_n p_n^T (x) G_n`` over the tokens n that carry a loss, with the same vectors p, so that

    <A, B> = sum_nm (p_n . p_m)^2 <G_n, G'_m>

for any two parts A and B. All inner products of the Gauss-Newton and the functional part come from one pass over the
pairs of tokens, and the norm of the Hessian follows from them. A block of scores has ``G_n = P^T M_n P`` with M as wide
as the sequence is long; a block of values has ``G_n = W C_n W^T``, of which one triangle is enough.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from hessianlens.attention.layer import FactoredValueAttention, MultiHeadAttention
from hessianlens.attention.state import HeadState, ScorePort, ValuePort
from hessianlens.losses import TokenCurvature, UncoupledCurvature
from hessianlens.losses.curvature import FactoredTokenCurvature
from hessianlens.network.last_attention.behind import PositionDerivatives
from hessianlens.theory.scores import ScoreCurvature

_LARGEST_BYTES = 2**28
"""Room that the small matrices of all tokens may take."""
_GROUP_BYTES = 2**20
"""Room for the pairs of tokens in work at a time, so that they stay in cache."""
_TILE = 8
"""Width of the tiles of a symmetric matrix; those below the diagonal are left out."""
_GROUPS = 8
"""Groups of tokens; of two different ones only one order is computed."""
_CANCELLED = 1e-2
"""Share of the squared parts below which the square of their sum has lost digits and is not trusted."""


def part_norms(
    layer: MultiHeadAttention, X: Tensor, derivatives: PositionDerivatives, name: str, rows: slice
) -> dict[str, float] | None:
    """Norms of the ggn, functional and full part of a diagonal block; None where this way is not the cheap one.

    Args:
        layer: The layer with the network's weights.
        X: Tokens that enter it, (B, L, d).
        derivatives: Of the network behind it.
        name: The parameter: Q, K, O or U.
        rows: Rows of the parameter that belong to the block.
    """
    if len(layer.heads) > 1 or type(layer.heads[0]) is not FactoredValueAttention:
        return None
    with torch.no_grad():
        head = layer.heads[0].attend(X).at(derivatives.positions).centred()
        if name in head.score_ports:
            found = _score_products(head, head.score_ports[name], derivatives, rows)
        else:
            found = _value_products(head.value_ports[name], derivatives, rows)
    return None if found is None else _norms(*found, X.dtype)


def _norms(inner: Tensor, sizes: Tensor, dtype: torch.dtype) -> dict[str, float] | None:
    """Norms from the inner products of the two parts, each over its size.

    None if they cancel so far that the sum is rounding, or have left the range of the numbers: a part that is not zero
    has products of about one.
    """
    limits = torch.finfo(dtype)
    own = inner.diagonal().clamp(min=0)
    if bool(((own < limits.tiny / limits.eps) & (sizes != 0)).any()):
        return None
    relative = sizes / sizes.max().clamp(min=torch.finfo(sizes.dtype).tiny)
    squares = inner * torch.outer(relative, relative)
    full, parts = float(squares.sum()), float(squares.diagonal().sum())
    if full < _CANCELLED * parts:
        return None
    ggn, functional = (own.sqrt() * sizes).tolist()
    return {"ggn": ggn, "functional": functional, "full": math.sqrt(full) * float(sizes.max())}


def _score_products(
    head: HeadState, port: ScorePort, found: PositionDerivatives, rows: slice
) -> tuple[Tensor, Tensor] | None:
    """Inner products ``[part, part]`` of a query or key block, over the sizes of the parts, and these."""
    vectors, matrix = port.vector, port.matrix
    if port.vector_axis == 0:
        vectors = vectors[..., rows]
    else:
        matrix = matrix[..., rows]
    sequences, queries, length = head.scores.shape
    if length > matrix.shape[-1] or 2 * head.scores.numel() * length * vectors.element_size() > _LARGEST_BYTES:
        return None
    functional = head.curvature(found.gradient).to_dense().to(vectors)
    if found.head is not None:
        functional = functional + _score_curvature(head, TokenCurvature(found.head), found.gradient)
    M = torch.stack([_score_curvature(head, found.ggn, found.gradient), functional], 1) / head.scale**2
    P, sizes = _normalised(matrix)
    p, lengths = _normalised(vectors)
    M, largest = _each_normalised(M, dims=(0, 2, 3, 4))
    inner = p.new_zeros(2, 2, dtype=torch.float64)
    itemsize = M.element_size()
    step = max(1, _GROUP_BYTES // (sequences * 2 * queries * length * length * itemsize))
    for start in range(0, sequences, step):
        stop = min(start + step, sequences)
        inner += _score_group(p, P, M, start, stop)
    return inner, largest * (sizes * lengths) ** 2


def _score_curvature(head: HeadState, curvature: UncoupledCurvature, gradient: Tensor) -> Tensor:
    return ScoreCurvature(head, head, curvature, gradient).outer_matrices


def _score_group(p: Tensor, P: Tensor, M: Tensor, start: int, stop: int) -> Tensor:
    """``sum (p_n . p_m)^2 tr(M_n B M'_m B^T)``, B = P P'^T, for n in some sequences and m in those and all later ones.

    Pairs of two groups count twice; the two mixed sums of the parts then agree on average only.
    """
    group, others = stop - start, len(P) - start
    _, parts, queries, length, _ = M.shape
    mine, theirs = P[start:stop], P[start:]
    B = (mine.reshape(-1, P.shape[-1]) @ theirs.reshape(-1, P.shape[-1]).T).reshape(group, length, others * length)
    half = M[start:stop].reshape(group, parts * queries * length, length) @ B
    half = half.reshape(group, parts * queries, length, others, length).permute(0, 3, 2, 1, 4)
    turned = B.reshape(group, length, others, length).permute(0, 2, 3, 1)
    both = turned @ half.reshape(group, others, length, parts * queries * length)
    both = both.reshape(group, others, length, parts * queries, length).permute(1, 0, 3, 2, 4)
    own = M[start:].reshape(others, parts * queries, length * length)
    products = both.reshape(others, group * parts * queries, length * length) @ own.transpose(1, 2)
    weights = (p[start:stop].reshape(-1, p.shape[-1]) @ p[start:].reshape(-1, p.shape[-1]).T).square()
    weights = weights.reshape(group, queries, others, queries).permute(2, 0, 1, 3).contiguous()
    weights[group:] *= 2
    products = products.reshape(others, group, parts, queries, parts, queries)
    return torch.einsum("oguiwj,ogij->uw", products, weights).double()


def _value_products(port: ValuePort, found: PositionDerivatives, rows: slice) -> tuple[Tensor, Tensor] | None:
    """The same of a value or output block, a strip of the matrices after the other."""
    p, lengths = _normalised(port.vector[..., rows].flatten(0, 1))
    sides = [_sides(found.ggn, port.readout)]
    if found.head is not None:
        sides.append(_sides(TokenCurvature(found.head), port.readout))
    if len(sides) * len(p) * port.width**2 * p.element_size() // 2 > _LARGEST_BYTES:
        return None
    weights = (p @ p.T).square()
    inner = p.new_zeros(2, 2, dtype=torch.float64)
    for start in range(0, port.width, _TILE):
        strips = [_strip(left, right, start) for left, right, _ in sides]
        for u, G in enumerate(strips):
            inner[u, u] += _weighted_gram(weights, G, G, symmetric=True)
        if len(strips) == 2:
            inner[0, 1] += _weighted_gram(weights, strips[0], strips[1], symmetric=False)
    inner[1, 0] = inner[0, 1]
    sizes = torch.tensor([size for *_, size in sides] + [0.0] * (2 - len(sides)), dtype=torch.float64)
    return inner, sizes.to(inner) * lengths**2


def _sides(curvature: UncoupledCurvature, readout: Tensor | None) -> tuple[Tensor, Tensor, float]:
    """``W C_n W^T`` as the product of two matrices a token, ``[n, b, r]`` each and of largest entry 1, and a factor."""
    if isinstance(curvature, FactoredTokenCurvature):
        left, one = _read_out(curvature.left.flatten(0, 1), readout)
        right, other = _read_out(curvature.right.flatten(0, 1), readout)
        return left, right, one * other
    assert isinstance(curvature, TokenCurvature)
    C = curvature.matrices.flatten(0, 1)
    W = torch.eye(C.shape[-1], dtype=C.dtype, device=C.device) if readout is None else readout
    (left, one), (right, other) = _read_out(C, readout), _normalised(W)
    return left, right.expand(len(C), -1, -1), one * other


def _read_out(matrices: Tensor, readout: Tensor | None) -> tuple[Tensor, float]:
    """``W R_n`` of largest entry 1, and that entry."""
    if readout is None:
        return _normalised(matrices)
    found = readout @ matrices
    largest = _largest(found)
    return found.div_(largest), largest


def _strip(left: Tensor, right: Tensor, start: int) -> Tensor:
    """Some rows of the symmetric ``left right^T`` of every token, from the diagonal on, one after the other.

    What stands beside the diagonal tile counts for its mirror image too.
    """
    strip = left[:, start : start + _TILE] @ right[:, start:].transpose(1, 2)
    strip[..., _TILE:] *= math.sqrt(2)
    return strip.flatten(1)


def _weighted_gram(weights: Tensor, G: Tensor, H: Tensor, symmetric: bool) -> Tensor:
    """``sum_nm weights_nm <G_n, H_m>``; of a symmetric sum, the pairs of two groups are computed once."""
    parts: list[Tensor] = []
    step = -(-len(G) // _GROUPS)
    for start in range(0, len(G), step):
        stop = min(start + step, len(G))
        first = start if symmetric else 0
        products = (G[start:stop] @ H[first:].T) * weights[start:stop, first:]
        if symmetric:
            products[:, stop - start :] *= 2
        parts.append(products.sum(dtype=torch.float64))
    return torch.stack(parts).sum()


def _normalised(values: Tensor) -> tuple[Tensor, float]:
    """Values of largest entry 1, and that entry: products of four of them then neither overflow nor underflow."""
    largest = _largest(values)
    return values / largest, largest


def _largest(values: Tensor) -> float:
    """The largest absolute entry, found without a copy; 1 if all are zero."""
    low, high = values.aminmax()
    return max(-float(low), float(high)) or 1.0


def _each_normalised(values: Tensor, dims: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The same for every slice along the axes that are not named; the entries in double precision, 0 for no entry."""
    largest = values.abs().amax(tuple(dims), keepdim=True)
    return values / torch.where(largest == 0, torch.ones_like(largest), largest), largest.flatten().double()
