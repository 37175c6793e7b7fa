"""Inner products of sums over tokens, ``sum_nm w_nm <G_n, G'_m>``, and norms of parts from them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

LARGEST_BYTES = 2**28
"""Room that the small matrices of all tokens may take."""
_GROUP_BYTES = 2**20
"""Room for the pairs of tokens in work at a time, so that they stay in cache."""
_GROUPS = 8
"""Groups of tokens; of two different ones only one order is computed."""
_CANCELLED = 1e-2
"""Share of the squared parts below which the square of their sum has lost digits and is not trusted."""


def norms_of_parts(inner: Tensor, sizes: Tensor, dtype: torch.dtype) -> dict[str, float] | None:
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


def score_products(p: Tensor, other: Tensor, P: Tensor, M: Tensor) -> Tensor:
    """Inner products ``[part, part]`` of ``sum_n p_n p'_n^T (x) P^T M_n P``.

    Args:
        p: ``[sequence, i, a]``.
        other: p', the same.
        P: ``[sequence, l, b]``.
        M: ``[sequence, part, i, l, m]``.
    """
    sequences, parts, queries, length, _ = M.shape
    inner = p.new_zeros(parts, parts, dtype=torch.float64)
    step = max(1, _GROUP_BYTES // (sequences * parts * queries * length * length * M.element_size()))
    for start in range(0, sequences, step):
        inner += _score_group(p, other, P, M, start, min(start + step, sequences))
    return inner


def _score_group(p: Tensor, other: Tensor, P: Tensor, M: Tensor, start: int, stop: int) -> Tensor:
    """``sum (p_n . p_m) (p'_n . p'_m) tr(M_n B M'_m^T B^T)``, B = P P'^T.

    For n in some sequences, m in those and all later ones. Pairs of two groups count twice; the two mixed sums of the
    parts then agree on average only.
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
    weights = _gram(p, start, stop)
    weights = weights.square() if other is p else weights * _gram(other, start, stop)
    weights = weights.reshape(group, queries, others, queries).permute(2, 0, 1, 3).contiguous()
    weights[group:] *= 2
    products = products.reshape(others, group, parts, queries, parts, queries)
    return torch.einsum("oguiwj,ogij->uw", products, weights).double()


def _gram(p: Tensor, start: int, stop: int) -> Tensor:
    return p[start:stop].reshape(-1, p.shape[-1]) @ p[start:].reshape(-1, p.shape[-1]).T


def weighted_gram(weights: Tensor, G: Tensor, H: Tensor, symmetric: bool) -> Tensor:
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


def scale_each_to_unit_maximum(values: Tensor, dims: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The same for every slice along the other axes than `dims`; the entries in double precision, 0 for no entry."""
    largest = values.abs().amax(tuple(dims), keepdim=True)
    return values / torch.where(largest == 0, torch.ones_like(largest), largest), largest.flatten().double()
