"""The curvature of a loss as a user gives it: a number, a tensor, or one of the forms."""

from __future__ import annotations

import torch
from torch import Tensor

from hessianlens.checks import check_dense, check_finite, check_tensor
from hessianlens.errors import InputError, expect
from hessianlens.losses.curvature_forms import (
    CoupledCurvature,
    LowRankCoupledCurvature,
    LowRankTokenCurvature,
    OutputCurvature,
    ScalarCurvature,
    TokenCurvature,
)
from hessianlens.losses.softmax_curvature import SoftmaxCurvature


def as_curvature(given: float | Tensor | OutputCurvature, like: Tensor) -> OutputCurvature:
    """Read a curvature: a number, or tensors of increasing detail, for outputs shaped as `like` (B, L, d_V).

    ========================  =======================================================
    shape                     meaning
    ========================  =======================================================
    number                    the same multiple of the identity for every token
    (L,) or (B, L)            a multiple of the identity for every token
    (L, f, f), (B, L, f, f)   a symmetric matrix for every token
    (L, f, L, f), (B, ...)    a matrix for every pair of tokens
    ========================  =======================================================

    The low-rank forms are given as `LowRankTokenCurvature` or `LowRankCoupledCurvature`.
    """
    check_dense("like", like)
    expect(like.ndim == 3, f"like: got shape {tuple(like.shape)}, expected outputs (B, L, d_V).")
    B, L, f = like.shape
    if isinstance(given, (LowRankTokenCurvature, LowRankCoupledCurvature)):
        check_tensor("curvature root", given.root, (3, 4))
        return type(given)(_batched("curvature root", given.root, (L, f, given.root.shape[-1]), like))
    if isinstance(given, SoftmaxCurvature):
        weight = _batched("curvature weight", given.weight, (L,), like)
        return SoftmaxCurvature(weight, _batched("curvature probabilities", given.probabilities, (L, f), like))
    if isinstance(given, (TokenCurvature, CoupledCurvature)):
        return as_curvature(given.matrices, like)
    if isinstance(given, ScalarCurvature):
        return as_curvature(given.values, like)
    if isinstance(given, (int, float)) or (isinstance(given, Tensor) and given.ndim == 0):
        number = torch.as_tensor(given, dtype=like.dtype, device=like.device)
        check_finite("curvature", number)
        return ScalarCurvature(number.expand(B, L), f)
    if not isinstance(given, Tensor):
        raise InputError(f"curvature: got {type(given).__name__}, expected a number, a tensor or an OutputCurvature.")
    shape = tuple(given.shape)
    if shape in ((L,), (B, L)):
        return ScalarCurvature(_batched("curvature", given, (L,), like), f)
    if shape in ((L, f, L, f), (B, L, f, L, f)):
        coupled = _batched("curvature", given, (L, f, L, f), like)
        _expect_symmetric(coupled.reshape(B, L * f, L * f))
        return CoupledCurvature(coupled)
    if shape in ((L, f, f), (B, L, f, f)):
        each = _batched("curvature", given, (L, f, f), like)
        _expect_symmetric(each)
        return TokenCurvature(each)
    raise InputError(
        f"curvature: got shape {shape}, expected a number, ({L},), ({L}, {f}, {f}) or ({L}, {f}, {L}, {f}), "
        f"each with an optional leading batch axis of {B}."
    )


def _batched(name: str, given: Tensor, shape: tuple[int, ...], like: Tensor) -> Tensor:
    full = (like.shape[0], *shape)
    expect(
        tuple(given.shape) in (shape, full),
        f"{name}: got shape {tuple(given.shape)}, expected {shape} or {full}.",
    )
    expect(
        given.dtype == like.dtype and given.device == like.device,
        f"{name}: got {given.dtype} on {given.device}, expected {like.dtype} on {like.device} as the layer.",
    )
    check_finite(name, given)
    return given.detach().clone().expand(full)


def _expect_symmetric(matrices: Tensor) -> None:
    gap = (matrices - matrices.transpose(-1, -2)).abs().max()
    largest = matrices.abs().max()
    expect(
        bool(gap <= max(1e-6, 8 * torch.finfo(matrices.dtype).eps) * largest),
        f"curvature: got a matrix that differs from its transpose by up to {gap:.2g} (largest entry {largest:.2g}), "
        "expected a symmetric second derivative; pass (C + C^T) / 2 if the difference is rounding.",
    )
