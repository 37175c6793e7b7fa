"""Cross-entropy of a linear map as a closed form of features, weight and bias.

With ``z = cap(s (H W^T + b))`` and ``p = softmax(z)`` the gradient of ``sum_i g_i l_i`` at the linear map is
``r = g cap' (m p - t)``. Along a change u of the linear map it changes by

    cap' g m (diag(p) - p p^T) cap' u    and    cap'' g (m p - t) u,

the first of which is the Gauss-Newton part at the logits, and the second, with what r gives to changed weights, the
functional one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from hessianlens.derivatives.closed_form import ClosedForm, Parts, apply_in_place, own_precision
from hessianlens.derivatives.one_operation import Operation
from hessianlens.losses.fused_cross_entropy.row_parts import CrossEntropyOperands, CrossEntropyRule, TokenRows, rows


class StackedRows:
    """A tensor ``[token, ...]`` of which every chunk gives some rows.

    On the meta device two chunks are run for all of them (`rows`): their rows are replaced by two parts of the whole
    tensor, which take as much memory as the rows of all chunks and are put together in the same way.
    """

    def __init__(self, x: CrossEntropyOperands) -> None:
        self._tokens = len(x.h)
        self._parts: list[Tensor] = []

    def add(self, part: Tensor) -> None:
        """Rows of the next chunk."""
        if part.is_meta and len(part) < self._tokens:
            self._parts = [part.new_empty(count, *part.shape[1:]) for count in (1, self._tokens - 1)]
        else:
            self._parts.append(part)

    def whole(self) -> Tensor:
        """All rows."""
        return torch.cat(self._parts)


class CrossEntropyGradients:
    """Gradients with respect to features, weight and bias, of which some are wanted."""

    def __init__(self, x: CrossEntropyOperands, scale: float, wanted: Sequence[bool]) -> None:
        self._x, self._scale, self._wanted = x, scale, wanted
        self._features = StackedRows(x)
        self._weight: Tensor | None = None
        self._bias: Tensor | None = None

    def add(
        self, rows: TokenRows, linear: Tensor | None, crossed: Tensor | None = None, change: Parts = (None,) * 3
    ) -> None:
        """Adds ``R W`` and ``R^T H`` for the R at the linear map, and with a change of them ``S dW`` and ``S^T dH``."""
        moved = None if change[0] is None else change[0][rows.chunk]
        pairs = ((linear, self._x.weight, rows.h), (crossed, change[1], moved))
        features: Tensor | None = None
        for at, weight, h in pairs:
            if at is None:
                continue
            if self._wanted[0] and weight is not None:
                features = at @ weight if features is None else apply_in_place(features, "addmm", at, weight)
            if self._wanted[1] and h is not None:
                self._weight = at.mT @ h if self._weight is None else apply_in_place(self._weight, "addmm", at.mT, h)
        if self._wanted[0]:
            self._features.add(rows.h.new_zeros(rows.h.shape) if features is None else features)
        if self._wanted[2] and linear is not None:
            self._bias = linear.sum(0) if self._bias is None else apply_in_place(self._bias, "add", linear.sum(0))

    def whole(self) -> Parts:
        """The three, None where not wanted."""
        weight = None
        if self._wanted[1]:
            weight = torch.zeros_like(self._x.weight) if self._weight is None else self._weight
        bias = None
        if self._wanted[2]:
            bias = self._x.h.new_zeros(len(self._x.weight)) if self._bias is None else self._bias
        features = self._features.whole() if self._wanted[0] else None
        return tuple(x if x is None or self._scale == 1 else x * self._scale for x in (features, weight, bias))


cross_entropy = Operation(
    "linear_cross_entropy", "Tensor hidden, Tensor weight, Tensor? bias, Tensor targets, Tensor? classes"
)
"""The losses of all tokens, for a `CrossEntropyForm` and the tensors of `CrossEntropyOperands`."""


class Part(Enum):
    """Which part of a second derivative: all of it, that of Gauss and Newton at the logits, or the rest."""

    FULL = "full"
    OUTER = "outer"
    FUNCTIONAL = "functional"


@dataclass(frozen=True)
class CrossEntropyForm(ClosedForm):
    """``l(H, W, b)``, token by token.

    Attributes:
        rule: What is computed.
    """

    rule: CrossEntropyRule

    inputs, fixed, name = 3, 2, "linear_cross_entropy"
    instead = "torch's cross_entropy(linear(...)), which holds the logits"

    def value(self, *tensors: Any) -> Tensor:
        """L."""
        return _value(CrossEntropyOperands(*tensors), self.rule)

    def jvp(self, *tensors: Any, change: Parts) -> Tensor:
        """``dl = <m p - t, cap' u>``."""
        return _jvp(CrossEntropyOperands(*tensors), self.rule, change)

    def vjp(self, *tensors: Any, g: Tensor, wanted: Sequence[bool]) -> Parts:
        """``s r W``, ``s r^T H`` and ``s sum_i r_i``."""
        return _vjp(CrossEntropyOperands(*tensors), self.rule, g, wanted)

    def hvp(
        self,
        *tensors: Any,
        g: Tensor,
        change: Parts,
        wanted: Sequence[bool],
        pushing: bool,
        of_g: Tensor | None = None,
        part: Part = Part.FULL,
    ) -> Parts:
        """With r' how r changes: ``s (r' W + r dW)``, ``s (r'^T H + r^T dH)``, ``s sum_i r'_i``; and ``dl``."""
        return _hvp(CrossEntropyOperands(*tensors), self.rule, g, change, wanted, pushing, of_g, part)

    def second_jvp(self, *tensors: Any, first: Parts, second: Parts) -> Tensor:
        """The second derivative of l, token by token."""
        return _second_jvp(CrossEntropyOperands(*tensors), self.rule, first, second)


@own_precision
def _value(x: CrossEntropyOperands, rule: CrossEntropyRule) -> Tensor:
    found = StackedRows(x)
    for piece in rows(x, rule):
        found.add(piece.loss())
    return found.whole()


@own_precision
def _jvp(x: CrossEntropyOperands, rule: CrossEntropyRule, change: Parts) -> Tensor:
    found = StackedRows(x)
    for piece in rows(x, rule):
        u = piece.change(change)
        found.add(x.h.new_zeros(len(piece.h)) if u is None else piece.jvp(piece.capped(u)))
    return found.whole()


@own_precision
def _vjp(x: CrossEntropyOperands, rule: CrossEntropyRule, g: Tensor, wanted: Sequence[bool]) -> Parts:
    found = CrossEntropyGradients(x, rule.scale, wanted)
    for piece in rows(x, rule):
        found.add(piece, piece.slope(g[piece.chunk]))
    return found.whole()


@own_precision
def _hvp(
    x: CrossEntropyOperands,
    rule: CrossEntropyRule,
    g: Tensor,
    change: Parts,
    wanted: Sequence[bool],
    pushing: bool,
    of_g: Tensor | None,
    part: Part,
) -> Parts:
    found, moved = CrossEntropyGradients(x, rule.scale, wanted), StackedRows(x)
    for piece in rows(x, rule):
        above, u = g[piece.chunk], piece.change(change)
        v = None if u is None else piece.capped(u)
        if pushing:
            moved.add(x.h.new_zeros(len(piece.h)) if v is None else piece.jvp(v))
        crosses = (change[1] is not None and wanted[0]) or (change[0] is not None and wanted[1])
        crossed = piece.slope(above) if crosses and part is not Part.OUTER else None
        turned = None if u is None or v is None else _turned(piece, rule, above, u, v, part)
        if of_g is not None:
            more = piece.slope(of_g[piece.chunk])
            turned = more if turned is None else turned + more
        found.add(piece, turned, crossed, change)
    return (*found.whole(), moved.whole() if pushing else None)


def _turned(piece: TokenRows, rule: CrossEntropyRule, g: Tensor, u: Tensor, v: Tensor, part: Part) -> Tensor | None:
    """r', or the part of it that is asked for; u and v are written over."""
    outer = None if part is Part.FUNCTIONAL else piece.capped(piece.turned(g, v))
    if rule.softcap is None or part is Part.OUTER:
        return outer
    through = piece.curved(piece.slope(g, linear=False), u)
    return through if outer is None else outer + through


@own_precision
def _second_jvp(x: CrossEntropyOperands, rule: CrossEntropyRule, first: Parts, second: Parts) -> Tensor:
    found = StackedRows(x)
    for piece in rows(x, rule):
        total = x.h.new_zeros(len(piece.h))
        ones = torch.ones_like(total)
        u, t = piece.change(first), piece.change(second)
        if u is not None and t is not None:
            hvp = piece.turned(ones, piece.capped(u).clone())
            total = total + (hvp * piece.capped(t)).sum(-1)
            if rule.softcap is not None:
                total = total + (piece.curved(piece.slope(ones, linear=False), u) * t).sum(-1)
        crossed = piece.crossed(first, second)
        if crossed is not None:
            total = total + (piece.slope(ones) * crossed).sum(-1)
        found.add(total)
    return found.whole()
