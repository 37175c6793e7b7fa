"""One product with the Hessian of a whole layer, against autograd's Hessian-vector products."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.autograd import grad

from benchmarks.dense_hessian import check
from benchmarks.harness import Benchmark, Competitor, Report, Run
from benchmarks.problem import Problem, Size
from benchmarks.results import OURS, SET_UP, Result
from benchmarks.wording import duration, verdicts

BUILDING_GOAL = 3
"""Products in whose time the operator is to be built."""


def direction(problem: Problem) -> Tensor:
    """The vector to be multiplied, flat."""
    generator = torch.Generator().manual_seed(3)
    return torch.randn(sum(w.numel() for w in problem.weights), generator=generator, dtype=torch.float64)


def _ours(problem: Problem) -> Run:
    H, v = problem.hessian().full, direction(problem)
    H @ v  # leaves behind what other products need
    return lambda: H @ v


def _pieces(problem: Problem) -> list[Tensor]:
    parts = direction(problem).split([w.numel() for w in problem.weights])
    return [part.view_as(w) for part, w in zip(parts, problem.weights, strict=True)]


def _graph(problem: Problem) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    leaves = problem.leaves()
    return leaves, grad(problem.loss(*leaves), leaves, create_graph=True)


def _flat(parts: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


def _kept(problem: Problem) -> Run:
    v, (leaves, gradient) = _pieces(problem), _graph(problem)
    return lambda: _flat(grad(gradient, leaves, v, retain_graph=True))


def _fresh(problem: Problem) -> Run:
    v = _pieces(problem)

    def run() -> Tensor:
        leaves, gradient = _graph(problem)
        return _flat(grad(gradient, leaves, v))

    return run


def _set_up(problem: Problem) -> Run:
    return lambda: _ours(problem)


def report(problem: Problem, outputs: Mapping[str, object], result: Result, quick: bool) -> Report:
    """Verdicts, and the cost of building in products."""
    building = result.timing(_SET_UP_NAME).ratio.median - 1
    state = "met" if building <= BUILDING_GOAL else "NOT met"
    own = result.timings[0].seconds.median
    notes = [
        *verdicts(result),
        f"Building takes as long as {building:.1f} products ({duration(building * own)}; goal: {BUILDING_GOAL}), "
        f"{state}; a kept graph {result.timing(_KEPT_SET_UP).ratio.median:.1f}.",
    ]
    return {"set_up_in_products": building}, notes


_SET_UP_NAME = "set-up: hessianlens operator and its first product"
_KEPT_NAME = "double backward, kept graph"
_KEPT_SET_UP = "set-up: kept graph"


def _benchmark(name: str, what: str, size: Size, rounds: int) -> Benchmark:
    return Benchmark(
        name=name,
        title=f"One product with a whole layer, H @ v, {what}",
        size=size,
        tiny=Size(batch=2, length=4, width=3),
        competitors=(
            Competitor("hessianlens, operator built once", _ours, OURS),
            Competitor(_KEPT_NAME, _kept),
            Competitor("double backward, fresh graph", _fresh),
            Competitor(_SET_UP_NAME, _set_up, SET_UP),
            Competitor(_KEPT_SET_UP, lambda problem: lambda: _graph(problem), SET_UP),
        ),
        check=check,
        report=report,
        target=1.2,
        against=_KEPT_NAME,
        rounds=rounds,
    )


BENCHMARKS = (
    _benchmark("layer_product", "a batch", Size(batch=8, length=64, width=128), 60),
    _benchmark("layer_product_medium", "a small batch", Size(batch=4, length=64, width=64), 100),
    _benchmark("layer_product_small", "one small sequence", Size(batch=1, length=17, width=16), 400),
    _benchmark("layer_product_long", "one long sequence", Size(batch=1, length=256, width=256), 60),
    _benchmark("layer_product_many", "many short sequences", Size(batch=64, length=16, width=32), 150),
)
