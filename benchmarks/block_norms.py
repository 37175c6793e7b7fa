"""Exact norms of all nine blocks, against Hutchinson estimates of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace

import torch
from torch import Tensor
from torch.autograd import grad

from benchmarks import hutchinson
from benchmarks.accuracy import Accuracy, measure_accuracy
from benchmarks.counting import Count, count
from benchmarks.harness import Benchmark, Competitor, Report, Run
from benchmarks.problem import NAMES, Problem, Size
from benchmarks.results import OURS, Result
from benchmarks.wording import duration, operations, times, verdicts

PROBES = 20
GROUPS, QUICK_GROUPS = 20, 4


def _ours(problem: Problem) -> Run:
    def run() -> Tensor:
        found = problem.hessian().full.norms()
        return torch.stack([torch.stack([found[r, c] for c in NAMES]) for r in NAMES])

    return run


def _estimate(method: Callable[[Problem, hutchinson.Probes], Tensor]) -> Callable[[Problem], Run]:
    def prepare(problem: Problem) -> Run:
        probes = hutchinson.draw(problem, PROBES)
        return lambda: hutchinson.norms(method(problem, probes))

    return prepare


def check(outputs: Mapping[str, object]) -> None:
    """All estimates are the same, for they share their probes, and lie near the exact norms."""
    (_, exact), (name, first), *others = ((name, out) for name, out in outputs.items() if isinstance(out, Tensor))
    for other, out in others:
        if not torch.allclose(out, first, rtol=1e-9, atol=0):
            raise AssertionError(f"{other} and {name} estimate different norms from the same probes.")
    if not torch.allclose(first, exact, rtol=0.5, atol=0):
        raise AssertionError(f"The estimates are far from the exact norms: {first / exact}.")


def _arithmetic(problem: Problem) -> dict[str, Count]:
    """Counted operations of the library, and of a mean product of the three columns, kept and fresh."""
    leaves = problem.leaves()
    probe = hutchinson.draw(problem, 1)
    gradient = grad(problem.loss(*leaves), leaves, create_graph=True)

    def kept() -> None:
        for g, v in zip(gradient, probe, strict=True):
            grad(g, leaves, v[0], retain_graph=True)

    parts = {
        "hessianlens": count(_ours(problem)),
        "three products, kept graph": count(kept),
        "three products, fresh graph": count(lambda: hutchinson.fresh_graph(problem, probe)),
        "gradient": count(lambda: grad(problem.loss(*leaves), leaves)),
    }
    return parts


def _arithmetic_notes(counts: Mapping[str, Count], result: Result) -> list[str]:
    own, product = counts["hessianlens"], counts["three products, kept graph"].matmul / 3
    fresh = counts["three products, fresh graph"].matmul / 3
    all_products = 3 * PROBES * product
    own_speed = own.total / result.timings[0].seconds.median / 1e9
    peer = result.timing(_KEPT)
    return [
        f"Counted multiply-adds: contraction plans {operations(own.plans / 2)}, matrix products beside them "
        f"{operations(own.beside / 2)}; one product {operations(product / 2)} through a kept graph and "
        f"{operations(fresh / 2)} through a fresh one, hence {operations(all_products / 2)} in {3 * PROBES} products.",
        f"By arithmetic alone the ratio to the kept graph would be {times(all_products / own.total)}; the exact norms "
        f"run at {own_speed:.3g} billion operations a second, the products at "
        f"{all_products / peer.seconds.median / 1e9:.3g}.",
    ]


def _accuracy_notes(found: Accuracy, result: Result) -> list[str]:
    fastest = result.fastest_peer
    scale = found.probes / PROBES
    hardest = max(found.probes_needed, key=lambda pair: found.probes_needed[pair])
    return [
        f"A {PROBES}-probe estimate is off by {found.worst_error:.1%} on its worst block and {found.median_error:.1%} "
        f"on the median one (root mean square over {found.groups} estimates); the exact norms by rounding only.",
        f"{found.wanted:.0%} relative standard error on every block takes {found.probes} probes a column parameter "
        f"(block {hardest} decides), {times(scale)} as many: at that accuracy the exact norms are "
        f"{times(fastest.ratio.median * scale)} as fast as the fastest estimate.",
        f"In the time of the exact norms the fastest estimate draws {PROBES / fastest.ratio.median:.0f} probes and "
        f"reaches {found.error_with(PROBES / fastest.ratio.median):.2%}; every halving of an error takes four times as "
        "many.",
    ]


def report(problem: Problem, outputs: Mapping[str, object], result: Result, quick: bool) -> Report:
    """Verdicts, accuracy of the estimates, counted arithmetic."""
    exact = outputs[OURS_NAME]
    assert isinstance(exact, Tensor)
    counts = _arithmetic(problem)
    found = measure_accuracy(problem, exact, PROBES, QUICK_GROUPS if quick else GROUPS)
    ours = result.timings[0]
    details = {
        "probes": PROBES,
        "fastest_peer": result.fastest_peer.name,
        "accuracy": asdict(found) | {"worst": found.worst_error, "median": found.median_error, "probes": found.probes},
        "ratio_at_equal_accuracy": result.fastest_peer.ratio.median * found.probes / PROBES,
        "operations": {name: asdict(c) for name, c in counts.items()},
    }
    first = (
        f"The first call takes {duration(ours.first)} instead of {duration(ours.seconds.median)}, for the contraction "
        "plans of these shapes; the ratios are those of later calls."
    )
    return details, [*verdicts(result), *_accuracy_notes(found, result), *_arithmetic_notes(counts, result), first]


OURS_NAME = "hessianlens, exact"
_KEPT = "kept graph, 60 products"
_BATCHED = "kept graph, batched by vmap"

BENCHMARK = Benchmark(
    name="block_norms",
    title=f"Frobenius norms of all nine blocks: exact, against estimates with {PROBES} probes",
    size=Size(batch=8, length=64, width=128),
    tiny=Size(batch=2, length=4, width=3),
    competitors=(
        Competitor(OURS_NAME, _ours, OURS),
        Competitor(_KEPT, _estimate(hutchinson.kept_graph)),
        Competitor(_BATCHED, _estimate(hutchinson.kept_graph_batched)),
        Competitor("fresh graphs, 60 products", _estimate(hutchinson.fresh_graph)),
        Competitor("forward over reverse, 60 products", _estimate(hutchinson.forward_over_reverse)),
        Competitor("forward over reverse, batched by vmap", _estimate(hutchinson.forward_over_reverse_batched)),
        Competitor("block by block, kept graph, 180 products", _estimate(hutchinson.nine_blocks_kept)),
        Competitor("block by block, fresh graphs, 180 products", _estimate(hutchinson.nine_blocks_fresh)),
    ),
    check=check,
    report=report,
    target=10,
    against=_KEPT,
    rounds=9,
    memory=(OURS_NAME, _KEPT, _BATCHED),
)

FEW_TOKENS = replace(
    BENCHMARK,
    name="block_norms_few_tokens",
    title=f"{BENCHMARK.title}; a third of the tokens carries a loss",
    size=Size(batch=64, length=18, width=128, read=6),
    tiny=Size(batch=2, length=4, width=3, read=2),
)

ONE_SEQUENCE = replace(
    BENCHMARK,
    name="block_norms_one_sequence",
    title=f"{BENCHMARK.title}; a batch of one",
    size=Size(batch=1, length=64, width=128),
    tiny=Size(batch=1, length=4, width=3),
    memory=(),
)
