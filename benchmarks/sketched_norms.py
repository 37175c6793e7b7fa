"""Norms of all nine blocks to a per cent: ours by a sketch, chosen by the library, against a kept graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace

import torch
from torch import Tensor

import hessianlens as hl
from benchmarks import hutchinson
from benchmarks.accuracy import Accuracy, measure_accuracy
from benchmarks.harness import Benchmark, Competitor, Report, Run
from benchmarks.problem import EMBEDDINGS, NAMES, Problem, Size
from benchmarks.results import OURS, Result
from benchmarks.wording import times, verdicts

RTOL = 0.02
"""Half the width of an interval of 95 %: a standard error of one per cent."""
PROBES = 36
"""Probes a column parameter, with which the kept graph has an error of one per cent on normal tokens."""
GROUPS, QUICK_GROUPS = 20, 4


def _norms(problem: Problem, seed: int) -> hl.network.BlockNorms:
    return hl.block_norms(problem.hessian(), parts=("full",), rtol=RTOL, seed=seed)


def _table(norms: hl.network.BlockNorms) -> Tensor:
    return torch.tensor([[norms[r, c, "full"].value for c in NAMES] for r in NAMES], dtype=torch.float64)


def _ours(problem: Problem) -> Run:
    return lambda: _table(_norms(problem, 0))


def _exact(problem: Problem) -> Run:
    def run() -> Tensor:
        found = problem.hessian().full.norms()
        return torch.stack([torch.stack([found[r, c] for c in NAMES]) for r in NAMES])

    return run


def _kept(problem: Problem) -> Run:
    probes = hutchinson.draw(problem, PROBES)
    return lambda: hutchinson.norms(hutchinson.kept_graph(problem, probes))


def check(outputs: Mapping[str, object]) -> None:
    """The sketch is within a tenth of the exact norms, the probes, whose spread may be large, nearer than a factor."""
    sketched, exact, probed = (outputs[name] for name in (OURS_NAME, EXACT, KEPT))
    assert isinstance(sketched, Tensor) and isinstance(exact, Tensor) and isinstance(probed, Tensor)
    if not torch.allclose(sketched, exact, rtol=0.1, atol=0):
        raise AssertionError(f"The sketch is far from the exact norms: {sketched / exact}.")
    if not torch.allclose(probed, exact, rtol=0.5, atol=0):
        raise AssertionError(f"The estimates are far from the exact norms: {probed / exact}.")


def _notes(error: float, median: float, found: Accuracy, result: Result, why: Mapping[object, str]) -> list[str]:
    kept, exact = result.timing(KEPT), result.timing(EXACT)
    scale = found.probes / PROBES
    return [
        f"The sketch, asked for intervals of {RTOL:.0%}, is off by {error:.2%} on its worst block and {median:.2%} on "
        f"the median one (root mean square over {found.groups} seeds).",
        f"The kept graph takes {found.probes} probes a column parameter for that error on every block: at equal "
        f"accuracy and precision the sketch is {times(kept.ratio.median * scale)} as fast, and "
        f"{times(exact.ratio.median)} as fast as the exact norms.",
        *(f"{row}{column}: {reason}." for (row, column), reason in why.items() if row <= column),  # type: ignore[misc]
    ]


def report(problem: Problem, outputs: Mapping[str, object], result: Result, quick: bool) -> Report:
    """Errors over many seeds, and the ratio at equal accuracy."""
    exact = outputs[EXACT]
    assert isinstance(exact, Tensor)
    groups = QUICK_GROUPS if quick else GROUPS
    drawn = [_norms(problem, seed) for seed in range(groups)]
    errors = torch.stack([_table(norms) / exact - 1 for norms in drawn]).square().mean(0).sqrt()
    worst, median = float(errors.max()), float(errors.median())
    found = measure_accuracy(problem, exact, 20, groups, wanted=max(worst, 1e-6))
    details = {
        "rtol": RTOL,
        "error": {"worst": worst, "median": median},
        "probes_of_the_kept_graph": found.probes,
        "ratio_at_equal_accuracy": result.timing(KEPT).ratio.median * found.probes / PROBES,
        "accuracy": asdict(found),
        "samples": {f"{r}{c}": norm.probes for ((r, c), _), norm in drawn[0].items()},
    }
    return details, [*verdicts(result), *_notes(worst, median, found, result, drawn[0].why)]


OURS_NAME, EXACT, KEPT = "hessianlens, to 1 %", "hessianlens, exact", f"kept graph, {3 * PROBES} products"

BENCHMARK = Benchmark(
    name="block_norms_sketch",
    title="Frobenius norms of all nine blocks to 1 %, by the cheapest way, against a kept graph",
    size=Size(batch=8, length=64, width=128),
    tiny=Size(batch=2, length=4, width=3),
    competitors=(Competitor(OURS_NAME, _ours, OURS), Competitor(EXACT, _exact), Competitor(KEPT, _kept)),
    check=check,
    report=report,
    target=6,
    against=KEPT,
    rounds=7,
    memory=(OURS_NAME, KEPT),
)

LIKE_EMBEDDINGS = replace(
    BENCHMARK,
    name="block_norms_sketch_words",
    title=f"{BENCHMARK.title}; tokens like embeddings",
    size=Size(batch=8, length=64, width=128, tokens=EMBEDDINGS),
    tiny=Size(batch=2, length=4, width=3, tokens=EMBEDDINGS),
)
