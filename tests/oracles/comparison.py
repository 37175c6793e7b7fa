"""How closeness is judged."""

from __future__ import annotations

from torch import Tensor

RELATIVE = 1e-10


def assert_same(found: Tensor, expected: Tensor, what: str = "", relative: float = RELATIVE) -> None:
    """Equal up to rounding, relative to the norm of what is expected; exactly zero where zero is expected."""
    assert found.shape == expected.shape, f"{what}: shape {tuple(found.shape)}, expected {tuple(expected.shape)}"
    size = float(expected.norm())
    error = float((found - expected).norm())
    assert error <= relative * size, f"{what}: relative error {error / size if size else error:.2e}"
