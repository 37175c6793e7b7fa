"""What entries of a small head's blocks are made of: small matrices of every token, for all of its parameters at once.

With P the matrices of a head's score parameters side by side, over s, and the contents of its value parameters and V
side by side, two products per head,

    J_i P -> [X V]' J_i P = [Phi_i, S_i]          and          G_i = (J_i' V C_i S_i + D_i P)' P,

hold all that its blocks are made of besides the vectors p (x, q) and m of the parameters. Tokens of all sequences are
one axis n.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property

import torch
from torch import Tensor

from hessianlens.layer.head_tangent import HeadTangent, Summands
from hessianlens.losses import LossDerivatives
from hessianlens.operators.exponent_scaling import size_exponents

_FACTORS, _ROOM = 6, 24
"""Factors that meet in an entry, and bits left for sums."""


class HeadEntries:
    """The small matrices of one head.

    Args:
        tangent: The head, centred, and the gradient of the loss.
        loss: Gradient and curvature of the loss.
    """

    def __init__(self, tangent: HeadTangent, loss: LossDerivatives) -> None:
        head = tangent.head
        self.head, self.tangent, self._loss = head, tangent, loss
        self._columns = _ranges({name: port.matrix for name, port in head.score_ports.items()})
        self._contents = _ranges({name: port.content for name, port in head.value_ports.items()})
        self.gradient = loss.gradient.flatten(0, 1)
        self.vectors = {name: port.vector.flatten(0, 1) for name, port in head.score_ports.items()}
        """The vectors of the score parameters, ``[n, .]``."""
        self._between: dict[tuple[HeadEntries, Summands], Tensor] = {}

    def fits(self, room: int) -> bool:
        """Whether queries and keys are plain products, and all that is kept has room, in bytes, and is in range."""
        head, ports = self.head, self.head.score_ports.values()
        if head.value_names or any(port.turn is not None for port in ports):
            return False
        (sequences, rows, length), width = head.weights.shape, sum(p.matrix.shape[2] for p in ports)
        kept = sum(p.content.shape[2] for p in head.value_ports.values()) + head.values.shape[2]
        numbers = sequences * rows * width * max(length, kept, width)
        return numbers * head.values.element_size() <= room and self._in_range()

    def _in_range(self) -> bool:
        limits = torch.finfo(self.head.values.dtype)
        room = (min(math.log2(limits.max), -math.log2(limits.tiny)) - _ROOM) / _FACTORS
        tensors = [self._P, self._left, self.gradient, self.head.weights, *self.vectors.values()]
        return all(abs(exponent) <= room for exponent in size_exponents(tensors))

    @cached_property
    def _P(self) -> Tensor:
        matrices = [port.matrix for port in self.head.score_ports.values()]
        return torch.cat(matrices, 2).div_(self.head.scale)

    @cached_property
    def _left(self) -> Tensor:
        return torch.cat([*(port.content for port in self.head.value_ports.values()), self.head.values], 2)

    @cached_property
    def _seen(self) -> Tensor:
        """Columns of P as changes of the scores, ``[p, s, i, l]``."""
        each = self._P.permute(2, 0, 1)[:, :, None].expand(-1, -1, self.head.weights.shape[1], -1)
        return self.tangent.rows.seen(each.clone(memory_format=torch.contiguous_format))

    @cached_property
    def _response(self) -> Tensor:
        """``[Phi_i, S_i]``, ``[p, s, i, content or feature]``."""
        return _each(self.tangent.rows.jvp(self._seen), self._left)

    @cached_property
    def _curved_response(self) -> Tensor:
        """``C_i S_i``, ``[p, s, i, f]``."""
        S = self._response[..., -self.head.values.shape[2] :]
        return self._loss.curvature.apply(S.clone(memory_format=torch.contiguous_format))

    def columns(self, name: str) -> slice:
        """Where a score parameter stands in P."""
        return self._columns[name]

    def curved(self, readout: Tensor | None) -> Tensor:
        """``C_i S_i`` as the weight in front of a readout sees it, ``[n, p, .]``."""
        return _by_token(self._curved_response if readout is None else self._curved_response @ readout.T)

    def functional_response(self, value: str) -> Tensor:
        """``Phi_i`` of a value parameter, ``[n, p, content]``."""
        return _by_token(self._response[..., self._contents[value]])

    def between(self, other: HeadEntries, parts: Summands) -> Tensor:
        """``G_i`` between the scores of this head and another one, ``[n, p, column of the other's P]``."""
        if (other, parts) not in self._between:
            vjp = _each(self._curved_response, other.head.values.mT) if parts.outer else None
            scores = self._seen if parts.functional and other is self else None
            found = _each(other.tangent.rows.vjp(vjp, scores), other._P)
            self._between[other, parts] = _by_token(found)
        return self._between[other, parts]


def _ranges(tensors: Mapping[str, Tensor]) -> dict[str, slice]:
    """Where tensors stand that are put beside each other along their last axis."""
    found, start = {}, 0
    for name, tensor in tensors.items():
        found[name] = slice(start, start + tensor.shape[2])
        start += tensor.shape[2]
    return found


def _each(rows: Tensor, matrices: Tensor) -> Tensor:
    """``[p, s, i, .]`` times a matrix ``[s, ., .]`` of every sequence: one product per sequence."""
    p, s, i, _ = rows.shape
    found = torch.bmm(rows.transpose(0, 1).reshape(s, p * i, -1), matrices)
    return found.view(s, p, i, -1).transpose(0, 1)


def _by_token(found: Tensor) -> Tensor:
    """``[p, s, i, .]`` as ``[n, p, .]``, tokens of all sequences being one axis."""
    return found.permute(1, 2, 0, 3).flatten(0, 1)
