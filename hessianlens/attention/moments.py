"""Attention moments: what a row of attention weights says about the tokens it looks at.

Row i of the attention matrix is a distribution over tokens (for softmax). Its mean is row i of M_1, its covariance
block i of M_2, its third central moment block i of M_3 (Definition 3.1 of the paper). The value block of the Hessian
sees M_1, the query-key blocks see M_2 through the outer product and M_3 through the functional part. For weights that
do not sum to one the same sums are taken, centred at M_1. `attention_entropy` says how spread out the rows are.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, einsum

from hessianlens.checks import check_dense, check_finite, check_same_kind, check_shape
from hessianlens.errors import expect
from hessianlens.memory import ensure_fits
from hessianlens.near_one_hot import Peak


def first_moment(A: Float[Tensor, "*s i l"], X: Float[Tensor, "*s l d"]) -> Float[Tensor, "*s i d"]:
    """``M_1 = A X``: the mean token each row sees.

    >>> import torch
    >>> first_moment(torch.tensor([[0.5, 0.5]]), torch.tensor([[1.0], [3.0]]))
    tensor([[2.]])
    """
    _check(A, X)
    return A @ X


def second_moment(A: Float[Tensor, "*s i l"], X: Float[Tensor, "*s l d"]) -> Float[Tensor, "*s i d d"]:
    """``M_2``: for every row the sum of ``A_ij (x_j - m_i)(x_j - m_i)^T``; reshape to (L d, d) for the paper's layout.

    >>> import torch
    >>> second_moment(torch.tensor([[0.5, 0.5]]), torch.tensor([[1.0], [3.0]])).reshape(-1)
    tensor([1.])
    """
    _check(A, X)
    X, M1 = _shifted(A, X)
    peak = _close_to_one(A)
    if peak is not None:
        return _second_moment_at(peak, X)
    raw = einsum("...il,...la,...lb->...iab", A, X, X)
    cross = M1[..., :, None] * M1[..., None, :]
    seen = einsum("...il,...la->...ia", A, X)
    mixed = seen[..., :, None] * M1[..., None, :]
    return raw - mixed - mixed.transpose(-1, -2) + A.sum(-1)[..., None, None] * cross


def third_moment(A: Float[Tensor, "*s i l"], X: Float[Tensor, "*s l d"]) -> Float[Tensor, "*s i d d d"]:
    """``M_3`` in full, ``[i, a, b, c]``; refused if it would not fit. A Hessian needs only `third_moment_along`.

    >>> import torch
    >>> third_moment(torch.tensor([[0.75, 0.25]]), torch.tensor([[0.0], [4.0]])).item()
    6.0
    """
    _check(A, X)
    width = X.shape[-1]
    ensure_fits(
        "The third attention moment",
        (*A.shape[:-1], width, width, width),
        X.dtype,
        X.device,
        "third_moment_along contracts it with one direction without forming it",
    )
    peak = _close_to_one(A)
    mean = first_moment(A, X)[..., :, None, :]
    centred = X[..., None, :, :] - mean if peak is None else _centred_tokens(peak, X)
    return einsum("...il,...ila,...ilb,...ilc->...iabc", A, centred, centred, centred)


def third_moment_along(
    A: Float[Tensor, "*s i l"], X: Float[Tensor, "*s l d"], direction: Float[Tensor, "*s i d"]
) -> Float[Tensor, "*s i d d"]:
    """``sum_a u_ia M_3[i, a, :, :]`` for one direction per row, without ever forming M_3.

    With ``u_i = W_V g_i`` this is all of M_3 that the functional Hessian of the query-key blocks depends on.

    >>> import torch
    >>> A, X = torch.tensor([[0.75, 0.25]]), torch.tensor([[0.0], [4.0]])
    >>> third_moment_along(A, X, torch.tensor([[2.0]])).item()
    12.0
    """
    _check(A, X)
    check_dense("direction", direction)
    check_same_kind({"X": X, "direction": direction})
    wanted = (*A.shape[:-1], X.shape[-1])
    check_shape("direction", direction, wanted, "one for every row of A")
    check_finite("direction", direction)
    X, M1 = _shifted(A, X)
    peak = _close_to_one(A)
    seen = einsum("...la,...ia->...il", X, direction)
    along = seen - (M1 * direction).sum(-1, keepdim=True) if peak is None else peak.centred(seen)
    weight = A * along
    raw = einsum("...il,...la,...lb->...iab", weight, X, X)
    mean = einsum("...il,...la->...ia", weight, X)
    cross = mean[..., :, None] * M1[..., None, :]
    centre = M1[..., :, None] * M1[..., None, :] * weight.sum(-1)[..., None, None]
    return raw - cross - cross.transpose(-1, -2) + centre


def _check(A: object, X: object) -> None:
    """Rows of attention weights, and tokens for them to look at."""
    weights, tokens = check_dense("A", A), check_dense("X", X)
    for name, tensor in (("A", weights), ("X", tokens)):
        expect(tensor.is_floating_point(), f"{name}: got dtype {tensor.dtype}, expected a floating dtype.")
        expect(tensor.ndim > 1, f"{name}: got shape {tuple(tensor.shape)}, expected a matrix, or a batch of them.")
    check_same_kind({"A": weights, "X": tokens})
    expect(
        tokens.shape[:-1] == (*weights.shape[:-2], weights.shape[-1]) and tokens.numel() > 0 and weights.numel() > 0,
        f"A and X: got shapes {tuple(weights.shape)} and {tuple(tokens.shape)}, expected (..., L, L) and (..., L, d).",
    )
    check_finite("A", weights)
    check_finite("X", tokens)


def _shifted(
    A: Float[Tensor, "*s i l"], X: Float[Tensor, "*s l d"]
) -> tuple[Float[Tensor, "*s l d"], Float[Tensor, "*s i d"]]:
    """Tokens and their means, both relative to the sequence's mean token: central moments without cancellation."""
    centre = X.mean(-2, keepdim=True)
    return X - centre, first_moment(A, X) - centre


def _close_to_one(A: Float[Tensor, "*s i l"]) -> Peak | None:
    """The largest weights, if the rows sum to one and some row has next to nothing beside its largest."""
    peak = Peak(A)
    gap = (A.sum(-1) - 1).abs() * A.any(-1)
    return peak if bool((gap <= 2 * A.shape[-1] * torch.finfo(A.dtype).eps).all()) and peak.close_to_one else None


def _largest_token(peak: Peak, X: Float[Tensor, "*s l d"]) -> Float[Tensor, "*s i d"]:
    """The token with the largest weight of each row."""
    return X.gather(-2, peak.place.expand(*peak.place.shape[:-1], X.shape[-1]))


def _second_moment_at(peak: Peak, X: Float[Tensor, "*s l d"]) -> Float[Tensor, "*s i d d"]:
    """``M_2`` around the token of the largest weight, from the other weights alone: no summand exceeds the sum."""
    top, rest = _largest_token(peak, X), peak.rest
    seen = einsum("...il,...la->...ia", peak.others, X)
    mean = seen - rest * top
    mixed = seen[..., :, None] * top[..., None, :]
    raw = einsum("...il,...la,...lb->...iab", peak.others, X, X)
    around = raw - mixed - mixed.transpose(-1, -2) + rest[..., None] * top[..., :, None] * top[..., None, :]
    return around - mean[..., :, None] * mean[..., None, :]


def _centred_tokens(peak: Peak, X: Float[Tensor, "*s l d"]) -> Float[Tensor, "*s i l d"]:
    """``x_j - m_i``, as differences from the token of the largest weight and their mean."""
    relative = X[..., None, :, :] - _largest_token(peak, X)[..., :, None, :]
    return relative - einsum("...il,...ila->...ia", peak.others, relative)[..., :, None, :]


def attention_entropy(A: Float[Tensor, "*s i l"]) -> Float[Tensor, "*s i"]:
    """Entropy ``-sum_j A_ij log A_ij`` of every row, in nats: 0 for a one-hot row, log L for a uniform one.

    A row that sees nothing has entropy 0. Weights must not be negative; rows are taken as they are, so the value is an
    entropy only where they sum to one.

    >>> attention_entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.0, 0.0]]))
    tensor([0.6931, 0.0000, 0.0000])
    """
    check_dense("A", A)
    expect(A.is_floating_point(), f"A: got dtype {A.dtype}, expected a floating dtype.")
    expect(A.ndim > 0 and A.numel() > 0, f"A: got shape {tuple(A.shape)}, expected rows of attention weights.")
    check_finite("A", A)
    lowest = float(A.detach().min())
    expect(
        lowest >= 0,
        f"A: got an attention weight of {lowest:.3g}, expected none below 0; entropy needs a distribution.",
    )
    return torch.special.entr(A).sum(-1)
