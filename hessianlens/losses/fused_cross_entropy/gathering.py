"""Where results of chunks of tokens are put together: features side by side, weights and biases summed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hessianlens.derivatives.closed_form import Parts, apply_in_place
from hessianlens.losses.fused_cross_entropy.row_parts import CrossEntropyOperands, TokenRows


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
