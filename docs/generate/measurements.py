"""The page of benchmarks, from the results that the last run of each recorded."""

from __future__ import annotations

from pathlib import Path

from benchmarks import summary
from benchmarks.results import PEER, RESULTS, Result, Timing
from benchmarks.wording import duration, with_spread
from hessianlens.sizes import readable


def write(folder: Path) -> None:
    """Write `benchmarks.md`, and the scaling curves beside it."""
    results = [Result.from_json(file.read_text(encoding="utf-8")) for file in sorted(RESULTS.glob("*.json"))]
    (folder / "scaling.svg").write_bytes((RESULTS / "scaling.svg").read_bytes())
    (folder / "benchmarks.md").write_text(_page(results), encoding="utf-8")


UNITS = [
    "attention_product_long",
    "certificate_last_layer",
    "certificate_one_layer",
    "explorer_medium",
    "explorer_small",
    "inspect_gpt2",
    "layer_diagonal",
    "layer_trace",
    "layer_trace_classes",
    "ranks_product",
    "watch_heads",
    "watch_loop_300",
    "watch_loop_3000",
    "watch_products",
    "watch_trainer_300",
]
"""Measurements whose other side is no way to the same answer, but a unit in which a cost is stated."""
TITLES = {
    "network_last_trained": "All norms from the last attention of a trained GPT-2 on",
    "one_norm_interval": "One norm in the last layer of twelve, to 5 %",
    **{
        f"vectors_{size}": f"Eight products with an operator built before, {size} model"
        for size in ("tiny", "small", "toy")
    },
    "network_layer_norms": "Six norms of every layer of a three-layer model",
    "training_wide": "Sixteen trainings of a wider Transformer, on twice the data",
}
"""Titles that are understood away from the measurement before them."""


def outcomes(results: list[Result]) -> tuple[list[Result], list[Result]]:
    """Comparisons that a peer wins, and those that the library wins."""
    compared = [result for result in results if any(t.role == PEER for t in result.timings)]
    peers = [result for result in compared if result.name not in UNITS]
    lost = [result for result in peers if result.fastest_peer.ratio.median < 1]
    return lost, [result for result in peers if result not in lost]


def _page(results: list[Result]) -> str:
    lost, won = outcomes(results)
    units = [result for result in results if result.name in UNITS]
    lines = [
        "# Benchmarks",
        "",
        f"Peers win {len(lost)} of {len(lost) + len(won)} comparisons; those come first. A ratio is the time of the peer over the time of",
        "hessianlens, measured in turns within one run: above 1 hessianlens is faster. Median, and quartiles in brackets.",
        "`make bench` repeats all of it.",
        "",
        "Peers are PyTorch's own ways (double backward through a kept and a fresh graph, `torch.func`, `vmap`, fused and plain attention),",
        "SciPy's `eigsh`, curvlinops, PyHessian and hessian-eigenthings. All answers are compared before anything is timed. The matmul peak is",
        "the speed of a 1024 x 1024 matrix product of the same dtype and threads, timed in the same rounds: counted operations per second over it",
        "say how much of the machine is used. Where a kernel's operations are not counted, nothing is stated.",
        "",
        "Peers win where one answer is asked for once: a single HVP of a small model, which autograd gives without a check;",
        "estimates of norms with few probes where the exact sum has many tokens. hessianlens wins where structure can be used,",
        "where answers repeat, and where memory decides.",
        "",
        "## Where a peer wins",
        "",
        *_table(sorted(lost, key=lambda result: result.fastest_peer.ratio.median)),
        "## Where hessianlens wins",
        "",
        *_table(sorted(won, key=lambda result: -result.fastest_peer.ratio.median)),
        "## Costs in units of something else",
        "",
        "No peer gives the same answer here. The ratio says how much of the unit the answer costs: 0.2 is five units.",
        "",
        *_table(units, "unit"),
        "## Scaling",
        "",
        "![Time and memory along length, width, heads and batch](scaling.svg)",
        "",
        *_exponents(results),
        "## Every measurement",
        "",
    ]
    for result in results:
        lines += [
            summary.section(result)
            .replace("\n## ", "\n### ")
            .replace("## ", "### ", 1)
            .replace("(scaling.md)", "(#scaling)")
        ]
    return "\n".join(lines)


def _table(results: list[Result], peer_title: str = "the fastest peer") -> list[str]:
    lines = [
        f"| question | hessianlens | {peer_title} | ratio | memory of both | matmul peak of both |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for result in results:
        ours, peer = result.timings[0], result.fastest_peer
        lines.append(
            f"| [{TITLES.get(result.name, result.title)}](#{result.name}) | {duration(ours.seconds.median)} | {peer.name}, "
            f"{duration(peer.seconds.median)} | {with_spread(peer.ratio)} | {_memory(result, ours)}, {_memory(result, peer)} | "
            f"{summary.of_peak(result, ours) or '–'}, {summary.of_peak(result, peer) or '–'} |"
        )
    return [*lines, ""]


def _exponents(results: list[Result]) -> list[str]:
    """How costs grow along each sweep: fitted exponents of time, and gradients that an answer takes at its end."""
    (found,) = (result for result in results if "sweeps" in result.details)
    lines = [
        "Fitted exponents of time along each sweep, and what an answer takes at the end of it, in gradients of the same loss:",
        "",
        "| sweep | cost | exponent of time | exponent of counted operations | gradients at the end |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, sweep in found.details["sweeps"].items():
        for kind, slopes in sweep["slopes"].items():
            at_end = sweep["costs"][kind]["relative"][-1]
            lines.append(f"| {name} | {kind} | {slopes['seconds']:.2f} | {slopes['operations']:.2f} | {at_end:.3g} |")
    return [*lines, ""]


def _memory(result: Result, timing: Timing) -> str:
    return readable(result.memory[timing.name].run) if timing.name in result.memory else "–"
