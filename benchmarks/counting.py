"""Counted arithmetic: the operations of contraction plans as they run, and the matrix products beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from hessianlens.operators import term


@dataclass(frozen=True)
class Count:
    """Arithmetic operations; a multiply-add counts as two.

    Attributes:
        plans: In contractions, as `hessianlens.operators.term.cost` states them, slice by slice as they ran.
        beside: In matrix products outside contractions: forward pass, factors, autograd.
        matmul: In all matrix products, inside or outside, by PyTorch's own counter.
    """

    plans: float
    beside: float
    matmul: float

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


def calls(run: Callable[[], object]) -> int:
    """Number of tensor operations of one run, views included."""
    with _Calls() as mode:
        run()
    return mode.number


def count(run: Callable[[], object]) -> Count:
    """Run once and count."""
    plans, within = 0.0, 0.0
    execute = term._run

    with FlopCounterMode(display=False) as counter:

        def counted(program: term.Program, operands: list[Tensor], coefficient: float) -> Tensor:
            nonlocal plans, within
            before = counter.get_total_flops()
            out = execute(program, operands, coefficient)
            plans += program.operations
            within += counter.get_total_flops() - before
            return out

        with mock.patch.object(term, "_run", counted):
            run()
        total = float(counter.get_total_flops())
    return Count(plans, total - within, total)
