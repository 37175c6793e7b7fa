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
    "layer_diagonal",
    "layer_trace",
    "layer_trace_classes",
    "ranks_product",
    "watch_heads",
    "watch_overhead",
    "watch_products",
]
"""Measurements whose other side is no way to the same answer, but a unit in which a cost is stated."""
TITLES = {
    "network_last_trained": "All norms from the last attention of a trained GPT-2 on",
    "network_layer_norms": "Six norms of every layer of a three-layer model",
    "training_wide": "Sixteen trainings of a wider Transformer, on twice the data",
}
"""Titles that are understood away from the measurement before them."""


def _page(results: list[Result]) -> str:
    compared = [result for result in results if any(t.role == PEER for t in result.timings)]
    units = [result for result in compared if result.name in UNITS]
    peers = [result for result in compared if result not in units]
    lost = [result for result in peers if result.fastest_peer.ratio.median < 1]
    won = [result for result in peers if result not in lost]
    lines = [
        "# Benchmarks",
        "",
        f"Peers win {len(lost)} of {len(peers)} comparisons; those come first. A ratio is the time of the peer over the time of",
        "hessianlens, measured in turns within one run: above 1 hessianlens is faster. Median, and quartiles in brackets.",
        "`make bench` repeats all of it.",
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
        f"| question | hessianlens | {peer_title} | ratio | memory of both |",
        "| --- | --- | --- | --- | --- |",
    ]
    for result in results:
        ours, peer = result.timings[0], result.fastest_peer
        lines.append(
            f"| [{TITLES.get(result.name, result.title)}](#{result.name}) | {duration(ours.seconds.median)} | {peer.name}, "
            f"{duration(peer.seconds.median)} | {with_spread(peer.ratio)} | {_memory(result, ours)}, {_memory(result, peer)} |"
        )
    return [*lines, ""]


def _memory(result: Result, timing: Timing) -> str:
    return readable(result.memory[timing.name].run) if timing.name in result.memory else "–"
