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
    steps: int = 300
    every: int = 5
    searches: int = 12


TINY = Size(layers=1, width=8, words=12, length=6, batch=2, probe=2, steps=3, every=1, searches=3)


class Training:
    """A GPT-2 from a configuration on text made on the spot, AdamW with a learning rate of 1e-3."""

    def __init__(self, size: Size) -> None:
        self.size, self.step = size, 0
        self.model: nn.Module = gpt2(size.layers, size.width, size.words, size.length).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.monitor: hl.Monitor

    def gradient_seconds(self) -> float:
        """What a gradient of the probe batch takes, in plain PyTorch."""
        probe, seconds = self.text(self.size.probe, 1), []
        for _ in range(_GRADIENTS):
            began = clock()
            torch.autograd.grad(self.model(input_ids=probe, labels=probe).loss, list(self.model.parameters()))
            seconds.append(clock() - began)
        return median(seconds)

    def advance(self) -> None:
        """One step."""
        self.step += 1
        batch = self.text(self.size.batch, 100 + self.step)
        self.optimizer.zero_grad()
        self.model(input_ids=batch, labels=batch).loss.backward()
        self.optimizer.step()

    def problem(self) -> hl.problems.Problem:
        """The model on the probe batch."""
        probe = self.text(self.size.probe, 1)
        return hl.problem(self.model, {"input_ids": probe, "labels": probe})

    def text(self, sequences: int, seed: int) -> Tensor:
        """Sequences of words."""
        return text(self.size.words, sequences, self.size.length, seed=seed)


@dataclass(frozen=True)
class Watched:
    """A run that was watched, and what it took.

    Attributes:
        monitor: Its monitor.
        gradient: Seconds of a gradient of the probe batch.
        spent: Seconds of measurements after every step.
        trained: Seconds of training after every step.
    """

    monitor: hl.Monitor
    gradient: float
    spent: list[float]
    trained: list[float]

    @property
    def share(self) -> float:
        """Time of measurements over that of training."""
        return self.spent[-1] / self.trained[-1]

    def worst_window(self, steps: int) -> float:
        """The largest share in so many steps in a row, the first twenty left out."""
        pairs = zip(self.spent[_FIRST:], self.spent[_FIRST + steps :], strict=False)
        times = zip(self.trained[_FIRST:], self.trained[_FIRST + steps :], strict=False)
        shares = [(b - a) / (d - c) for (a, b), (c, d) in zip(pairs, times, strict=True)]
        return max(shares, default=self.share)


_FIRST, _WINDOW = 20, 100
_GRADIENTS = 9


def watch(training: Training, run: Callable[[Training, Callable[[], None]], None], **options: Any) -> Watched:
    """A run with a monitor whose clock is that of benchmarks.

    Args:
        training: What is trained.
        run: Trains, and calls a function after every step; or attaches the monitor itself.
        **options: Of the monitor.
    """
    problem = training.problem()
    monitor = hl.Monitor(problem, optimizer=training.optimizer, **{**options, "overhead": None})
    monitor.pace.clock, monitor.pace.overhead = clock, options.get("overhead", 0.1)
    if monitor.pace.overhead is not None:
        monitor.set_up()
    watched = Watched(monitor, training.gradient_seconds(), [], [])

    def measured() -> None:
        watched.spent.append(monitor.pace.spent)
        watched.trained.append(monitor.pace.trained)

    training.monitor = monitor
    run(training, measured)
    monitor.finish()
    return watched


def in_a_loop(training: Training, measured: Callable[[], None]) -> None:
    """Plain steps."""
    for _ in range(training.size.steps):
        training.advance()
        training.monitor.step()
        measured()


def under_the_trainer(training: Training, measured: Callable[[], None]) -> None:
    """The same steps by Hugging Face's Trainer."""
    from tempfile import TemporaryDirectory

    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Watch(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            measured()

    size = training.size
    rows = [row for k in range(size.steps) for row in training.text(size.batch, 100 + k)]
    with TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=size.steps,
            per_device_train_batch_size=size.batch,
            learning_rate=1e-3,
            report_to="none",
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        )
        data = [{"input_ids": row, "labels": row} for row in rows]
        trainer = Trainer(model=training.model, args=arguments, train_dataset=data, callbacks=[])
        training.monitor.optimizer = None  # the trainer's own is passed with every step
        training.monitor.attach(trainer)
        trainer.add_callback(Watch())
        trainer.train()


def overhead(
    run: Callable[[Training, Callable[[], None]], None],
) -> Callable[[Size, Tick], tuple[tuple[Timing, ...], dict[str, object], list[str]]]:
    """A run that is watched with all defaults: time of measurements and time of training."""

    def measure(size: Size, tick: Tick) -> tuple[tuple[Timing, ...], dict[str, object], list[str]]:
        watched = watch(Training(size), run)
        tick("trained")
        records, gradient = watched.monitor.history, watched.gradient
        prices = watched.monitor.piece_seconds
        hvp = prices.get("HVP", float("nan")) / gradient
        set_up, worst = watched.monitor.setup_seconds / gradient, watched.worst_window(_WINDOW)
        whole = sum("negative_mass" in record.numbers.get("model", {}) for record in records)
        details: dict[str, object] = {
            "share": watched.share,
            "worst share of 100 steps": worst,
            "steps": [record.step for record in records],
            "complete at": [record.until or record.step for record in records],
            "with all quantities": whole,
            "products": watched.monitor.products,
            "gradients per HVP": hvp,
            "gradients of the set-up": set_up,
            "notes": [list(record.notes) for record in records],
        }
        said = (
            f"Measurements took {watched.share:.1%} of the time of training, at most {worst:.1%} of that of {_WINDOW} "
            f"steps in a row: {len(records)} in {size.steps} steps, begun at steps "
            f"{', '.join(str(record.step) for record in records)}, {whole} of them with all quantities. They made "
            f"{watched.monitor.products} HVPs of the whole model, at {hvp:.2f} gradients of the probe batch each. "
            f"Before the run, checks and trials took {set_up:.0f} gradients."
        )
        return _timings(watched, size), details, [said]

    return measure


def heads(size: Size, tick: Tick) -> tuple[tuple[Timing, ...], dict[str, object], list[str]]:
    """A run in which attention heads alone are watched, every 50 steps whatever it takes: one forward pass each."""
    every = min(50, max(1, size.steps // 2))
    watched = watch(Training(size), in_a_loop, every=every, overhead=None, quantities=("entropy", "heads"))
    tick("trained")
    each = median(record.cost for record in watched.monitor.history)
    step = watched.trained[-1] / size.steps
    said = (
        f"The heads of {size.layers} layers took {watched.share:.2%} of the time of training, every {every} steps; "
        f"one look at them takes {each / step:.1%} of a training step."
    )
    return _timings(watched, size), {"share": watched.share, "of a step": each / step, "every": every}, [said]


def _timings(watched: Watched, size: Size) -> tuple[Timing, ...]:
    spent, trained = watched.spent[-1], watched.trained[-1]
    costs = [record.cost for record in watched.monitor.history]
    return (
        _timing(WATCHING, OURS, spent, 1.0, costs[0] if costs else spent),
        _timing(TRAINING, PEER, trained, trained / spent if spent else float("inf"), trained / size.steps),
    )


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
    run_steps: int = 300

    def steps(self, options: Options) -> int:
        """How often a run ticks."""
        return 1

    def run(self, options: Options, tick: Tick, size: Size | None = None) -> Result:
        """Measure and write the result."""
        torch.set_num_threads(options.threads)
        chosen = size or replace(Size(), steps=self.run_steps)
        if options.quick and size is None:
            chosen = replace(chosen, steps=min(200, chosen.steps), searches=4)
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
    WatchBenchmark(
        "watch_loop_300", "A run of 300 steps, watched with all defaults", 10, TRAINING, overhead(in_a_loop)
    ),
    WatchBenchmark(
        "watch_loop_3000", "A run of 3,000 steps, watched with all defaults", 10, TRAINING, overhead(in_a_loop), 3000
    ),
    WatchBenchmark(
        "watch_trainer_300",
        "300 steps under Hugging Face's Trainer, watched",
        10,
        TRAINING,
        overhead(under_the_trainer),
    ),
    WatchBenchmark(
        "watch_heads", "Attention heads of a run every 50 steps, against its training", 50, TRAINING, heads, 1000
    ),
    WatchBenchmark("watch_products", "The largest eigenvalue along a run: products", 3, COLD, products),
)
