"""Checks of the arguments that models share; without torch, so that a command can refuse them at once."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import TYPE_CHECKING

from hessianlens.errors import InputError, check_choice, expect

if TYPE_CHECKING:
    import torch

QUERY_KEY = ("dual", "single")
"""Two query-key matrices a head, or one."""

MLP_ACTIVATION_NAMES = ("relu", "gelu", "gelu_tanh", "silu", "tanh", "linear")
"""What can be named in ``mlp_activation=``; `hessianlens.models.mlp.MLP_ACTIVATIONS` has what it stands for."""


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
    import torch

    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise InputError(f"dtype: got {dtype!r}, expected a floating dtype such as torch.float64.")
    return dtype


def check_norm(norm: object) -> None:
    """The norm is one that a block knows."""
    if norm is not None:
        check_choice("norm (or None for no norm)", norm, ("pre", "post"))


def head_width(d_model: int, heads: int) -> int:
    """The width of a head where none is given."""
    if d_model % heads:
        raise InputError(
            f"heads: got {heads} for d_model = {d_model}, expected a divisor of d_model; otherwise give d_head."
        )
    return d_model // heads
