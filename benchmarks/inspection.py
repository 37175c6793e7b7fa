"""`hessianlens inspect` of a small GPT-2 from a folder: what it takes in gradients, and what the time goes into."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from tempfile import TemporaryDirectory

import torch

from benchmarks import provenance
from benchmarks.harness import Options, Tick, clock
from benchmarks.last_layer import gpt2
from benchmarks.results import OURS, PEER, Result, Spread, Timing
from hessianlens.inspect.inspection import Inspection
from hessianlens.inspect.preparation import open_model
from hessianlens.inspect.settings import Settings
from hessianlens.problems import Problem
from hessianlens.work_times import WorkTimes

NAME, TITLE = "inspect_gpt2", "`hessianlens inspect` of a GPT-2 with 5 million parameters, 4 probes per block"
WHOLE, GRADIENT = "inspect, with loading", "one gradient"
_GOAL = 0.8
"""Share of Hessian-vector products in the time after the model is loaded and checked."""
_TARGET = 0.005
"""A gradient over the whole: 200 gradients."""
_GRADIENTS = 5


@dataclass(frozen=True)
class Size:
    """Sizes of the model and of its random data."""

    layers: int = 4
    width: int = 256
    words: int = 4000
    length: int = 32
    probes: int = 4


TINY = Size(layers=1, width=8, words=12, length=6, probes=2)


def run(options: Options, tick: Tick, size: Size | None = None) -> Result:
    """Save a model, inspect it, and count what a gradient of the same data takes.

    Args:
        options: How many threads.
        tick: Called after every part.
        size: Of the model; by default about five million parameters.
    """
    torch.set_num_threads(options.threads)
    chosen = size or Size()
    with TemporaryDirectory() as folder:
        gpt2(chosen.layers, chosen.width, chosen.words, chosen.length).save_pretrained(folder)
        tick("saved")
        began = clock()
        opened = open_model(Settings(folder, probes=chosen.probes, length=chosen.length))
        inspection = Inspection(opened)
        inspection.run()
        inspection.advice()
        whole = clock() - began
    tick("inspected")
    problem, times = opened.problem, inspection.measured.work
    gradient = _gradient_seconds(problem)
    timings = (
        Timing(WHOLE, OURS, Spread(whole, whole, whole), Spread(1.0, 1.0, 1.0), whole),
        Timing(GRADIENT, PEER, Spread(gradient, gradient, gradient), _ratio(gradient / whole), gradient),
    )
    result = Result(
        name=NAME,
        title=TITLE,
        setting={"layers": chosen.layers, "d": chosen.width, "L": chosen.length, "probes": chosen.probes},
        target=_TARGET,
        against=GRADIENT,
        rounds=1,
        timings=timings,
        details=_details(times, gradient, whole, inspection.measured.products),
        notes=(_said(times, gradient, whole, inspection.measured.products),),
        provenance=provenance.collect(),
    )
    if size is None:
        result.save()
    return result


def _gradient_seconds(problem: Problem) -> float:
    """A gradient with respect to all parameters, in plain PyTorch."""
    written, seconds = problem.as_written(), []
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in written.params.items()}
    for _ in range(_GRADIENTS):
        began = clock()
        torch.autograd.grad(written.total_loss(leaves), list(leaves.values()))
        seconds.append(clock() - began)
    return median(seconds)


def _details(times: WorkTimes, gradient: float, whole: float, products: int) -> dict[str, object]:
    return {
        "gradients": whole / gradient,
        "products": products,
        "gradients by kind of work": {kind: seconds / gradient for kind, seconds in times.by_kind().items()},
        "share of HVPs": times.hvps / times.measuring,
        "share of HVPs and closed forms": (times.hvps + times.closed_forms) / times.measuring,
    }


def _said(times: WorkTimes, gradient: float, whole: float, products: int) -> str:
    before = times.loading + times.checks + times.forecast
    return (
        f"{whole / gradient:.0f} gradients for {products} products with random vectors, each in two parts. After "
        f"{before / gradient:.0f} gradients of loading, checks and forecast, {times.hvps / times.measuring:.0%} of the "
        f"processor's time goes into HVPs ({times.hvps / gradient / products:.2f} gradients each), "
        f"{times.closed_forms / times.measuring:.0%} into closed forms, {times.recording / times.measuring:.0%} into "
        f"recording graphs and tapes; goal: {_GOAL:.0%} into HVPs."
    )


def _ratio(value: float) -> Spread:
    return Spread(value, value, value)
