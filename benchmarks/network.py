"""Blocks of whole networks, against the libraries that people use for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

import hessianlens as hl
from benchmarks import provenance
from benchmarks.harness import QUICK_ROUNDS, Options, Run, Tick, clock, disturbance, interleave, spread
from benchmarks.last_layer import as_intervals, last_layer_problem, sampling_factor
from benchmarks.memory import PeakMeter, measure_apart
from benchmarks.network_peers import (
    curvlinops_operator,
    eigenthings_product,
    gradient,
    kept_graph_product,
    pyhessian_product,
    shared_probes,
)
from benchmarks.results import OURS, PEER, SET_UP, Memory, Result, Timing
from hessianlens.problems import Problem

PROBES = 20
GRADIENT = "one gradient"
ENOUGH = 0.75
"""Gradients that each of many products may take, building included."""
_PART, _WHOLE = "curvlinops, ", f"curvlinops, {PROBES} probes a norm"
_SHARED = f"shared-probe autograd, {PROBES} probes a block"
Q, V = "layer0.attn.q", "layer0.attn.v"


@dataclass(frozen=True)
class Scaled:
    """A competitor of which only a part is run, and how often that part occurs in the whole."""

    run: Run
    times: float = 1


Setting = Callable[[bool], tuple[dict[str, Scaled], dict[str, object]]]
"""Competitors and sizes, for a tiny model or the one to be measured."""


def _addition(layers: int, tiny: bool = False) -> tuple[hl.models.Transformer, hl.tasks.Addition, dict[str, Tensor]]:
    """The literature's setting: d = 128, one head, no norm, 64 sequences of the addition task, float32."""
    width, sequences = (16, 4) if tiny else (128, 64)
    model, task = hl.models.Transformer(layers=layers, d_model=width, seed=0), hl.tasks.Addition()
    return model, task, task.batch(sequences, seed=1234, carries="none")


def exact_norms(tiny: bool) -> tuple[dict[str, Scaled], dict[str, object]]:
    """Six norms of one layer: ours exact; curvlinops with 20 probes each, H - G by a product of each."""
    model, task, batch = _addition(1, tiny)
    problem = hl.problem(model, batch, task.cross_entropy)
    runs = {"ours, exact": Scaled(lambda: hl.block_norms(_afresh(problem), [Q, V]))}
    runs |= _sampled(model, task, batch)
    return runs, {"layers": 1, "d": model.W_U.shape[0], "sequences": len(batch["tokens"]), "norms": 6}


def layer_norms(tiny: bool) -> tuple[dict[str, Scaled], dict[str, object]]:
    """The same six norms of every layer of a three-layer model, 20 probes each; ours also without closed forms."""
    model, task, batch = _addition(3, tiny)
    names = [f"layer{n}.attn.{x}" for n in range(3) for x in "qv"]
    problem = hl.problem(model, batch, task.cross_entropy)

    def ours(method: str) -> Run:
        return lambda: hl.block_norms(_afresh(problem), names, probes=PROBES, method=method)

    runs = {"ours": Scaled(ours("auto")), "ours, products alone": Scaled(ours("products"))}
    runs |= _sampled(model, task, batch)
    return runs, {"layers": 3, "d": model.W_U.shape[0], "sequences": len(batch["tokens"]), "norms": 18}


def _sampled(model: hl.models.Transformer, task: hl.tasks.Addition, batch: dict[str, Tensor]) -> dict[str, Scaled]:
    """The norms of all query and value blocks by probes: with curvlinops, and with three lines of autograd."""
    runs = {}
    for kind in ("hessian", "ggn"):
        ops = [curvlinops_operator(kind, model, batch, b.attention, w) for b in model.blocks for w in ("W_Q", "W_V")]
        runs[f"curvlinops, {kind} products"] = Scaled(_each_once(ops), 2 * PROBES)
    weights = [getattr(b.attention, w) for b in model.blocks for w in ("W_Q", "W_V")]
    generator = torch.Generator().manual_seed(0)
    probes = [torch.randint(0, 2, (PROBES, *w.shape), generator=generator) * 2.0 - 1 for w in weights]
    runs[_SHARED] = Scaled(lambda: shared_probes(model, batch, task.cross_entropy, weights, probes))
    return runs


def _afresh(problem: Problem) -> Problem:
    """The same problem, with nothing known about it that the round before has found out."""
    return replace(problem)


def _deep(
    tiny: bool,
) -> tuple[hl.models.Transformer, dict[str, Tensor], Callable[[Tensor, dict[str, Tensor]], Tensor]]:
    layers, width, length = (2, 64, 32) if tiny else (12, 256, 128)
    model = hl.models.Transformer(
        layers=layers,
        d_model=width,
        heads=8,
        d_mlp=4 * width,
        vocab=512,
        context=length,
        norm="pre",
        mlp_activation="gelu",
    )
    tokens = torch.randint(512, (4, length), generator=torch.Generator().manual_seed(0))

    def loss(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
        seen = batch["tokens"]
        return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), seen[:, 1:].flatten())

    return model, {"tokens": tokens}, loss


def products(number: int) -> Setting:
    """Hessian-vector products of the query block of the middle layer of a GPT-2-style model, from nothing."""

    def setting(tiny: bool) -> tuple[dict[str, Scaled], dict[str, object]]:
        model, batch, loss = _deep(tiny)
        middle = len(model.blocks) // 2
        attention = model.blocks[middle].attention
        vectors = [torch.randn(attention.W_Q.shape, generator=torch.Generator().manual_seed(k)) for k in range(number)]

        def ours(verify: bool = True) -> list[Tensor]:
            # Of a problem that nothing is known about: what a tape costs to make and to check is counted.
            problem = hl.problem(model, batch, loss, check=False, verify=verify)
            op = hl.hessian(problem, f"layer{middle}.attn.q", method="products")
            return [op @ v.flatten() for v in vectors]

        library = curvlinops_operator("hessian", model, batch, attention, "W_Q", loss)
        runs = {
            "ours": Scaled(ours),
            "ours, model not verified": Scaled(lambda: ours(verify=False)),
            "curvlinops": Scaled(lambda: [library @ v.flatten() for v in vectors]),
            "kept double-backward graph, the rest frozen": Scaled(
                lambda: kept_graph_product(model, batch, loss, attention, vectors)
            ),
            GRADIENT: Scaled(lambda: gradient(model, batch, loss, attention.W_Q)),
        }
        for name, peer in (("PyHessian", pyhessian_product), ("hessian-eigenthings", eigenthings_product)):
            if (found := peer(model, batch, loss, attention, vectors)) is not None:
                runs[name] = Scaled(found)
        size = {"layers": len(model.blocks), "d": attention.d_model, "L": batch["tokens"].shape[1], "products": number}
        return runs, size

    return setting


def last_layer(trained: bool) -> Setting:
    """Norms of the last attention layer and of everything behind it: exactly, and sampled to 1 % on one kept graph."""

    def setting(tiny: bool) -> tuple[dict[str, Scaled], dict[str, object]]:
        problem, names = last_layer_problem(tiny, trained)

        def sampled() -> object:
            return hl.block_norms(_afresh(problem), names, probes=PROBES, method="products")

        runs = {
            "ours, exact": Scaled(lambda: hl.block_norms(_afresh(problem), names, method="exact")),
            "20 probes a block on a kept graph, carried on to 1 %": Scaled(sampled, sampling_factor(problem, names)),
        }
        words = "a Zipf law, the model trained on it for a moment" if trained else "a Zipf law, the model untrained"
        return runs, {"blocks": len(names), "parts": 3, "words": words}

    return setting


def _each_once(operators: list[object]) -> Run:
    vectors = [torch.randn(op.shape[1], generator=torch.Generator().manual_seed(k)) for k, op in enumerate(operators)]
    return lambda: [op @ v for op, v in zip(operators, vectors, strict=True)]


def equal_accuracy(timings: tuple[Timing, ...]) -> str:
    """How the ratio changes when every estimate has to have a standard error of 1 %, from the measured variance."""
    model, task, batch = _addition(1)
    problem = hl.problem(model, batch, task.cross_entropy)
    norms = hl.block_norms(problem, [Q, V], probes=60, method="products")
    needed = {k: 60 * (e.stderr / e.value / 0.01) ** 2 for k, e in norms.items() if e.value > 1e-12}
    # H and G cost one product a probe, H - G one of each; a norm that is zero to rounding needs none
    weights = {"full": 1, "ggn": 1, "functional": 2}
    products = sum(weights[part] * n for (_, part), n in needed.items())
    # a shared probe of a block serves its three norms: the hardest decides
    shared = sum(max([n for (block, _), n in needed.items() if block == own], default=0.0) for own in (Q, V))
    share = {_WHOLE: products / (8 * PROBES), _SHARED: shared / (2 * PROBES)}
    ratios = ", ".join(f"{t.ratio.median * share[t.name]:.0f}x against {t.name}" for t in timings if t.name in share)
    low, high = min(needed.values()), max(needed.values())
    return f"At equal accuracy, 1 % standard error: {low:.0f} to {high:.0f} probes a norm; {ratios}."


@dataclass(frozen=True)
class NetworkBenchmark:
    """A question about networks: what is run (at its size, or a tiny one), the ratio aimed at, and how often."""

    name: str
    title: str
    setting: Setting
    target: float
    rounds: int
    tiny_if_quick: bool = False
    further: Callable[[tuple[Timing, ...]], str] | None = None

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
        first = {}
        for name, scaled in runs.items():
            start = clock()
            scaled.run()
            first[name] = scaled.times * (clock() - start)
        tick("first calls")
        rounds = QUICK_ROUNDS if options.quick else self.rounds
        on_wall: dict[str, list[float]] = {}
        raw = interleave({name: scaled.run for name, scaled in runs.items()}, rounds, tick, wall=on_wall)
        seconds, wall = (
            {name: [runs[name].times * t for t in values] for name, values in found.items()} for found in (raw, on_wall)
        )
        timings = _timings(seconds, wall, first)
        number = size.get("products", 1)
        assert isinstance(number, int)
        memory = {} if options.quick else self._memory(runs, options.threads, tick)
        extra = [self.further(timings)] if self.further is not None else []
        result = Result(
            self.name,
            self.title,
            {**size, "dtype": "float32"},
            self.target,
            "the fastest peer",
            rounds,
            timings,
            memory=_merged(memory),
            notes=(*_notes(seconds, timings, number), *extra, *disturbance(timings)),
            provenance=provenance.collect(),
        )
        result.save()
        return result


def _timings(
    seconds: Mapping[str, list[float]], wall: Mapping[str, list[float]], first: Mapping[str, float]
) -> tuple[Timing, ...]:
    merged, on_wall = _added(seconds), _added(wall)
    firsts = _added({name: [value] for name, value in first.items()})
    ours = next(iter(merged))
    timings = []
    for name, values in merged.items():
        ratios = [t / own for t, own in zip(values, merged[ours], strict=True)]
        role = OURS if name.startswith(OURS) else SET_UP if name == GRADIENT else PEER
        timings.append(
            Timing(name, role, spread(values), spread(ratios), firsts[name][0], spread(on_wall[name]).median)
        )
    return tuple(timings)


def _added(seconds: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """Seconds by competitor, the library first, with the sum of the parts of a path that is run in parts."""
    first = next(iter(seconds))
    merged = {first: seconds[first]}
    parts = [name for name in seconds if name.startswith(_PART)]
    if parts:
        merged[_WHOLE] = [sum(row) for row in zip(*(seconds[name] for name in parts), strict=True)]
    merged.update({name: seconds[name] for name in seconds if name != first and name not in parts})
    return merged


def _merged(memory: Mapping[str, Memory]) -> dict[str, Memory]:
    """A path that is run in parts, one after the other, needs what the largest of them needs."""
    parts = [found for name, found in memory.items() if name.startswith(_PART)]
    rest = {name: found for name, found in memory.items() if not name.startswith(_PART)}
    if not parts:
        return rest
    return rest | {_WHOLE: Memory(*(max(getattr(p, f.name) for p in parts) for f in fields(Memory)))}


def _notes(seconds: Mapping[str, list[float]], timings: tuple[Timing, ...], number: int) -> list[str]:
    if any("1 %" in name for name in seconds):
        return [
            "Sampled norms are timed with 20 probes and carried on by their measured spread to a standard error of 1 %."
        ]
    if GRADIENT not in seconds:
        counted = "20 for H, 20 for G, 20 of each for H - G"
        return [
            f"curvlinops' products are timed once each and count 40 times a block: {counted}.",
            f"Shared-probe autograd takes H, G and H - G of a block from the same {PROBES} products on one kept graph.",
        ]
    return [_in_gradients(timings, number)]


def _in_gradients(timings: tuple[Timing, ...], number: int) -> str:
    """What a product costs in gradients of the same block; where there are many, against the goal."""
    unit = next(t for t in timings if t.name == GRADIENT).seconds.median
    each = {t.name: t.seconds.median / unit / number for t in timings if t.name != GRADIENT}
    costs = ", ".join(f"{name} {cost:.2f}" for name, cost in each.items())
    told = f"In units of one gradient of the same block, everything else frozen, a product costs: {costs}."
    if number == 1:
        return told
    met = ", ".join(f"{name}: {'met' if each[name] <= ENOUGH else 'NOT met'}" for name in each if name.startswith(OURS))
    return f"{told} The goal is at most {ENOUGH} each, building included; {met}."


NETWORKS = (
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
)
