"""The whole dense Hessian of one small layer, against dense Hessians by autograd."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.autograd.functional import hessian as autograd_hessian
from torch.func import hessian, jacfwd, jacrev

from benchmarks.counting import calls, count
from benchmarks.harness import Benchmark, Competitor, Report, Run
from benchmarks.problem import Problem, Size
from benchmarks.results import OURS, Result
from benchmarks.wording import duration, operations, verdicts

AGREEMENT = 1e-10


def _twice_reverse(loss: Callable) -> Callable:
    return jacrev(jacrev(loss))


def _ours(problem: Problem) -> Run:
    return lambda: problem.hessian().full[:].to_dense()


def flat_loss(problem: Problem) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """The loss as a function of all weights in one vector, and that vector."""
    shapes = [w.shape for w in problem.weights]
    sizes = [w.numel() for w in problem.weights]

    def loss(theta: Tensor) -> Tensor:
        return problem.loss(*(p.view(s) for p, s in zip(theta.split(sizes), shapes, strict=True)))

    return loss, torch.cat([w.reshape(-1) for w in problem.weights])


def _functional(transform: Callable[[Callable], Callable]) -> Callable[[Problem], Run]:
    def prepare(problem: Problem) -> Run:
        loss, theta = flat_loss(problem)
        return lambda: transform(loss)(theta)

    return prepare


def _vectorised(problem: Problem) -> Run:
    loss, theta = flat_loss(problem)
    return lambda: autograd_hessian(loss, theta, vectorize=True)


def check(outputs: Mapping[str, object]) -> None:
    """Every Hessian equals the first to `AGREEMENT`, relative to its largest entry."""
    first, *others = ((name, out) for name, out in outputs.items() if isinstance(out, Tensor))
    for name, out in others:
        gap = float((out - first[1]).abs().max() / first[1].abs().max())
        if not gap <= AGREEMENT:
            raise AssertionError(f"{name} differs from {first[0]} by {gap:.2g} of the largest entry.")


def report(problem: Problem, outputs: Mapping[str, object], result: Result, quick: bool) -> Report:
    """Verdicts and counted arithmetic."""
    run, other = _ours(problem), _functional(_twice_reverse)(problem)
    own, peer = count(run), count(other)
    size = sum(w.numel() for w in problem.weights)
    ours = result.timings[0]
    notes = [
        *verdicts(result),
        f"The Hessian has {size} x {size} entries, {size * size * 8 / 1e6:.3g} MB to be written at the very least.",
        f"Matrix products count {operations(own.matmul)} operations here and {operations(peer.matmul)} in "
        f"jacrev(jacrev), in {calls(run)} and {calls(other)} calls of tensor operations. At this size a call "
        "costs some microseconds whatever it computes, and that, not arithmetic, bounds the ratio.",
        f"The first call takes {duration(ours.first)} instead of {duration(ours.seconds.median)}, for what is loaded "
        "and set up once.",
    ]
    return {"parameters": size, "matmul_operations": {"hessianlens": own.matmul, "jacrev(jacrev)": peer.matmul}}, notes


BENCHMARK = Benchmark(
    name="dense_hessian",
    title="Whole dense Hessian of one layer",
    size=Size(batch=1, length=17, width=16),
    tiny=Size(batch=2, length=4, width=3),
    competitors=(
        Competitor("hessianlens", _ours, OURS),
        Competitor("torch.func.hessian", _functional(hessian)),
        Competitor("jacrev(jacrev)", _functional(_twice_reverse)),
        Competitor("jacfwd(jacrev)", _functional(lambda f: jacfwd(jacrev(f)))),
        Competitor("autograd.functional.hessian, vectorised", _vectorised),
    ),
    check=check,
    report=report,
    target=10,
    against="torch.func.hessian",
    rounds=60,
    memory=("hessianlens", "torch.func.hessian", "jacrev(jacrev)"),
)
