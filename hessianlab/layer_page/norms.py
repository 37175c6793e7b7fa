"""The norm of a block, where there is a number for it."""

from __future__ import annotations

import math

from hessianlens.errors import InputError
from hessianlens.operators import StructuredOperator


def finite_norm(block: StructuredOperator) -> float | None:
    """The Frobenius norm; None where it leaves the range of floating-point numbers."""
    try:
        norm = float(block.frobenius_norm())
    except InputError:
        return None
    return norm if math.isfinite(norm) else None
