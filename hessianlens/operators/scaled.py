"""A number beside a power of two: the square of a norm need not fit where the norm does."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlens.errors import InputError

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
