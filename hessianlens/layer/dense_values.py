"""Entries of the blocks between value parameters of small layers: ``sum_i m_i m_i' (x) R C_i R'``, R a readout or 1."""

from __future__ import annotations

import torch
from torch import Tensor

from hessianlens.attention.state import ValuePort
from hessianlens.losses import ScalarCurvature, UncoupledCurvature


def write_values(row: ValuePort, column: ValuePort, curvature: UncoupledCurvature | None, entries: Tensor) -> None:
    """The outer part of a block, zero without a curvature.

    Args:
        row: How the parameter of the rows enters.
        column: The same for the columns.
        curvature: Of the loss.
        entries: Is overwritten, ``[a, b, c, d]``.
    """
    left, right = (port.vector.flatten(0, 1) for port in (row, column))
    if curvature is None:
        entries.zero_()
    elif not isinstance(curvature, ScalarCurvature):
        R, Q = (_readout(port, left).expand(row.vector.shape[0], -1, -1) for port in (row, column))
        C, both = curvature.between(R, Q).flatten(0, 1), left[:, :, None] * right[:, None]
        entries.copy_((both.flatten(1).T @ C.flatten(1)).view(*both.shape[1:], *C.shape[1:]).transpose(1, 2))
    else:
        gram = left.T @ (right * curvature.values.reshape(-1, 1))
        if row.readout is None and column.readout is None:
            entries.zero_()
            torch.diagonal(entries, dim1=1, dim2=3).copy_(gram[..., None].expand(-1, -1, row.width))
        else:
            between = _readout(row, left) @ _readout(column, left).T
            torch.mul(gram[:, None, :, None], between[None, :, None, :], out=entries)


def _readout(port: ValuePort, like: Tensor) -> Tensor:
    """The matrix behind a parameter, ``[., f]``."""
    return torch.eye(port.width, dtype=like.dtype, device=like.device) if port.readout is None else port.readout


def add_value_pair(first: ValuePort, gradient: Tensor, entries: Tensor, in_order: bool) -> None:
    """The functional part between the two factors of a head's values, ``B (x) 1`` with ``B = M_1' g``.

    Args:
        first: How the first of them enters.
        gradient: Of the loss.
        entries: Is added to, ``[a, b, c, d]``.
        in_order: Whether the first one indexes the rows.
    """
    B = first.vector.flatten(0, 1).T @ gradient.flatten(0, 1)
    if in_order:
        torch.diagonal(entries, dim1=1, dim2=2).add_(B[..., None])
    else:
        torch.diagonal(entries, dim1=0, dim2=3).add_(B.T[..., None])
