"""What it takes to watch a training run: the time of measurements, and products that a warm start saves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor, nn

import hessianlens as hl
from benchmarks import provenance
from benchmarks.harness import Options, Tick, clock
from benchmarks.last_layer import gpt2, text
from benchmarks.results import OURS, PEER, Result, Spread, Timing

WATCHING, TRAINING = "measurements", "training"
WARM, COLD, ALONE = "warm start", "cold start", "warm start, alone"


@dataclass(frozen=True)
class Size:
    """Sizes of a run: `every` steps of it are between two searches where products are counted."""

    layers: int = 4
    width: int = 256
    words: int = 1000
    length: int = 64
    batch: int = 8
    probe: int = 2
    steps: int = 1000
    every: int = 5
    searches: int = 12


TINY = Size(layers=1, width=8, words=12, length=6, batch=2, probe=2, steps=3, every=1, searches=3)


class Training:
    """A GPT-2 from a configuration on text made on the spot, AdamW with a learning rate of 1e-3."""

    def __init__(self, size: Size) -> None:
        self.size, self.step = size, 0
        self.model: nn.Module = gpt2(size.layers, size.width, size.words, size.length).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def advance(self) -> None:
        """One step."""
        self.step += 1
        batch = self._text(self.size.batch, 100 + self.step)
        self.optimizer.zero_grad()
        self.model(input_ids=batch, labels=batch).loss.backward()
        self.optimizer.step()

    def problem(self) -> hl.problems.Problem:
        """The model on the probe batch."""
        probe = self._text(self.size.probe, 1)
        return hl.problem(self.model, {"input_ids": probe, "labels": probe})

    def _text(self, sequences: int, seed: int) -> Tensor:
        return text(self.size.words, sequences, self.size.length, seed=seed)


def overhead(size: Size, tick: Tick) -> tuple[tuple[Timing, ...], dict[str, object], list[str]]:
    """A run that is watched with all defaults: time of measurements and time of training."""
    training = Training(size)
    monitor = hl.Monitor(training.problem(), optimizer=training.optimizer)
    monitor.pace.clock = clock
    for _ in range(size.steps):
        training.advance()
        monitor.step()
    tick("trained")
    spent, trained = monitor.pace.spent, monitor.pace.trained
    costs = [record.cost for record in monitor.history]
    ratio = trained / spent if spent else float("inf")  # a short run pays for no measurement
    timings = (
        _timing(WATCHING, OURS, spent, 1.0, costs[0] if costs else spent),
        _timing(TRAINING, PEER, trained, ratio, trained / size.steps),
    )
    steps = [record.step for record in monitor.history]
    said = (
        f"Measurements took {spent / trained:.1%} of the time of training: {len(costs)} of them in {size.steps} steps "
        f"(at steps {', '.join(map(str, steps))}), {monitor.products} products with the Hessian of the whole model."
    )
    return timings, {"share": spent / trained, "steps": steps, "products": monitor.products}, [said]


def thermometer(size: Size, tick: Tick) -> tuple[tuple[Timing, ...], dict[str, object], list[str]]:
    """A run in which attention heads alone are watched, every 50 steps whatever it takes: one forward pass each."""
    training = Training(size)
    every = min(50, max(1, size.steps // 2))
    monitor = hl.Monitor(training.problem(), every=every, overhead=None, quantities=("entropy", "heads"))
    monitor.pace.clock = clock
    for _ in range(size.steps):
        training.advance()
        monitor.step()
    tick("trained")
    spent, trained = monitor.pace.spent, monitor.pace.trained
    costs = [record.cost for record in monitor.history]
    each, step = median(costs), trained / size.steps
    timings = (
        _timing(WATCHING, OURS, spent, 1.0, costs[0]),
        _timing(TRAINING, PEER, trained, trained / spent, step),
    )
    said = (
        f"The heads of {size.layers} layers took {spent / trained:.2%} of the time of training, every {every} steps; "
        f"one look at them takes {each / step:.1%} of a training step."
    )
    return timings, {"share": spent / trained, "of a step": each / step, "every": every}, [said]


def products(size: Size, tick: Tick) -> tuple[tuple[Timing, ...], dict[str, object], list[str]]:
    """Products of the search for the largest eigenvalue along a run.

    Ours begins at the last eigenvector and at what the random vectors of the trace have met, as a monitor does by
    default; cold it begins at a random vector; and there is the last eigenvector alone.
    """
    training = Training(size)
    asked: dict[str, dict[str, Any]] = {
        WARM: {"quantities": ("top", "trace", "norm", "negative")},
        COLD: {"quantities": "top"},
        ALONE: {"quantities": "top"},
    }
    monitors = {n: hl.Monitor(training.problem(), overhead=None, **more) for n, more in asked.items()}
    for monitor in monitors.values():
        monitor.pace.clock = clock
    monitors[COLD].warm_start = False
    counts: dict[str, list[int]] = {name: [] for name in monitors}
    for _ in range(size.searches):
        for _ in range(size.every):
            training.advance()
        for name, monitor in monitors.items():
            before = monitor.search_products
            monitor.measure(training.step)
            counts[name].append(monitor.search_products - before)
    tick("trained")
    # The first search has no eigenvector to begin from.
    totals = {name: sum(found[1:]) for name, found in counts.items()}
    ratios = [cold / max(warm, 1) for cold, warm in zip(counts[COLD][1:], counts[WARM][1:], strict=True)]
    tops = {name: [reading.value for reading in monitor.history["top"][1]] for name, monitor in monitors.items()}
    apart = max(abs(a / b - 1) for name in (WARM, ALONE) for a, b in zip(tops[name], tops[COLD], strict=True))
    timings = []
    for name, role in ((WARM, OURS), (COLD, PEER)):
        costs = [record.cost for record in monitors[name].history]
        whole = totals[COLD] / max(totals[WARM], 1)
        ratio = Spread(1.0, 1.0, 1.0) if role == OURS else Spread(whole, *_quartiles(ratios))
        timings.append(Timing(name, role, Spread(median(costs[1:]), *_quartiles(costs[1:])), ratio, costs[0]))
    each = monitors[WARM].history[-1].products - counts[WARM][-1]
    said = (
        f"Ratios count products of the search, beside the {each} a measurement that trace, norm and negative share "
        f"take anyway: {totals[COLD]} from random vectors against {totals[WARM]} from the last eigenvector and from "
        f"what those have met, over {size.searches - 1} searches, {size.every} steps apart, to the same tolerance; the "
        f"eigenvalues differ by at most {apart:.1%}. Where nothing but the largest eigenvalue is asked for, the last "
        f"eigenvector alone saves less: {totals[ALONE]} products, {totals[COLD] / totals[ALONE]:.1f}x; here it turns "
        "far from one search to the next."
    )
    return tuple(timings), {"products": counts, "apart": apart}, [said]


def _timing(name: str, role: str, seconds: float, ratio: float, first: float) -> Timing:
    return Timing(name, role, Spread(seconds, seconds, seconds), Spread(ratio, ratio, ratio), first)


def _quartiles(values: list[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = quantiles(values, n=4)
    return low, high


BlockMeasurements = tuple[tuple[Timing, ...], dict[str, object], list[str]]


@dataclass(frozen=True)
class WatchBenchmark:
    """A run that is watched."""

    name: str
    title: str
    target: float
    against: str
    measure: Callable[[Size, Tick], BlockMeasurements]

    def steps(self, options: Options) -> int:
        """How often a run ticks."""
        return 1

    def run(self, options: Options, tick: Tick, size: Size | None = None) -> Result:
        """Measure and write the result."""
        torch.set_num_threads(options.threads)
        chosen = size or (replace(Size(), steps=200, searches=4) if options.quick else Size())
        timings, details, notes = self.measure(chosen, tick)
        setting = {"layers": chosen.layers, "d": chosen.width, "L": chosen.length, "probe": chosen.probe}
        result = Result(
            name=self.name,
            title=self.title,
            setting={**setting, "batch": chosen.batch},
            target=self.target,
            against=self.against,
            rounds=1,
            timings=timings,
            details=details,
            notes=tuple(notes),
            provenance=provenance.collect(),
        )
        if size is None:
            result.save()
        return result


WATCHED = (
    WatchBenchmark("watch_overhead", "A run watched with all defaults, against its training", 10, TRAINING, overhead),
    WatchBenchmark(
        "watch_heads", "Attention heads of a run every 50 steps, against its training", 50, TRAINING, thermometer
    ),
    WatchBenchmark("watch_products", "The largest eigenvalue along a run: products", 3, COLD, products),
)
