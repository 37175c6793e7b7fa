"""All benchmarks by name, in the order they run, and how each is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from benchmarks import (
    attention,
    block_norms,
    block_product,
    dense_hessian,
    explorer,
    gpt2,
    inspection,
    layer_product,
    layer_trace,
    ranks_product,
    scaling,
    scaling_plot,
    scaling_text,
    sketched_norms,
)
from benchmarks.harness import QUICK_ROUNDS, Benchmark, Options, Tick, measure
from benchmarks.memory import measure_apart
from benchmarks.monitor import WATCHED
from benchmarks.network import NETWORKS
from benchmarks.results import Result
from benchmarks.sweeps import SWEEPS
from benchmarks.training import TRAININGS

BENCHMARKS: dict[str, Benchmark] = {
    b.name: b
    for b in (
        dense_hessian.BENCHMARK,
        block_norms.BENCHMARK,
        block_norms.FEW_TOKENS,
        block_norms.ONE_SEQUENCE,
        sketched_norms.BENCHMARK,
        sketched_norms.LIKE_EMBEDDINGS,
        block_product.BENCHMARK,
        *layer_product.BENCHMARKS,
        *layer_trace.BENCHMARKS,
        *attention.BENCHMARKS,
        gpt2.BENCHMARK,
    )
}


@dataclass(frozen=True)
class Runner:
    """A benchmark as the command line sees it.

    Attributes:
        title: What it measures.
        steps: How often a run ticks.
        run: Measure and write every file of the result.
    """

    title: str
    steps: Callable[[Options], int]
    run: Callable[[Options, Tick], Result]


def _comparison(benchmark: Benchmark) -> Runner:
    def steps(options: Options) -> int:
        return 2 + (QUICK_ROUNDS if options.quick else benchmark.rounds + len(benchmark.memory))

    def run(options: Options, tick: Tick) -> Result:
        memory = {}
        for name in () if options.quick else benchmark.memory:
            memory[name] = measure_apart(benchmark, name, options.threads)
            tick(f"memory of {name}")
        result = measure(benchmark, options, tick, memory)
        result.save()
        return result

    return Runner(benchmark.title, steps, run)


def _scaling() -> Runner:
    def run(options: Options, tick: Tick) -> Result:
        found = scaling.measure(SWEEPS, options, tick)
        result = replace(found, notes=tuple(scaling_text.notes(SWEEPS, found)))
        result.save()
        scaling_plot.save(result)
        scaling_text.save(SWEEPS, result)
        return result

    return Runner(scaling.TITLE, lambda options: scaling.steps(SWEEPS), run)


RUNNERS: dict[str, Runner] = (
    {name: _comparison(b) for name, b in BENCHMARKS.items()}
    | {scaling.NAME: _scaling()}
    | {b.name: Runner(b.title, b.steps, b.run) for b in (*NETWORKS, *TRAININGS, *WATCHED)}
    | {
        name: Runner(explorer.title(size), explorer.steps, partial(explorer.run, name))
        for name, size in explorer.SIZES.items()
    }
    | {inspection.NAME: Runner(inspection.TITLE, lambda options: 2, inspection.run)}
    | {ranks_product.NAME: Runner(ranks_product.TITLE, lambda options: 1, ranks_product.run)}
)
