"""Numbers and factors with a power of two aside, so that their products and squares stay in the range of their dtype.

A product of factors may well be representable where the product of two of them is not, and the squares in a norm may
leave the range where the norm does not. Powers of two change no digit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hessianlens.errors import InputError
from hessianlens.notation import COLUMN_AXES, ROW_AXES, SEQUENCE
from hessianlens.operators.term import Factor, Term

_MODERATE = 100
"""Bits by which a mantissa may differ from one."""


@dataclass(frozen=True, eq=False)
class Scaled:
    """``mantissa 2^exponent``.

    >>> square = Scaled(torch.tensor(1e-200, dtype=torch.float64), -2000)
    >>> float(Scaled.total([square, square.times(3.0)]).root().number(torch.float64, "norm")) == 2e-100 * 2.0**-1000
    True
    """

    mantissa: Tensor
    exponent: int

    @classmethod
    def total(cls, parts: Iterable[Scaled], device: torch.device | None = None) -> Scaled:
        """The sum of several; of none, zero."""
        listed = [part.even() for part in parts]
        if len(listed) == 1:
            return listed[0]
        top = max((part.exponent for part in listed if float(part.mantissa.detach()) != 0), default=0)
        mantissas = [part.mantissa * math.ldexp(1.0, max(min(part.exponent - top, 0), -2000)) for part in listed]
        zero = torch.zeros((), dtype=torch.float64, device=device)
        return cls(torch.stack(mantissas).sum() if mantissas else zero, top)

    def even(self) -> Scaled:
        """The same number with a mantissa of moderate size, in double precision."""
        value = self.mantissa.double()
        shift = math.frexp(float(value.detach()))[1]
        if abs(shift) < _MODERATE:
            return Scaled(value, self.exponent)
        return Scaled(ldexp(value, -shift), self.exponent + shift)

    def times(self, number: float) -> Scaled:
        """A multiple."""
        return Scaled(self.mantissa.double() * number, self.exponent)

    def root(self) -> Scaled:
        """The square root; of what rounding left below zero, zero."""
        even = self.even()
        odd = even.exponent % 2
        return Scaled((even.mantissa * 2.0**odd).clamp(min=0).sqrt(), (even.exponent - odd) // 2)

    def number(self, dtype: torch.dtype, what: str) -> Tensor:
        """The number itself, refused where a finite one does not fit in `dtype`."""
        even = self.even()
        found = ldexp(even.mantissa, min(even.exponent, 2000)).to(dtype)
        if bool(torch.isinf(found)) and bool(torch.isfinite(even.mantissa)):
            tens = math.log10(abs(float(even.mantissa.detach()))) + even.exponent * math.log10(2)
            wider = "convert the operator's numbers with .double(), or " if dtype != torch.float64 else ""
            raise InputError(
                f"{what}: it is about 10^{tens:.1f}, expected at most {torch.finfo(dtype).max:.2g}, the largest number "
                f"of {dtype}; {wider}scale the matrix down."
            )
        return found


def ldexp(tensor: Tensor, exponent: int) -> Tensor:
    """``tensor 2^exponent``; no step leaves the range of its numbers unless the result does."""
    most = _MODERATE if tensor.dtype != torch.float64 else 1000
    while exponent:
        step = max(-most, min(most, exponent))
        tensor, exponent = tensor * math.ldexp(1.0, step), exponent - step
    return tensor


def largest_entry(values: Tensor) -> float:
    """The largest absolute entry, found without a copy; 1 if all are zero."""
    low, high = values.aminmax()
    return max(-float(low), float(high)) or 1.0


def scale_to_unit_maximum(values: Tensor) -> tuple[Tensor, float]:
    """Values of largest entry 1, and that entry: products of four of them then neither overflow nor underflow."""
    largest = largest_entry(values)
    return values / largest, largest


_ROOM = 24
"""Bits left for sums over indices."""
_SWEEPS = 2
_FACTORS = 3
"""Products of the size of that of some factors which must fit without the exponents being taken out."""


def size_exponent(tensor: Tensor) -> int:
    """E such that the largest entry lies in [2^(e-1), 2^e); 0 where all are zero, or one is not finite."""
    return size_exponents([tensor])[0]


def size_exponents(tensors: Sequence[Tensor]) -> list[int]:
    """The same for some tensors of one kind, asked for at once.

    >>> size_exponents([torch.tensor([0.5, -3.0]), torch.zeros(2)])
    [2, 0]
    """
    largest = torch.stack([torch.linalg.vector_norm(tensor.detach(), math.inf) for tensor in tensors])
    return [math.frexp(number)[1] for number in largest.tolist()]


def exponents_to_factor_out(sizes: Sequence[int], dtype: torch.dtype) -> list[int]:
    """The exponents to take out of factors of these sizes before they are multiplied.

    None at all where no product of them comes near the end of the range: the rest of it is for what else they meet.

    >>> exponents_to_factor_out([3, -2], torch.float64), exponents_to_factor_out([500, 3], torch.float64)
    ([0, 0], [500, 3])
    """
    limit = math.log2(torch.finfo(dtype).max) / _FACTORS
    above, below = (sum(e for e in sizes if e * sign > 0) for sign in (1, -1))
    return [0] * len(sizes) if above <= limit and -below <= limit else list(sizes)


def scale_term(term: Term, exponent: int) -> Term:
    """The term times ``2^exponent``, shared among its factors so that all of them have one size.

    They then fit wherever their product does.
    """
    held = [k for k, f in enumerate(term.factors) if f.tensor is not None]
    if not exponent or not held:
        return Term(math.ldexp(term.coefficient, exponent), term.factors)
    sizes = {k: size_exponent(f.tensor) for k, f in enumerate(term.factors) if f.tensor is not None}
    share, extra = divmod(sum(sizes.values()) + exponent, len(held))
    factors = list(term.factors)
    for place, k in enumerate(held):
        factors[k] = _times(factors[k], share + (place < extra) - sizes[k])
    return Term(term.coefficient, tuple(factors))


def equalise_factors(term: Term, dtype: torch.dtype) -> Term:
    """The same term; with factors of one size, where some of their products might leave the range of `dtype`."""
    held = [k for k, f in enumerate(term.factors) if f.tensor is not None]
    sizes = {k: size_exponent(f.tensor) for k, f in enumerate(term.factors) if f.tensor is not None}
    own = math.frexp(term.coefficient)[1]
    above, below = (sum(e for e in (*sizes.values(), own) if e * sign > 0) for sign in (1, -1))
    limits = torch.finfo(dtype)
    inside = above + _ROOM < math.log2(limits.max) and below - _ROOM > math.log2(limits.tiny)
    if inside or not (above and below):
        return term
    share, extra = divmod(above + below, len(held))
    targets = {k: share + (place < extra) for place, k in enumerate(held)}
    factors = list(term.factors)
    for k in held:
        factors[k] = _times(factors[k], targets[k] - sizes[k])
    return Term(math.ldexp(term.coefficient, -own), tuple(factors))


def normalise_term(term: Term) -> tuple[Term, int]:
    """The term with factors and coefficient of largest entry about one, and the power of two that was taken out.

    In single precision at least: sums over many entries would overflow in half precision.
    """
    own = math.frexp(term.coefficient)[1]
    total, factors = own, []
    for f in term.factors:
        if f.tensor is not None:
            wide = f.tensor if f.tensor.element_size() >= 4 else f.tensor.float()
            size = size_exponent(wide)
            f, total = Factor(f.name, f.indices, ldexp(wide, -size)), total + size
        factors.append(f)
    return Term(math.ldexp(term.coefficient, -own), tuple(factors)), total


def balance_factors(term: Term) -> Term:
    """The same term in double precision with factors of one size for every token: none is large where another is small.

    Wherever one factor vanishes the others are set to zero too, so that they do not set the scale.
    """
    factors = [f if f.tensor is None else Factor(f.name, f.indices, f.tensor.double()) for f in term.factors]
    letters = dict.fromkeys("".join(f.indices for f in factors if f.tensor is not None))
    summed = [x for x in letters if x not in ROW_AXES + COLUMN_AXES]
    groups = [dict.fromkeys((SEQUENCE, x)) for x in summed if x != SEQUENCE] if SEQUENCE in summed else summed
    for group in (*groups, *summed) * _SWEEPS:
        members = [k for k, f in enumerate(factors) if f.tensor is not None and set(group) <= set(f.indices)]
        if len(members) > 1:
            _balance(factors, members, "".join(group))
    return replace(term, factors=tuple(factors))


def _balance(factors: list[Factor], members: list[int], letters: str) -> None:
    """Give every slice along `letters` the same size in all members; their product stays what it is."""
    sizes = [_slice_sizes(factors[k], letters) for k in members]
    alive = torch.stack([size != 0 for size in sizes]).all(0)
    exponents = [torch.frexp(size).exponent.double() for size in sizes]
    mean = torch.stack(exponents).mean(0).floor()
    shifts = [mean - e for e in exponents[:-1]]
    shifts.append(-torch.stack(shifts).sum(0))
    for k, shift in zip(members, shifts, strict=True):
        f = factors[k]
        assert f.tensor is not None
        first, second = torch.exp2((shift / 2).floor()), torch.exp2(shift - (shift / 2).floor())
        tensor = f.tensor * _spread(first, f, letters) * _spread(second, f, letters)
        factors[k] = Factor(f.name, f.indices, torch.where(_spread(alive, f, letters), tensor, 0))


def _slice_sizes(factor: Factor, letters: str) -> Tensor:
    """The largest absolute entry of every slice, axes in the order of `letters`."""
    assert factor.tensor is not None
    order = [factor.indices.index(x) for x in letters]
    rest = [k for k in range(factor.tensor.ndim) if k not in order]
    entries = factor.tensor.detach().abs().permute(*order, *rest)
    return entries.flatten(len(order)).amax(-1) if rest else entries


def _spread(values: Tensor, factor: Factor, letters: str) -> Tensor:
    """Values along `letters` in the shape in which they multiply the factor."""
    present = "".join(x for x in factor.indices if x in letters)
    ordered = values.permute(*(letters.index(x) for x in present))
    return ordered.reshape([n if x in letters else 1 for x, n in zip(factor.indices, factor.shape, strict=True)])


def _times(factor: Factor, exponent: int) -> Factor:
    assert factor.tensor is not None
    return factor if exponent == 0 else Factor(factor.name, factor.indices, ldexp(factor.tensor, exponent))
