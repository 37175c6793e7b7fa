"""Counted arithmetic: the operations of contraction plans as they run, and the matrix products beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from hessianlens.operators import term


@dataclass(frozen=True)
class Count:
    """Arithmetic operations; a multiply-add counts as two.

    Attributes:
        plans: In contractions, as `hessianlens.operators.term.cost` states them, slice by slice as they ran.
        beside: In matrix products outside contractions: forward pass, factors, autograd.
        matmul: In all matrix products, inside or outside, by PyTorch's own formulas.
        uncounted: A kernel that ran and that these formulas do not cover, by name; the count is then too low.
    """

    plans: float
    beside: float
    matmul: float
    uncounted: str | None = None

    @property
    def total(self) -> float:
        """Plans and the matrix products beside them."""
        return self.plans + self.beside


class _Calls(TorchDispatchMode):
    """Counts the tensor operations that reach the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += 1
        return func(*args, **(kwargs or {}))


class _MatrixProducts(TorchDispatchMode):
    """Operations of matrix products with numbers; a dry run on the meta device computes none."""

    def __init__(self) -> None:
        super().__init__()
        self.operations, self.uncounted = 0.0, None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.is_meta:
            return out
        kind = func.overloadpacket
        if kind in flop_registry:
            self.operations += flop_registry[kind](*args, **(kwargs or {}), out_val=out)
        elif func.namespace == "hessianlens" or "attention" in str(kind):
            self.uncounted = str(kind)
        return out


def calls(run: Callable[[], object]) -> int:
    """Number of tensor operations of one run, views included."""
    with _Calls() as mode:
        run()
    return mode.number


def count(run: Callable[[], object]) -> Count:
    """Run once and count."""
    plans, within = 0.0, 0.0
    execute = term._run

    with _MatrixProducts() as counter:

        def counted(program: term.Program, operands: list[Tensor], coefficient: float) -> Tensor:
            nonlocal plans, within
            before = counter.operations
            out = execute(program, operands, coefficient)
            plans += program.operations
            within += counter.operations - before
            return out

        with mock.patch.object(term, "_run", counted):
            run()
    return Count(plans, counter.operations - within, counter.operations, counter.uncounted)


def operations(run: Callable[[], object]) -> float | None:
    """Arithmetic operations of one run; None where a kernel was used whose operations are not counted."""
    found = count(run)
    return None if found.uncounted else found.total
