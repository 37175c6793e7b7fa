"""Both parts of a curvature between two sites of a network: at every position, or between those of a sequence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlens.layer.attention_core import each_alone


@dataclass(frozen=True, eq=False)
class Parts:
    """The Gauss-Newton part of a matrix by positions, and the rest, if any.

    Where no two positions are coupled, a matrix at each of them, ``[position, feature, feature]``; else for every
    position and feature those of the whole sequence side by side, ``[position, feature, position feature]``. What acts
    on the first feature, position by position, is the same for both.

    Attributes:
        ggn: The Gauss-Newton part.
        functional: The rest.
        length: Positions of a sequence that are coupled; 0 where none are.
    """

    ggn: Tensor
    functional: Tensor | None = None
    length: int = 0

    def __add__(self, other: Parts) -> Parts:
        length = self.length or other.length
        one, two = (self.coupled(length), other.coupled(length)) if length else (self, other)
        given = [part for part in (one.functional, two.functional) if part is not None]
        return Parts(one.ggn + two.ggn, given[0] + given[1] if len(given) == 2 else next(iter(given), None), length)

    def add_(self, other: Parts, transposed: bool = False) -> bool:
        """Add another one, or its transpose, in place; False where there is no room for it."""
        if (other.length and not self.length) or (other.functional is not None and self.functional is None):
            return False
        for own, more in ((self.ggn, other.ggn), (self.functional, other.functional)):
            if own is None or more is None:
                continue
            if not self.length:
                own += more.mT if transposed else more
            elif other.length:
                by_sequence = self.by_sequence(more)
                self.by_sequence(own).add_(by_sequence.permute(0, 3, 4, 1, 2) if transposed else by_sequence)
            else:
                given = _sequences(more.mT if transposed else more, self.length)
                self.by_sequence(own).diagonal(dim1=1, dim2=3).add_(given.movedim(1, -1))
        return True

    def plus(self, functional: Tensor) -> Parts:
        """The same with something more in the functional part, of either form."""
        if not self.length or functional.shape[2] == self.ggn.shape[2]:
            own = functional if self.functional is None else self.functional + functional
            return Parts(self.ggn, own, self.length)
        own = torch.zeros_like(self.ggn) if self.functional is None else self.functional.clone()
        by_sequence = own.view(-1, self.length, own.shape[1], self.length, functional.shape[2])
        by_sequence.diagonal(dim1=1, dim2=3).add_(_sequences(functional, self.length).movedim(1, -1))
        return Parts(self.ggn, own, self.length)

    def coupled(self, length: int) -> Parts:
        """The same in the form that couples positions."""
        if self.length == length:
            return self
        return Parts(*self.both(lambda part: each_alone(_sequences(part, length)).flatten(0, 1).flatten(2)), length)

    def uncoupled(self) -> Parts:
        """Its matrices of a position with itself."""
        if not self.length:
            return self
        return Parts(*self.both(lambda part: self.by_sequence(part).diagonal(0, 1, 3).movedim(-1, 1).flatten(0, 1)))

    def by_sequence(self, part: Tensor) -> Tensor:
        """A part as ``[sequence, position, feature, position, feature]``; only where positions are coupled."""
        return part.unflatten(2, (self.length, -1)).unflatten(0, (-1, self.length))

    @property
    def T(self) -> Parts:
        """Transposed."""
        if not self.length:
            return self.each(lambda part: part.mT)
        return self.each(lambda part: self.by_sequence(part).permute(0, 3, 4, 1, 2).flatten(0, 1).flatten(2))

    def by_table(self, rows: Tensor, size: int) -> Parts:
        """The same between rows of a table that positions look up; those of -1 count for nothing.

        Args:
            rows: The row of every position.
            size: Rows of the table.
        """
        one_hot = (rows[:, None] == torch.arange(size, device=rows.device)).to(self.ggn.dtype)
        by_sequence = _sequences(one_hot, self.length)

        def summed(part: Tensor) -> Tensor:
            left = torch.einsum("slv,slbmd->vbsmd", by_sequence, self.by_sequence(part))
            return torch.einsum("smw,vbsmd->vbwd", by_sequence, left).flatten(2)

        return Parts(*self.both(summed), size)

    def over_sequences(self) -> Parts:
        """The sum over all sequences."""
        return Parts(*self.both(lambda part: self.by_sequence(part).sum(0).flatten(2)), self.length)

    def left(self, factor: Tensor) -> Parts:
        """``F A`` with F one matrix, or one a position."""
        return self.each(lambda part: factor @ part)

    def scaled(self, gains: Tensor | None) -> Parts:
        """``diag(w) A`` with w one vector, or one a position; None stands for ones."""
        return self if gains is None else self.each(lambda part: gains[..., None] * part)

    def each(self, turn: Callable[[Tensor], Tensor]) -> Parts:
        """The same done with both parts."""
        return Parts(*self.both(turn), self.length)

    def both(self, turn: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor | None]:
        """Something done with each part, whatever its shape afterwards."""
        return turn(self.ggn), None if self.functional is None else turn(self.functional)

    def matvec(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """Both parts times a vector, ``[position, feature]``."""
        if self.length:
            vector = _sequences(vector, self.length).flatten(1).repeat_interleave(self.length, 0)
        ggn = (self.ggn @ vector[..., None])[..., 0]
        if self.functional is None:
            return ggn, torch.zeros_like(ggn)
        return ggn, (self.functional @ vector[..., None])[..., 0]


def _sequences(by_position: Tensor, length: int) -> Tensor:
    return by_position.unflatten(0, (-1, length))
