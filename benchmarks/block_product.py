"""One product with the query block of a wide layer, against autograd's Hessian-vector products of the same block."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.autograd import grad
from torch.func import grad as functional_grad
from torch.func import jvp, linearize

from benchmarks.counting import count
from benchmarks.dense_hessian import check
from benchmarks.harness import Benchmark, Competitor, Report, Run
from benchmarks.problem import Problem, Size
from benchmarks.results import OURS, SET_UP, Result
from benchmarks.wording import duration, operations, times, verdicts
from hessianlens.operators import TokenSum

BUILDING_GOAL = 6
"""Products in whose time the operator is to be built."""
MEMORY_GOAL = 3
"""Memory of building the operator, and of a product, over the size of its factors."""


def direction(problem: Problem) -> Tensor:
    """The vector to be multiplied, flat."""
    generator = torch.Generator().manual_seed(3)
    return torch.randn(problem.weights[0].numel(), generator=generator, dtype=torch.float64)


def operator(problem: Problem) -> TokenSum:
    """The query block, from scratch."""
    block = problem.hessian().full["Q", "Q"]
    assert isinstance(block, TokenSum)
    return block


def _ours(problem: Problem) -> Run:
    block, v = operator(problem), direction(problem)
    block @ v  # leaves behind what other products need
    return lambda: block @ v


def _query_loss(problem: Problem, once: bool) -> Callable[[Tensor], Tensor]:
    """The loss as a function of the query weights; keys and values, which are constants, each time or once."""
    _, W_K, W_V = problem.weights
    if not once:
        return lambda w: problem.loss(w, W_K, W_V)
    keys, values = problem.X @ W_K, problem.X @ W_V
    return lambda w: problem.loss_of_query(w, keys, values)


def _graph(loss: Callable[[Tensor], Tensor], W_Q: Tensor) -> tuple[Tensor, Tensor]:
    leaf = W_Q.clone().requires_grad_()
    (gradient,) = grad(loss(leaf), leaf, create_graph=True)
    return leaf, gradient


def _fresh(once: bool) -> Callable[[Problem], Run]:
    def prepare(problem: Problem) -> Run:
        loss, W_Q = _query_loss(problem, once), problem.weights[0]
        v = direction(problem).view_as(W_Q)

        def run() -> Tensor:
            leaf, gradient = _graph(loss, W_Q)
            return grad(gradient, leaf, v)[0].reshape(-1)

        return run

    return prepare


def _kept(problem: Problem) -> Run:
    W_Q = problem.weights[0]
    v = direction(problem).view_as(W_Q)
    leaf, gradient = _graph(_query_loss(problem, once=True), W_Q)
    return lambda: grad(gradient, leaf, v, retain_graph=True)[0].reshape(-1)


def _forward(once: bool) -> Callable[[Problem], Run]:
    def prepare(problem: Problem) -> Run:
        loss, W_Q = _query_loss(problem, once), problem.weights[0]
        v = direction(problem).view_as(W_Q)
        return lambda: jvp(functional_grad(loss), (W_Q,), (v,))[1].reshape(-1)

    return prepare


def _linearised(problem: Problem) -> Run:
    loss, W_Q = _query_loss(problem, once=True), problem.weights[0]
    v = direction(problem).view_as(W_Q)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.fx, about constants it folds
        _, product = linearize(functional_grad(loss), W_Q)
    return lambda: product(v).reshape(-1)


def _set_up(problem: Problem) -> Run:
    return lambda: _ours(problem)


def _kept_set_up(problem: Problem) -> Run:
    return lambda: _graph(_query_loss(problem, once=True), problem.weights[0])


def _memory_notes(result: Result, size: int) -> tuple[dict[str, float], list[str]]:
    """Peaks over the size of the factors; building is measured by the competitor that only builds."""
    if not result.memory:
        return {}, []
    product, building = result.memory[_OURS_NAME].run, result.memory[_SET_UP_NAME].run
    ratios = {"product": product / size, "building": building / size}
    said = [
        f"{what}: peak {number / 2**20:.3g} MiB = {number / size:.2f} times the {size / 2**20:.3g} MiB of the factors "
        f"(goal: within {MEMORY_GOAL}x), {'met' if number <= MEMORY_GOAL * size else 'NOT met'}."
        for what, number in (("Memory of a product", product), ("Memory of building the operator", building))
    ]
    return ratios, said


def report(problem: Problem, outputs: Mapping[str, object], result: Result, quick: bool) -> Report:
    """Verdicts, cost of the set-up in products, memory, counted arithmetic."""
    size = operator(problem).held_bytes
    ratios, memory_notes = _memory_notes(result, size)
    kept = result.timing(_KEPT_NAME)
    fresh = result.timing(_FRESH_ONCE)
    set_up = result.timing(_SET_UP_NAME).ratio.median - 1  # its first product is no part of building
    own, peer = count(_ours(problem)), count(_kept(problem))
    once, again = count(_set_up(problem)), count(_fresh(True)(problem))
    after = set_up / (fresh.ratio.median - 1) if fresh.ratio.median > 1 else float("inf")
    notes = [
        *verdicts(result),
        f"Building the operator takes as long as {set_up:.1f} of its products ({duration(set_up * _own(result))}; "
        f"goal: {BUILDING_GOAL}), {'met' if set_up <= BUILDING_GOAL else 'NOT met'}; a kept graph "
        f"{result.timing(_KEPT_SET_UP).ratio.median:.1f}. It is repaid after {after:.0f} products against fresh graphs "
        "with keys and values kept.",
        *memory_notes,
        f"Counted multiply-adds: a product {operations(own.total / 2)}, building {operations(once.total / 2)}; through "
        f"a kept graph {operations(peer.matmul / 2)} ({times(peer.matmul / own.total)}), through a fresh one "
        f"{operations(again.matmul / 2)} ({times(again.matmul / own.total)}).",
        f"The kept graph is {times(kept.ratio.median)} slower than the operator and needs no building beyond one "
        "gradient.",
    ]
    details = {
        "factor_bytes": size,
        "memory_over_factors": ratios,
        "set_up_in_products": set_up,
        "products_to_repay": after if after != float("inf") else None,
        "operations": {"product": own.total, "building": once.total, "kept": peer.matmul, "fresh": again.matmul},
    }
    return details, notes


def _own(result: Result) -> float:
    return result.timings[0].seconds.median


_OURS_NAME = "hessianlens, operator built once"
_SET_UP_NAME = "set-up: hessianlens operator and its first product"
_KEPT_SET_UP = "set-up: kept graph"
_FRESH = "double backward, fresh graph"
_FRESH_ONCE = "double backward, fresh graph, keys and values kept"
_KEPT_NAME = "double backward, kept graph"

BENCHMARK = Benchmark(
    name="block_product",
    title="One product with the query block, H[Q,Q] @ v",
    size=Size(batch=1, length=256, width=768, key_width=64),
    tiny=Size(batch=1, length=6, width=5, key_width=2),
    competitors=(
        Competitor(_OURS_NAME, _ours, OURS),
        Competitor(_FRESH, _fresh(once=False)),
        Competitor(_FRESH_ONCE, _fresh(once=True)),
        Competitor(_KEPT_NAME, _kept),
        Competitor("forward over reverse", _forward(once=False)),
        Competitor("forward over reverse, keys and values kept", _forward(once=True)),
        Competitor("forward over reverse, linearised once", _linearised),
        Competitor(_SET_UP_NAME, _set_up, SET_UP),
        Competitor(_KEPT_SET_UP, _kept_set_up, SET_UP),
    ),
    check=check,
    report=report,
    target=5,
    against=_FRESH,
    rounds=40,
    memory=(_OURS_NAME, _SET_UP_NAME, _FRESH, _KEPT_NAME, _KEPT_SET_UP),
)
