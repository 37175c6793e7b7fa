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


def _page(results: list[Result]) -> str:
    compared = [result for result in results if any(t.role == PEER for t in result.timings)]
    lost = [result for result in compared if result.fastest_peer.ratio.median < 1]
    won = [result for result in compared if result not in lost]
    lines = [
        "# Benchmarks",
        "",
        f"{len(won)} of {len(compared)} comparisons are won, {len(lost)} are lost to the fastest peer; those come first.",
        "A ratio is the time of the peer over the time of hessianlens, measured in turns within one run: above 1 hessianlens",
        "is faster. Median, and quartiles in brackets. `make bench` repeats all of it.",
        "",
        "## Where a peer wins",
        "",
        *_table(lost),
        "## Where hessianlens wins",
        "",
        *_table(sorted(won, key=lambda result: -result.fastest_peer.ratio.median)),
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


def _table(results: list[Result]) -> list[str]:
    lines = [
        "| question | hessianlens | the fastest peer | ratio | memory of both |",
        "| --- | --- | --- | --- | --- |",
    ]
    for result in results:
        ours, peer = result.timings[0], result.fastest_peer
        lines.append(
            f"| [{result.title}](#{result.name}) | {duration(ours.seconds.median)} | {peer.name}, "
            f"{duration(peer.seconds.median)} | {with_spread(peer.ratio)} | {_memory(result, ours)}, {_memory(result, peer)} |"
        )
    return [*lines, ""]


def _memory(result: Result, timing: Timing) -> str:
    return readable(result.memory[timing.name].run) if timing.name in result.memory else "–"
