"""Entries of a small layer's blocks, in few and large tensor operations.

At small sizes a call costs more than what it computes. With P the matrices of a head's score parameters side by side,
over s, and the contents of its value parameters and V side by side, two products a head,

    [X V]' J_i P = [Phi_i, S_i]          and          P' D_i P,

hold all that its blocks are made of besides the vectors p (x, q) and m of the parameters:

    score, score  sum_i p_i p_i' (x) (S_i' C_i S_i + P' D_i P)
    score, value  sum_i p_i (x) (S_i' C_i (x) m_i + Phi_i' (x) g_i)
    value, value  sum_i m_i m_i' (x) C_i

Each block is one matrix product of vectors with what is left, and most of them come out in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from hessianlens.losses import LossDerivatives, ScalarCurvature, UncoupledCurvature
from hessianlens.operators.ranges import size_exponent
from hessianlens.theory.head_tangent import HeadTangent, Summands

_WORKSPACE_BYTES = 2**23
"""Of what is kept of all tokens at once; beyond, blocks are formed from their closed forms."""
_CHUNK_BYTES = 2**20
"""Of what is formed of some tokens at a time, if the block itself is no larger."""
_FACTORS, _ROOM = 6, 24
"""Factors that meet in an entry, and bits left for sums."""

Place = tuple[int, str]


class HeadEntries:
    """What the blocks of one head are made of; tokens of all sequences are one axis n.

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

    @property
    def fits(self) -> bool:
        """Whether its scores have no positions, and all that is kept has room and is in range."""
        head, ports = self.head, self.head.score_ports.values()
        if any(port.query_turn is not None or port.key_turn is not None for port in ports):
            return False
        (sequences, rows, length), width = head.weights.shape, sum(p.matrix.shape[2] for p in ports)
        kept = sum(p.content.shape[2] for p in head.value_ports.values()) + head.values.shape[2]
        numbers = sequences * rows * width * max(length, kept, width)
        return numbers * head.values.element_size() <= _WORKSPACE_BYTES and self._in_range()

    def _in_range(self) -> bool:
        head, limits = self.head, torch.finfo(self.head.values.dtype)
        room = (min(math.log2(limits.max), -math.log2(limits.tiny)) - _ROOM) / _FACTORS
        tensors = [self._P, self._left, self.gradient, *(p.vector for p in head.score_ports.values())]
        return all(abs(size_exponent(tensor)) <= room for tensor in tensors)

    @cached_property
    def _P(self) -> Tensor:
        matrices = [port.matrix for port in self.head.score_ports.values()]
        return torch.cat(matrices, 2) / self.head.scale

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
        """``[Phi_i, S_i]``, ``[p, n, content or feature]``."""
        return (self.tangent.rows.pushed(self._seen) @ self._left).flatten(1, 2)

    @cached_property
    def S(self) -> Tensor:
        """``S_i = V' J_i P``, ``[p, n, f]``."""
        return self._response[..., -self.head.values.shape[2] :]

    @cached_property
    def bent(self) -> Tensor:
        """``C_i S_i``, the same."""
        by_sequence = self.S.unflatten(1, self.head.weights.shape[:2])
        return self._loss.curvature.apply(by_sequence.clone()).flatten(1, 2)

    @cached_property
    def activation_part(self) -> Tensor:
        """``P' D_i P``, ``[p, n, p]``."""
        return (self.tangent.rows.pulled(None, self._seen) @ self._P).flatten(1, 2)

    def columns(self, name: str) -> slice:
        """Where a score parameter stands in P."""
        return self._columns[name]

    def functional_response(self, value: str, score: str) -> Tensor:
        """``Phi_i``, ``[., n, content]``."""
        return self._response[self._columns[score], :, self._contents[value]]


class LayerEntries:
    """Entries of the blocks of a layer.

    Args:
        heads: Its heads.
        loss: Gradient and curvature of the loss.
    """

    def __init__(self, heads: Sequence[HeadTangent], loss: LossDerivatives) -> None:
        self._heads, self._loss = [HeadEntries(head, loss) for head in heads], loss
        self._between: dict[tuple[int, int, Summands], Tensor | None] = {}

    @cached_property
    def _fit(self) -> bool:
        return isinstance(self._loss.curvature, UncoupledCurvature) and all(head.fits for head in self._heads)

    def block(self, row: Place, column: Place, parts: Summands) -> Tensor | None:
        """``[a, b, c, d]``; None where it takes the closed form of the block."""
        if not self._fit:
            return None
        (h, own), (k, other) = row, column
        scores, more_scores = own in self._heads[h].head.score_ports, other in self._heads[k].head.score_ports
        if scores and more_scores:
            return self._score_score(row, column, parts)
        if scores:
            return self._score_value(row, column, parts)
        if more_scores:
            return self._score_value(column, row, parts).permute(2, 3, 0, 1)
        return self._value_value(row, column, parts)

    def _between_scores(self, h: int, k: int, parts: Summands) -> Tensor | None:
        """``S_i' C_i S_i + P' D_i P`` between two heads, ``[n, p, p]``."""
        if (h, k, parts) not in self._between:
            found = None
            if parts.outer:
                found = self._heads[h].S.transpose(0, 1) @ self._heads[k].bent.permute(1, 2, 0)
            if parts.functional and h == k:
                own = self._heads[h].activation_part.transpose(0, 1)
                found = own if found is None else found.add_(own)
            self._between[h, k, parts] = found
        return self._between[h, k, parts]

    def _score_score(self, row: Place, column: Place, parts: Summands) -> Tensor:
        (h, own), (k, other) = row, column
        one, two = self._heads[h], self._heads[k]
        ports = one.head.score_ports[own], two.head.score_ports[other]
        if (ports[0].vector_axis, ports[1].vector_axis) == (1, 0):
            return self._score_score(column, row, parts).permute(2, 3, 0, 1)
        between = self._between_scores(h, k, parts)
        left, right = (port.vector.flatten(0, 1) for port in ports)
        if between is None:
            shape = [s for p in ports for s in _parameter_shape(p.vector_axis, p.vector.shape[2], p.matrix.shape[2])]
            found = left.new_zeros(shape)
        else:
            corner = between[:, one.columns(own), two.columns(other)]
            found = _kronecker(left, right, corner, (ports[0].vector_axis, ports[1].vector_axis))
        if parts.t_functional and h == k and one.head.score_pair == (own, other):
            torch.diagonal(found, dim1=1, dim2=3).add_(one.tangent.score_pair_gradient[..., None])
        return found

    def _score_value(self, score: Place, value: Place, parts: Summands) -> Tensor:
        (h, own), (k, other) = score, value
        one, two = self._heads[h], self._heads[k]
        port, behind = one.head.score_ports[own], two.head.value_ports[other]
        vector, m, readout = port.vector.flatten(0, 1), behind.vector.flatten(0, 1), behind.readout
        # in the order of tokens, for products to come out in it
        bent = one.bent[one.columns(own)].transpose(0, 1).contiguous() if parts.outer else None
        bent = bent if bent is None or readout is None else bent @ readout.T
        phi = one.functional_response(other, own).transpose(0, 1).contiguous() if parts.functional and h == k else None
        g = one.gradient if readout is None else one.gradient @ readout.T

        def rest(at: slice) -> Tensor:
            outer = None if bent is None else bent[at, :, None] * m[at, None, :, None]
            if phi is None:
                assert outer is not None
                return outer
            return (
                phi[at, :, :, None] * g[at, None, None]
                if outer is None
                else outer.addcmul_(phi[at, :, :, None], g[at, None, None])
            )

        shape = (port.matrix.shape[2], m.shape[1], behind.width)
        if bent is None and phi is None:
            found = vector.new_zeros(vector.shape[1], *shape)
        else:
            found = _summed(vector, rest, shape)
        return found if port.vector_axis == 0 else found.transpose(0, 1)

    def _value_value(self, row: Place, column: Place, parts: Summands) -> Tensor:
        (h, own), (k, other) = row, column
        ports = self._heads[h].head.value_ports[own], self._heads[k].head.value_ports[other]
        (left, right), curvature = (port.vector.flatten(0, 1) for port in ports), self._loss.curvature
        assert isinstance(curvature, UncoupledCurvature)
        found = left.new_zeros(left.shape[1], ports[0].width, right.shape[1], ports[1].width)
        if parts.outer and isinstance(curvature, ScalarCurvature) and all(port.readout is None for port in ports):
            gram = left.T @ (right * curvature.values.reshape(-1, 1))
            torch.diagonal(found, dim1=1, dim2=3).copy_(gram[..., None].expand(-1, -1, ports[0].width))
        elif parts.outer:
            eye = torch.eye(self._loss.gradient.shape[2], dtype=left.dtype, device=left.device)
            R, Q = (eye if port.readout is None else port.readout for port in ports)
            if isinstance(curvature, ScalarCurvature):
                gram = left.T @ (right * curvature.values.reshape(-1, 1))
                torch.mul(gram[:, None, :, None], (R @ Q.T)[None, :, None, :], out=found)
            else:
                sequences = ports[0].vector.shape[0]
                C = curvature.between(*(side.expand(sequences, -1, -1) for side in (R, Q))).flatten(0, 1)
                found = _kronecker(left, right, C).contiguous()
        head = self._heads[h].head
        if parts.functional and h == k and head.value_pair == (own, other):
            torch.diagonal(found, dim1=1, dim2=2).add_((left.T @ self._heads[h].gradient)[..., None])
        elif parts.functional and h == k and head.value_pair == (other, own):
            torch.diagonal(found, dim1=0, dim2=3).add_((right.T @ self._heads[h].gradient).T[..., None])
        return found


def _parameter_shape(axis: int, contracted: int, other: int) -> tuple[int, int]:
    return (contracted, other) if axis == 0 else (other, contracted)


def _ranges(tensors: Mapping[str, Tensor]) -> dict[str, slice]:
    """Where tensors stand that are put beside each other along their last axis."""
    found, start = {}, 0
    for name, tensor in tensors.items():
        found[name] = slice(start, start + tensor.shape[2])
        start += tensor.shape[2]
    return found


def _kronecker(left: Tensor, right: Tensor, between: Tensor, axes: tuple[int, int] = (0, 0)) -> Tensor:
    """``sum_n left[n,a] between[n,b,d] right[n,c]`` as ``[a, b, c, d]``, if both vectors are on the first axis.

    With `axes` (0, 1) the right one is on the second, ``[a, b, d, c]``, and with (1, 1) both are, ``[b, a, d, c]``.
    """
    if axes == (0, 1):
        shape = (*between.shape[1:], right.shape[1])
        return _summed(left, lambda at: between[at, :, :, None] * right[at, None, None], shape)
    both = (left[:, :, None] * right[:, None]).flatten(1)
    if axes == (1, 1):
        found = _summed(between.flatten(1), lambda at: both[at], both.shape[1:])
        return found.view(*between.shape[1:], left.shape[1], right.shape[1]).permute(0, 2, 1, 3)
    found = _summed(both, lambda at: between[at], between.shape[1:])
    return found.view(left.shape[1], right.shape[1], *between.shape[1:]).permute(0, 2, 1, 3)


def _summed(vectors: Tensor, rest: Callable[[slice], Tensor], shape: Sequence[int]) -> Tensor:
    """``sum_n vectors[n,a] rest[n,...]``, with the rest formed for some tokens at a time."""
    numbers = math.prod(shape)
    step = max(1, _CHUNK_BYTES // (numbers * vectors.element_size()), vectors.shape[1] // 2)
    if step >= len(vectors):
        found = vectors.T @ rest(slice(None)).reshape(-1, numbers)
    else:
        found = vectors.new_zeros(vectors.shape[1], numbers)
        for start in range(0, len(vectors), step):
            at = slice(start, start + step)
            found.addmm_(vectors[at].T, rest(at).reshape(-1, numbers))
    return found.view(-1, *shape)
