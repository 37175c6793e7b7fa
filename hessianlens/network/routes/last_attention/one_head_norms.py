"""Norms of the parts of one diagonal block of a last attention layer of one head, from Gram matrices that they share.

Every part is ``sum_n p_n p_n^T (x) G_n`` over the tokens n that carry a loss, with the same vectors p, so that

    <A, B> = sum_nm (p_n . p_m)^2 <G_n, G'_m>

for any two parts A and B. All inner products of the Gauss-Newton and the functional part come from one pass over the
pairs of tokens, and the norm of the Hessian follows from them. A block of scores has ``G_n = P^T M_n P`` with M as wide
as the sequence is long; a block of values has ``G_n = W C_n W^T``, of which one triangle is enough.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hessianlens.attention.layer import FactoredValueAttention, MultiHeadAttention
from hessianlens.attention.state import HeadState, ScorePort, ValuePort
from hessianlens.layer.scores import ScoreCurvature
from hessianlens.losses import TokenCurvature, UncoupledCurvature
from hessianlens.losses.curvature_forms import FactoredTokenCurvature
from hessianlens.network.routes.last_attention.grams import (
    LARGEST_BYTES,
    norms_of_parts,
    scale_each_to_unit_maximum,
    score_products,
    weighted_gram,
)
from hessianlens.network.routes.last_attention.positionwise import PositionDerivatives
from hessianlens.operators.exponent_scaling import largest_entry, scale_to_unit_maximum

_TILE = 8
"""Width of the tiles of a symmetric matrix; those below the diagonal are left out."""


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
    return None if found is None else norms_of_parts(*found, X.dtype)


def _score_products(
    head: HeadState, port: ScorePort, found: PositionDerivatives, rows: slice
) -> tuple[Tensor, Tensor] | None:
    """Inner products ``[part, part]`` of a query or key block, over the sizes of the parts, and these."""
    vectors, matrix = port.vector, port.matrix
    if port.vector_axis == 0:
        vectors = vectors[..., rows]
    else:
        matrix = matrix[..., rows]
    length = head.scores.shape[-1]
    if length > matrix.shape[-1] or 2 * head.scores.numel() * length * vectors.element_size() > LARGEST_BYTES:
        return None
    functional = head.curvature(found.gradient).to_dense().to(vectors)
    if found.head is not None:
        functional = functional + _score_curvature(head, TokenCurvature(found.head), found.gradient)
    M = torch.stack([_score_curvature(head, found.ggn, found.gradient), functional], 1) / head.scale**2
    P, sizes = scale_to_unit_maximum(matrix)
    p, lengths = scale_to_unit_maximum(vectors)
    M, largest = scale_each_to_unit_maximum(M, dims=(0, 2, 3, 4))
    return score_products(p, p, P, M), largest * (sizes * lengths) ** 2


def _score_curvature(head: HeadState, curvature: UncoupledCurvature, gradient: Tensor) -> Tensor:
    return ScoreCurvature(head, head, curvature, gradient).outer_matrices


def _value_products(port: ValuePort, found: PositionDerivatives, rows: slice) -> tuple[Tensor, Tensor] | None:
    """The same of a value or output block, a strip of the matrices after the other."""
    p, lengths = scale_to_unit_maximum(port.vector[..., rows].flatten(0, 1))
    sides = [_sides(found.ggn, port.readout)]
    if found.head is not None:
        sides.append(_sides(TokenCurvature(found.head), port.readout))
    if len(sides) * len(p) * port.width**2 * p.element_size() // 2 > LARGEST_BYTES:
        return None
    weights = (p @ p.T).square()
    inner = p.new_zeros(2, 2, dtype=torch.float64)
    for start in range(0, port.width, _TILE):
        strips = [_strip(left, right, start) for left, right, _ in sides]
        for u, G in enumerate(strips):
            inner[u, u] += weighted_gram(weights, G, G, symmetric=True)
        if len(strips) == 2:
            inner[0, 1] += weighted_gram(weights, strips[0], strips[1], symmetric=False)
    inner[1, 0] = inner[0, 1]
    sizes = inner.new_tensor([size for *_, size in sides] + [0.0] * (2 - len(sides)))
    return inner, sizes * lengths**2


def _sides(curvature: UncoupledCurvature, readout: Tensor | None) -> tuple[Tensor, Tensor, float]:
    """``W C_n W^T`` as the product of two matrices per token, ``[n, b, r]``, of largest entry 1, and a factor."""
    if isinstance(curvature, FactoredTokenCurvature):
        left, one = _read_out(curvature.left.flatten(0, 1), readout)
        right, other = _read_out(curvature.right.flatten(0, 1), readout)
        return left, right, one * other
    assert isinstance(curvature, TokenCurvature)
    C = curvature.matrices.flatten(0, 1)
    W = torch.eye(C.shape[-1], dtype=C.dtype, device=C.device) if readout is None else readout
    (left, one), (right, other) = _read_out(C, readout), scale_to_unit_maximum(W)
    return left, right.expand(len(C), -1, -1), one * other


def _read_out(matrices: Tensor, readout: Tensor | None) -> tuple[Tensor, float]:
    """``W R_n`` of largest entry 1, and that entry."""
    if readout is None:
        return scale_to_unit_maximum(matrices)
    found = readout @ matrices
    largest = largest_entry(found)
    return found.div_(largest), largest


def _strip(left: Tensor, right: Tensor, start: int) -> Tensor:
    """Some rows of the symmetric ``left right^T`` of every token, from the diagonal on, one after the other.

    What stands beside the diagonal tile counts for its mirror image too.
    """
    strip = left[:, start : start + _TILE] @ right[:, start:].transpose(1, 2)
    strip[..., _TILE:] *= math.sqrt(2)
    return strip.flatten(1)
