"""Checks of the arguments that models share."""

from __future__ import annotations

import math
from numbers import Integral, Real

import torch

from hessianlens.errors import InputError, expect


def check_count(name: str, value: object) -> int:
    """A positive whole number."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 1:
        raise InputError(f"{name}: got {value!r}, expected a whole number of at least 1.")
    return int(value)


def check_number(name: str, value: object, lowest: float = -math.inf, strictly: bool = False) -> float:
    """A finite number, not below `lowest` (or, strictly, above it)."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise InputError(f"{name}: got {value!r}, expected a finite number.")
    number = float(value)
    wanted = f"above {lowest:g}" if strictly else f"of at least {lowest:g}"
    expect(number > lowest if strictly else number >= lowest, f"{name}: got {value!r}, expected a number {wanted}.")
    return number


def check_seed(seed: object) -> int:
    """A whole number that a generator takes as its seed."""
    if isinstance(seed, bool) or not isinstance(seed, Integral) or not 0 <= int(seed) < 2**63:
        raise InputError(f"seed: got {seed!r}, expected a whole number from 0 to 2**63 - 1.")
    return int(seed)


def check_dtype(dtype: object) -> torch.dtype:
    """A floating dtype."""
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise InputError(f"dtype: got {dtype!r}, expected a floating dtype such as torch.float64.")
    return dtype
