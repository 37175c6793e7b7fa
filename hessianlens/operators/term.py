"""One summand of a matrix: a coefficient times a product of factors in index notation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from hessianlens.notation import COLUMN_AXES, ROW_AXES
from hessianlens.operators.contraction import contract
from hessianlens.operators.factor import Factor


@dataclass(frozen=True, eq=False)
class Term:
    """A coefficient times a product of factors, summed over every index that is not a row or column axis."""

    coefficient: float
    factors: tuple[Factor, ...]

    def relabel(self, letters: Mapping[int, int | str]) -> Term:
        """The same term under other index letters."""
        return replace(self, factors=tuple(f.relabel(letters) for f in self.factors))

    def contract(self, output: str, *others: Factor) -> Tensor:
        """Contract the term, with further factors, down to `output`."""
        return contract((*self.factors, *others), output, self.coefficient)

    def sliced(self, index: str, start: int, stop: int) -> Term:
        """The part of the sum in which `index` runs over a range."""
        return replace(self, factors=tuple(f.slice(index, start, stop) for f in self.factors))

    def simplified(self) -> Term:
        """The same term without the identities that only rename a summed index."""
        factors = self.factors
        if all(f.tensor is not None for f in factors):
            return self
        for place, factor in enumerate(factors):
            if factor.tensor is None and not set(factor.indices) <= set(ROW_AXES + COLUMN_AXES):
                x, y = sorted(factor.indices, key=(ROW_AXES + COLUMN_AXES).find)
                rest = (*factors[:place], *factors[place + 1 :])
                if any(x in f.indices for f in rest):
                    return replace(self, factors=tuple(f.relabel({ord(x): y}) for f in rest)).simplified()
        return self

    def merged(self, other: Term) -> Term | None:
        """The sum as a single term, where the two differ in a coefficient or in one factor only."""
        if [f.indices for f in self.factors] != [f.indices for f in other.factors]:
            return None
        pairs = list(zip(self.factors, other.factors, strict=True))
        different = [k for k, (f, g) in enumerate(pairs) if f.tensor is not g.tensor]
        if not different:
            return replace(self, coefficient=self.coefficient + other.coefficient)
        if len(different) > 1:
            return None
        (k,) = different
        mine, theirs = pairs[k]
        if mine.tensor is None or theirs.tensor is None or mine.tensor.shape != theirs.tensor.shape:
            return None
        tensor = self.coefficient * mine.tensor + other.coefficient * theirs.tensor
        name = _sum_name((self.coefficient, mine.name), (other.coefficient, theirs.name))
        return Term(1.0, (*self.factors[:k], Factor(name, mine.indices, tensor), *self.factors[k + 1 :]))

    def __str__(self) -> str:
        summed = sorted(set("".join(f.indices for f in self.factors)) - set(ROW_AXES + COLUMN_AXES))
        head = "" if self.coefficient == 1 else f"{self.coefficient:.4g} "
        over = f"sum_{{{','.join(summed)}}} " if summed else ""
        return head + over + " ".join(map(str, self.factors))


def _sum_name(*parts: tuple[float, str]) -> str:
    """A name for a weighted sum of factors, such as ``(0.5 G - Go)``."""
    text = ""
    for coefficient, name in parts:
        size = "" if abs(coefficient) == 1 else f"{abs(coefficient):.4g} "
        sign = (" - " if text else "-") if coefficient < 0 else (" + " if text else "")
        text += f"{sign}{size}{name}"
    return f"({text})"
