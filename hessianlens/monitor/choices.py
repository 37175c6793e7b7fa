"""What can be asked of a watched run; checked without torch, so that a typing error is answered at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hessianlens.errors import check_choice, check_flag, check_number, check_seed, check_that, check_whole, expect

QUANTITIES = ("top", "trace", "norm", "negative", "gradient", "weight", "entropy", "edge")
"""What can be watched."""


@dataclass(frozen=True)
class Effort:
    """How much goes into the numbers of one matrix.

    Attributes:
        probes: Random vectors for trace, norm and negative share; the same at every measurement.
        steps: Lanczos steps from each; each is one product.
        tol: Residual of the largest eigenvalue over its size.
        most: Products for the largest eigenvalue at most.
        seed: Seed of the vectors.
        warm: Whether the search for an eigenvalue begins where the last one ended.
    """

    probes: int = 4
    steps: int = 6
    tol: float = 0.05
    most: int = 60
    seed: int = 0
    warm: bool = True


def check_quantities(asked: str | Sequence[str]) -> tuple[str, ...]:
    """Names of quantities, in the order in which they are measured.

    >>> check_quantities(["edge", "top"])
    ('top', 'edge')
    """
    check_that(isinstance(asked, Sequence), "quantities", asked, f"some of {', '.join(QUANTITIES)}")
    names = [asked] if isinstance(asked, str) else list(asked)
    for name in names:
        check_choice("quantities", name, QUANTITIES)
    expect(bool(names), f"quantities: got none, expected some of {', '.join(QUANTITIES)}.")
    return tuple(name for name in QUANTITIES if name in names)


def make_effort(probes: int, steps: int, tol: float, *, seed: int = 0, warm: bool = True) -> Effort:
    """How much goes into a measurement, checked."""
    check_whole("probes", probes, 2, why="the interval is their spread")
    check_whole("steps", steps, 2, why="a norm takes two")
    check_number("tol", tol, 0.0, strictly=True)
    check_flag("warm", warm)
    return Effort(probes, steps, tol, seed=check_seed(seed), warm=warm)
