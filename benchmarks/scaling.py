"""How the cost of norms, products and traces grows with the tokens, the width, the batch and the number of layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.autograd import grad

from benchmarks import provenance
from benchmarks.counting import count
from benchmarks.harness import QUICK_ROUNDS, Options, Run, Tick, first_calls, interleave, spread
from benchmarks.problem import Problem, Size
from benchmarks.results import Result

NAME, TITLE = "scaling", "Cost of norms, products and traces as L, d, the batch and the layers grow"
KINDS = ("norms", "product", "trace")
GRADIENT = "gradient"
ROUNDS = 15


@dataclass(frozen=True)
class Expectation:
    """Between which powers the counted operations should grow, and why.

    Attributes:
        low: The power of the summand that grows slowest.
        high: The power of the summand that grows fastest, reached when it dominates.
        why: The summands.
    """

    low: float
    high: float
    why: str


@dataclass(frozen=True)
class Sweep:
    """One factor at a time.

    Attributes:
        name: Key in the results.
        label: The factor with what is held fixed, for an axis.
        field: The field of the sizes that varies.
        values: What it runs over.
        base: The other sizes.
        expected: By kind of cost, with "gradient".
        runs: From sizes to what is run, by kind.
        rounds: Of a full run.
    """

    name: str
    label: str
    field: str
    values: tuple[int, ...]
    base: Any
    expected: dict[str, Expectation]
    runs: Callable[[Any], dict[str, Run]]
    rounds: int = ROUNDS


def runs_of_layer(size: Size) -> dict[str, Run]:
    """One gradient; norms and trace from scratch; a product with the whole matrix, its blocks built beforehand."""
    problem = Problem(size)
    leaves = problem.leaves()
    built = problem.hessian().full
    v = torch.ones(sum(w.numel() for w in problem.weights), dtype=torch.float64)
    return {
        GRADIENT: lambda: grad(problem.loss(*leaves), leaves),
        "norms": lambda: problem.hessian().full.norms(),
        "product": lambda: built @ v,
        "trace": lambda: problem.hessian().full.trace(),
    }


def slope(values: Sequence[float], costs: Sequence[float]) -> float:
    """The exponent of the power law that fits best."""
    return float(np.polyfit(np.log(values), np.log(costs), 1)[0])


def _measure_size(runs: dict[str, Run], rounds: int) -> dict[str, dict[str, float]]:
    first_calls(runs)
    seconds = interleave(runs, rounds)
    found = {}
    for kind, run in runs.items():
        ratios = [t / g for t, g in zip(seconds[kind], seconds[GRADIENT], strict=True)]
        found[kind] = {
            "seconds": spread(seconds[kind]).median,
            "relative": spread(ratios).median,
            "operations": count(run).total,
        }
    return found


def measure_sweep(sweep: Sweep, rounds: int, tick: Callable[[str], None]) -> dict[str, Any]:
    """Costs at every value of the factor, and the exponents that fit them."""
    points = []
    for value in sweep.values:
        points.append(_measure_size(sweep.runs(replace(sweep.base, **{sweep.field: value})), rounds))
        tick(f"{sweep.field} = {value}")
    costs = {kind: {key: [p[kind][key] for p in points] for key in points[0][kind]} for kind in points[0]}
    slopes = {kind: {key: slope(sweep.values, c) for key, c in by.items()} for kind, by in costs.items()}
    return {"label": sweep.label, "values": list(sweep.values), "costs": costs, "slopes": slopes}


def steps(sweeps: Sequence[Sweep]) -> int:
    """Number of ticks that `measure` gives."""
    return sum(len(s.values) for s in sweeps)


def measure(sweeps: Sequence[Sweep], options: Options, tick: Tick) -> Result:
    """Run every sweep."""
    torch.set_num_threads(options.threads)
    found = {s.name: measure_sweep(s, QUICK_ROUNDS if options.quick else s.rounds, tick) for s in sweeps}
    return Result(
        name=NAME,
        title=TITLE,
        setting={"dtype": "float64", "d_K": "d", "d_V": "d"},
        target=None,
        against=GRADIENT,
        rounds=QUICK_ROUNDS if options.quick else ROUNDS,
        timings=(),
        details={"sweeps": found},
        provenance=provenance.collect(),
    )
