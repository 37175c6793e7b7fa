"""Sums over tokens, vectors and features. Tangents are ``[sequence, token, vector, feature]``."""

from __future__ import annotations

import torch
from torch import Tensor


def inner_products(tangents: Tensor, rows: Tensor) -> Tensor:
    """``[s, i, p, j]``: inner products of tangents [s, i, p, d] with rows [s, j, d]."""
    return torch.bmm(tangents.flatten(1, 2), rows.transpose(1, 2)).unflatten(1, tangents.shape[1:3])


def times(scores: Tensor, rows: Tensor) -> Tensor:
    """``[s, i, p, d]``: sums of rows [s, j, d] weighted by scores [s, i, p, j]."""
    return torch.bmm(scores.flatten(1, 2), rows).unflatten(1, scores.shape[1:3])


def add_times(tangents: Tensor, scores: Tensor, rows: Tensor) -> Tensor:
    """Add `times` to contiguous tangents, in place."""
    tangents.view(len(tangents), -1, tangents.shape[-1]).baddbmm_(scores.flatten(1, 2), rows)
    return tangents


def mix_tokens(weights: Tensor, tangents: Tensor) -> Tensor:
    """``[s, i, p, d]``: sums of tangents [s, j, p, d] weighted by weights [s, i, j]."""
    return torch.bmm(weights, tangents.flatten(2)).unflatten(2, tangents.shape[2:])


def add_mix_tokens(into: Tensor, weights: Tensor, tangents: Tensor) -> Tensor:
    """Add `mix_tokens` to contiguous tangents, in place."""
    into.flatten(2).baddbmm_(weights, tangents.flatten(2))
    return into


def apply_matrix(tangents: Tensor, matrix: Tensor) -> Tensor:
    """Tangents [s, i, p, c] times one matrix [c, d]."""
    return torch.mm(tangents.flatten(0, 2), matrix).unflatten(0, tangents.shape[:3])


def add_apply_matrix(into: Tensor, tangents: Tensor, matrix: Tensor) -> Tensor:
    """Add `apply_matrix` to contiguous tangents, in place."""
    into.view(-1, into.shape[-1]).addmm_(tangents.flatten(0, 2), matrix)
    return into


def rows(scores: Tensor, matrices: Tensor) -> Tensor:
    """``[s, i, p, l]``: scores [s, i, p, j] times a matrix [s, i, j, l] of each query token."""
    return torch.bmm(scores.flatten(0, 1), matrices.flatten(0, 1)).unflatten(0, scores.shape[:2])


def swap_tokens(scores: Tensor) -> Tensor:
    """``[s, j, p, i]`` from ``[s, i, p, j]``."""
    return scores.transpose(1, 3)


def apply_matrices(vectors: Tensor, matrices: Tensor) -> Tensor:
    """``[s, i, p, c]``: vectors [s, i, r] times matrices [p, r, c]."""
    flat = vectors.flatten(0, 1) @ matrices.transpose(0, 1).flatten(1)
    return flat.unflatten(-1, (len(matrices), -1)).unflatten(0, vectors.shape[:2])


def apply_transposed(vectors: Tensor, cotangents: Tensor) -> Tensor:
    """``[p, r, c]``: the transpose of `apply_matrices`, summed over sequences and tokens."""
    flat = vectors.flatten(0, 1).T @ cotangents.flatten(0, 1).flatten(1)
    return flat.unflatten(-1, cotangents.shape[2:]).transpose(0, 1)
