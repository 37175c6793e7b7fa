"""Blocks of whole networks, against the libraries that people use for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch

from benchmarks import certificate, everyday, first_layer, peak, provenance
from benchmarks.counting import operations
from benchmarks.harness import QUICK_ROUNDS, Options, Tick, clock, disturbance, interleave, spread
from benchmarks.last_layer import as_intervals
from benchmarks.memory import PeakMeter, measure_apart
from benchmarks.network_reading import equal_accuracy, merged, notes, timings
from benchmarks.network_settings import PROBES, Setting, exact_norms, last_layer, layer_norms, products
from benchmarks.results import Memory, Result, Timing


@dataclass(frozen=True)
class NetworkBenchmark:
    """A question about networks: what is run (at its size, or a tiny one), the ratio aimed at, and how often.

    `check` raises unless the outputs of all competitors agree; it is called before anything is timed.
    """

    name: str
    title: str
    setting: Setting
    target: float
    rounds: int
    tiny_if_quick: bool = False
    further: Callable[[tuple[Timing, ...]], str] | None = None
    check: Callable[[Mapping[str, object]], None] | None = None

    def steps(self, options: Options) -> int:
        """Ticks of a run."""
        return 1 + (QUICK_ROUNDS if options.quick else self.rounds + len(self.setting(True)[0]))

    def memory_here(self, name: str, threads: int, tiny: bool = False) -> Memory:
        """Run one competitor once in this process, after a tiny run that loads every library."""
        torch.set_num_threads(threads)
        self.setting(True)[0][name].run()
        preparing = PeakMeter()
        run = self.setting(tiny)[0][name].run
        set_up, kept = preparing.growth(), preparing.kept()
        running = PeakMeter()
        run()
        return Memory(set_up, kept, running.growth())

    def _memory(self, names: Iterable[str], threads: int, tick: Tick) -> dict[str, Memory]:
        """Of every competitor in a process of its own."""
        found = {}
        for name in names:
            found[name] = measure_apart(self, name, threads)
            tick(f"memory of {name}")
        return found

    def run(self, options: Options, tick: Tick) -> Result:
        """Measure, interleaved; the parts of a path that is run in parts are added up."""
        torch.set_num_threads(options.threads)
        runs, size = self.setting(options.quick and self.tiny_if_quick)
        size = {**size, "dtype": size.get("dtype", "float32")}
        first, outputs = {}, {}
        for name, scaled in runs.items():
            start = clock()
            outputs[name] = scaled.run()
            first[name] = scaled.times * (clock() - start)
        if self.check is not None:
            self.check(outputs)
        del outputs
        tick("first calls")
        rounds = QUICK_ROUNDS if options.quick else self.rounds
        counted = {name: operations(scaled.run) for name, scaled in runs.items()}
        on_wall: dict[str, list[float]] = {}
        timed_runs = {name: scaled.run for name, scaled in runs.items()}
        timed_runs[peak.NAME] = peak.matrix_product(getattr(torch, str(size["dtype"])))
        raw = interleave(timed_runs, rounds, tick, wall=on_wall)
        reference = spread(raw.pop(peak.NAME)).median
        del on_wall[peak.NAME]
        seconds, wall = (
            {name: [runs[name].times * t for t in values] for name, values in found.items()} for found in (raw, on_wall)
        )
        timed = timings(seconds, wall, first, {n: None if c is None else runs[n].times * c for n, c in counted.items()})
        number = size.get("products", 1)
        assert isinstance(number, int)
        memory = {} if options.quick else self._memory(runs, options.threads, tick)
        extra = [self.further(timed)] if self.further is not None else []
        result = Result(
            self.name,
            self.title,
            size,
            self.target,
            "the fastest peer",
            rounds,
            timed,
            memory=merged(memory),
            notes=(*notes(seconds, timed, number), *extra, *disturbance(timed)),
            provenance=provenance.collect(),
            peak=peak.operations_per_second(reference),
        )
        result.save()
        return result


NETWORKS = (
    *(NetworkBenchmark(name, title, setting, target, 9) for name, title, setting, target in everyday.settings()),
    NetworkBenchmark(
        "network_norms", "Six norms of the literature's model", exact_norms, 30, 7, further=equal_accuracy
    ),
    NetworkBenchmark("network_layer_norms", "The same norms of all layers of a three-layer model", layer_norms, 5, 3),
    NetworkBenchmark(
        "network_product", "One Hessian-vector product of a block of a deep model", products(1), 1, 9, True
    ),
    NetworkBenchmark("network_products", "Twenty products of the same block", products(PROBES), 1, 3, True),
    NetworkBenchmark(
        "network_last_layer",
        "All norms from the last attention of a GPT-2 on",
        last_layer(False),
        10,
        3,
        True,
        as_intervals,
    ),
    NetworkBenchmark(
        "network_last_trained",
        "The same of a model that has learned something",
        last_layer(True),
        10,
        3,
        True,
        as_intervals,
    ),
    *(
        NetworkBenchmark(f"certificate_{name}", title, certificate.certified(make), 1 - certificate.MOST, rounds, True)
        for name, title, make, rounds in (
            ("one_layer", "Certificates of six norms of the literature's model", certificate.one_layer, 9),
            ("last_layer", "Certificates of norms from the last attention of a GPT-2 on", certificate.last_layer, 3),
        )
    ),
    *(
        NetworkBenchmark(name, title, setting, first_layer.GOAL, rounds, True, check=first_layer.check)
        for name, title, setting, rounds in first_layer.settings()
    ),
)
