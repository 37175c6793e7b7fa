"""The exact trace and the whole diagonal of a layer's Hessian, against a gradient and random probes of the trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.autograd import grad

from benchmarks.harness import Benchmark, Competitor, Report, Run
from benchmarks.hutchinson import draw
from benchmarks.problem import ClassProblem, Problem, Size
from benchmarks.results import OURS, Result
from benchmarks.wording import verdicts

GOAL = 5
"""Gradients in whose time the trace is to be found."""
PROBES = 20
STANDARD_ERRORS = 6
"""Within which the mean of the probes has to agree."""


def _trace(problem: Problem) -> Run:
    return lambda: problem.hessian().full[:].trace()


def _diagonal(problem: Problem) -> Run:
    return lambda: problem.hessian().full[:].diagonal()


def _gradient(problem: Problem) -> Run:
    def run() -> tuple[Tensor, ...]:
        leaves = problem.leaves()
        return grad(problem.loss(*leaves), leaves)

    return run


def _probes(problem: Problem) -> Run:
    probes = draw(problem, PROBES)

    def run() -> Tensor:
        leaves = problem.leaves()
        gradient = grad(problem.loss(*leaves), leaves, create_graph=True)
        found = []
        for vectors in zip(*probes, strict=True):
            products = grad(gradient, leaves, vectors, retain_graph=True)
            found.append(sum((v * p).sum() for v, p in zip(vectors, products, strict=True)))
        return torch.stack(found)

    return run


def check(outputs: Mapping[str, object]) -> None:
    """The mean of the probes agrees with the exact trace within `STANDARD_ERRORS` of its own."""
    exact, values = outputs[_OURS_NAME], outputs[_PROBES_NAME]
    assert isinstance(exact, Tensor)
    assert isinstance(values, Tensor)
    gap, error = abs(float(exact.sum() - values.mean())), float(values.std()) / len(values) ** 0.5
    if not gap <= STANDARD_ERRORS * error:
        raise AssertionError(f"The trace differs from its estimate by {gap:.3g}, {gap / error:.3g} standard errors.")


def report(problem: Problem, outputs: Mapping[str, object], result: Result, quick: bool) -> Report:
    """How many gradients it takes, and how far the probes are off."""
    gradients = 1 / result.timing(_GRADIENT_NAME).ratio.median
    values = outputs[_PROBES_NAME]
    assert isinstance(values, Tensor)
    error = float(values.std() / values.mean().abs()) / len(values) ** 0.5
    notes = [
        *verdicts(result),
        f"It takes as long as {gradients:.2g} gradients (goal: {GOAL}), {'met' if gradients <= GOAL else 'NOT met'}; "
        f"{PROBES} probes of the trace {gradients * result.timing(_PROBES_NAME).ratio.median:.2g}, for a standard "
        f"error of {100 * error:.2g} %.",
    ]
    return {"gradients": gradients, "relative_error_of_probes": error}, notes


_OURS_NAME = "hessianlens"
_GRADIENT_NAME = "one gradient"
_PROBES_NAME = f"trace by {PROBES} probes, kept graph"


def _benchmark(name: str, what: str, ours: Competitor, make: Callable[[Size], Problem] = Problem) -> Benchmark:
    return Benchmark(
        name=name,
        title=f"The exact {what}",
        size=Size(batch=2, length=256, width=32),
        tiny=Size(batch=2, length=4, width=3),
        competitors=(ours, Competitor(_GRADIENT_NAME, _gradient), Competitor(_PROBES_NAME, _probes)),
        check=check,
        report=report,
        target=1 / GOAL,
        against=_GRADIENT_NAME,
        rounds=40,
        make=make,
    )


BENCHMARKS = (
    _benchmark("layer_trace", "trace of a layer's Hessian", Competitor(_OURS_NAME, _trace, OURS)),
    _benchmark(
        "layer_trace_classes",
        "trace of a layer's Hessian under cross-entropy",
        Competitor(_OURS_NAME, _trace, OURS),
        ClassProblem,
    ),
    _benchmark("layer_diagonal", "diagonal of a layer's Hessian", Competitor(_OURS_NAME, _diagonal, OURS)),
)
