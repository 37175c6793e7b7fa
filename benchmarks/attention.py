"""Attention by itself: a product with its Hessian, and its gradient, against PyTorch's kernels.

The plain ("math") kernel is the only one of PyTorch with a second derivative; the fused one has the fastest gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.autograd import grad
from torch.nn import functional as nnf
from torch.nn.attention import SDPBackend, sdpa_kernel

import hessianlens as hl
from benchmarks.harness import Benchmark, Competitor, Report, Run
from benchmarks.results import OURS, Memory, Result
from benchmarks.wording import duration, verdicts

Attend = Callable[..., Tensor]
AGREEMENT = {torch.float32: 1e-4, torch.float64: 1e-10}
_NAME, _MATH, _FUSED = "hessianlens", "PyTorch, plain kernel", "PyTorch, fused kernel"
LESS_MEMORY = 8
"""Times less memory than the plain kernel that a product is to take."""
ROOM = 2e9
"""Bytes within which a product at the largest length is to stay."""


@dataclass(frozen=True)
class AttentionSize:
    """How large an attention is.

    Attributes:
        heads: Heads of one sequence.
        length: Queries, and keys.
        width: Of a query, key or value.
        causal: Whether a query sees no key behind it.
        dtype: Of all of them.
    """

    heads: int = 12
    length: int = 2048
    width: int = 64
    causal: bool = False
    dtype: torch.dtype = torch.float32

    def describe(self) -> dict[str, int | str]:
        """The sizes by name."""
        dtype = str(self.dtype).removeprefix("torch.")
        return {"heads": self.heads, "L": self.length, "d_head": self.width, "causal": self.causal, "dtype": dtype}


class AttentionProblem:
    """Queries, keys and values, a square loss of what attention makes of them, and a direction, from a fixed seed."""

    def __init__(self, size: AttentionSize) -> None:
        generator = torch.Generator().manual_seed(1)
        shape = (1, size.heads, size.length, size.width)

        def drawn() -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(size.dtype)

        self.size = size
        self.leaves = [drawn().requires_grad_() for _ in range(3)]
        self.direction, self._targets = [drawn() for _ in range(3)], drawn()

    def gradient(self, attend: Attend, graph: bool = False) -> tuple[Tensor, ...]:
        """The gradient with respect to queries, keys and values."""
        out = attend(*self.leaves, is_causal=self.size.causal)
        return grad((out - self._targets).square().sum(), self.leaves, create_graph=graph)

    def product(self, attend: Attend) -> Tensor:
        """The Hessian times the direction, by double backward."""
        return _flat(grad(self.gradient(attend, graph=True), self.leaves, self.direction))


def _flat(parts: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


def _math(*tensors: Tensor, is_causal: bool) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return nnf.scaled_dot_product_attention(*tensors, is_causal=is_causal)


def _product(attend: Attend, problem: AttentionProblem) -> Run:
    return lambda: problem.product(attend)


def _gradient(attend: Attend, problem: AttentionProblem) -> Run:
    return lambda: _flat(problem.gradient(attend))


def check(outputs: Mapping[str, object]) -> None:
    """All answers are those of the first, relative to its length."""
    first, *others = ((name, out) for name, out in outputs.items() if isinstance(out, Tensor))
    for name, out in others:
        gap = float((out - first[1]).double().norm() / first[1].double().norm())
        if not gap <= AGREEMENT[out.dtype]:
            raise AssertionError(f"{name} differs from {first[0]} by {gap:.2g} of its length.")


def memory_note(memory: Mapping[str, Memory], goal: float = LESS_MEMORY, other: str = _MATH) -> list[str]:
    """How much less memory a run takes than another one, and whether that is enough."""
    if not {_NAME, other} <= set(memory):
        return []
    ratio = memory[other].run / max(memory[_NAME].run, 1)
    state = "met" if ratio >= goal else "NOT met"
    return [f"At the peak it takes {ratio:.3g} times less memory than with {other}; goal {goal:g}, {state}."]


def _report_product(problem: object, outputs: object, result: Result, quick: bool) -> Report:
    return {}, [*verdicts(result), *memory_note(result.memory)]


def _report_gradient(problem: object, outputs: object, result: Result, quick: bool) -> Report:
    fused = result.timing(_FUSED).ratio.median
    return {}, [*verdicts(result), f"The gradient takes {1 / fused:.2g} times as long as that of the fused kernel."]


def _report_long(problem: object, outputs: object, result: Result, quick: bool) -> Report:
    ours, notes = result.timings[0], []
    if _NAME in result.memory:
        peak = result.memory[_NAME].run
        state = "met" if peak <= ROOM else "NOT met"
        notes = [f"A product takes {peak / 1e9:.2g} GB at its peak; goal {ROOM / 1e9:g} GB, {state}."]
    gradients = 1 / result.timing(_FUSED).ratio.median
    took = f"A product takes {duration(ours.seconds.median)}, {gradients:.2g} gradients of the fused kernel."
    return {"gradients": gradients}, [*notes, took]


_TINY = AttentionSize(heads=2, length=5, width=3, dtype=torch.float64)


def _nothing_to_compare(outputs: Mapping[str, object]) -> None:
    """A product and a gradient are different things."""


BENCHMARKS = (
    Benchmark(
        name="attention_product",
        title="A product with the Hessian of attention, forward pass included",
        size=AttentionSize(),
        tiny=_TINY,
        make=AttentionProblem,
        competitors=(
            Competitor(_NAME, partial(_product, hl.scaled_dot_product_attention), OURS),
            Competitor(_MATH, partial(_product, _math)),
        ),
        check=check,
        report=_report_product,
        target=2.5,
        against=_MATH,
        rounds=5,
        memory=(_NAME, _MATH),
    ),
    Benchmark(
        name="attention_gradient",
        title="The gradient of attention, forward pass included",
        size=AttentionSize(),
        tiny=_TINY,
        make=AttentionProblem,
        competitors=(
            Competitor(_NAME, partial(_gradient, hl.scaled_dot_product_attention), OURS),
            Competitor(_FUSED, partial(_gradient, nnf.scaled_dot_product_attention)),
            Competitor(_MATH, partial(_gradient, _math)),
        ),
        check=check,
        report=_report_gradient,
        target=0.5,
        against=_FUSED,
        rounds=9,
        memory=(_NAME, _FUSED, _MATH),
    ),
    Benchmark(
        name="attention_product_long",
        title="A product with the Hessian of long attention, in gradients of the fused kernel",
        size=AttentionSize(length=8192, causal=True),
        tiny=AttentionSize(heads=2, length=5, width=3, causal=True, dtype=torch.float64),
        make=AttentionProblem,
        competitors=(
            Competitor(_NAME, partial(_product, hl.scaled_dot_product_attention), OURS),
            Competitor(_FUSED, partial(_gradient, nnf.scaled_dot_product_attention)),
        ),
        check=_nothing_to_compare,
        report=_report_long,
        target=0.1,
        against=_FUSED,
        rounds=1,
        memory=(_NAME,),
    ),
)
