"""Interleaved timing: every competitor once a round, in shuffled order, so that noise and drift hit all of them."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import quantiles
from time import perf_counter, process_time
from typing import Any, Protocol

import torch

from benchmarks import peak, provenance
from benchmarks.counting import operations
from benchmarks.problem import Problem
from benchmarks.results import OURS, PEER, Memory, Result, Spread, Timing

QUICK_ROUNDS = 3
NOISY = 2.0
"""Upper over lower quartile of a ratio beyond which a run says that it was disturbed."""

Run = Callable[[], object]
Tick = Callable[[str], None]
Report = tuple[dict[str, object], list[str]]


class Described(Protocol):
    """How large a problem is."""

    def describe(self) -> dict[str, int | str]:
        """The sizes by name."""


@dataclass(frozen=True)
class Options:
    """How to measure: fewer rounds and no memory if `quick`; the number of threads PyTorch may use."""

    quick: bool = False
    threads: int = 2


@dataclass(frozen=True)
class Competitor:
    """One way of computing a thing.

    Attributes:
        name: What it is called in the tables.
        prepare: Does what is done once (a kept graph, an operator) and returns what is timed.
        role: `OURS`, `PEER` or `SET_UP`.
    """

    name: str
    prepare: Callable[[Problem], Run]
    role: str = PEER


@dataclass(frozen=True)
class Benchmark:
    """A question put to several competitors.

    Attributes:
        name: Also the name of the result file.
        title: What is measured, in a line.
        size: The problem measured.
        tiny: A small problem of the same kind, for tests and to load every library before memory is measured.
        competitors: Exactly one of them has the role `OURS`.
        check: Raises unless the competitors' outputs agree; called before anything is timed.
        report: Further numbers and sentences, from the problem, the outputs, the result so far and whether to hurry.
        target: The ratio aimed at.
        against: The peer that the target is about.
        rounds: Rounds of a full run.
        memory: Names of the competitors whose memory is measured too.
        make: Makes what all competitors are given, of a size.
    """

    name: str
    title: str
    size: Described
    tiny: Described
    competitors: tuple[Competitor, ...]
    check: Callable[[Mapping[str, object]], None]
    report: Callable[[Problem, Mapping[str, object], Result, bool], Report]
    target: float
    against: str
    rounds: int
    memory: tuple[str, ...] = ()
    make: Callable[[Any], Any] = Problem

    def competitor(self, name: str) -> Competitor:
        """A competitor by name."""
        return next(c for c in self.competitors if c.name == name)


def clock() -> float:
    """Seconds of work with one thread, whatever else the machine does; with several, seconds on the wall."""
    return process_time() if torch.get_num_threads() == 1 else perf_counter()


def first_calls(runs: Mapping[str, Run]) -> tuple[dict[str, object], dict[str, float]]:
    """Warm up: call everything twice; the output and the duration of the first calls."""
    outputs, seconds = {}, {}
    for name, run in runs.items():
        start = clock()
        outputs[name] = run()
        seconds[name] = clock() - start
        run()
    return outputs, seconds


def interleave(
    runs: Mapping[str, Run],
    rounds: int,
    tick: Tick | None = None,
    seed: int = 0,
    wall: dict[str, list[float]] | None = None,
) -> dict[str, list[float]]:
    """Seconds of every competitor in every round; each round runs all of them once, in an order of its own.

    Args:
        runs: The competitors.
        rounds: How many rounds.
        tick: Called after every round.
        seed: Of the orders.
        wall: Receives seconds on the wall besides those of the clock.
    """
    order, shuffle = list(runs), random.Random(seed).shuffle
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    collecting = gc.isenabled()
    gc.disable()
    try:
        for k in range(rounds):
            gc.collect()
            shuffle(order)
            for name in order:
                start, wall_start = clock(), perf_counter()
                runs[name]()
                seconds[name].append(clock() - start)
                if wall is not None:
                    wall.setdefault(name, []).append(perf_counter() - wall_start)
            if tick is not None:
                tick(f"round {k + 1} of {rounds}")
    finally:
        if collecting:
            gc.enable()
    return seconds


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles of at least one value."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, median, high = quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high)


def summarise(
    competitors: Sequence[Competitor],
    seconds: Mapping[str, Sequence[float]],
    first: Mapping[str, float],
    wall: Mapping[str, Sequence[float]] | None = None,
    counted: Mapping[str, float | None] | None = None,
) -> tuple[Timing, ...]:
    """Medians, quartiles, and the ratio to the library formed within each round."""
    (ours,) = (c.name for c in competitors if c.role == OURS)
    timings = []
    for c in competitors:
        ratios = [t / own for t, own in zip(seconds[c.name], seconds[ours], strict=True)]
        on_wall = None if wall is None else spread(wall[c.name]).median
        found = spread(seconds[c.name]), spread(ratios)
        timings.append(Timing(c.name, c.role, *found, first[c.name], on_wall, (counted or {}).get(c.name)))
    return tuple(timings)


def disturbance(timings: Sequence[Timing]) -> list[str]:
    """A warning if ratios scatter so much that other work must have got in between."""
    scatter = max(t.ratio.high / t.ratio.low for t in timings)
    if scatter < NOISY:
        return []
    return [f"Noise: a ratio scatters by {scatter:.1f}x between its quartiles; repeat this on an idle machine."]


def measure(benchmark: Benchmark, options: Options, tick: Tick, memory: Mapping[str, Memory]) -> Result:
    """Warm up, check, time in rounds, report."""
    torch.set_num_threads(options.threads)
    rounds = QUICK_ROUNDS if options.quick else benchmark.rounds
    problem = benchmark.make(benchmark.size)
    runs = {c.name: c.prepare(problem) for c in benchmark.competitors}
    outputs, first = first_calls(runs)
    benchmark.check(outputs)
    tick("first calls")
    counted = {name: operations(run) for name, run in runs.items()}
    setting = {"dtype": "float64"} | benchmark.size.describe()
    wall: dict[str, list[float]] = {}
    seconds = interleave(
        runs | {peak.NAME: peak.matrix_product(getattr(torch, str(setting["dtype"])))}, rounds, tick, wall=wall
    )
    del runs
    result = Result(
        name=benchmark.name,
        title=benchmark.title,
        setting=setting,
        target=benchmark.target,
        against=benchmark.against,
        rounds=rounds,
        timings=summarise(benchmark.competitors, seconds, first, wall, counted),
        memory=dict(memory),
        provenance=provenance.collect(),
        peak=peak.operations_per_second(spread(seconds[peak.NAME]).median),
    )
    details, notes = benchmark.report(problem, outputs, result, options.quick)
    tick("further numbers")
    return replace(result, details=details, notes=(*notes, *disturbance(result.timings)))
