"""The data of all ranks on each of them, for closed forms: these are no sums of what single ranks know.

A norm of ``H_1 + H_2`` takes the inner product of the two. So every rank gets all of the data, which is small beside
what a closed form holds of it, and finds the closed forms of some blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hessianlens.distributed import SINGLE_RANK
from hessianlens.errors import Refusal
from hessianlens.memory import SAFE_SHARE, available_bytes
from hessianlens.problems import Batch, Problem, map_tensors, move, tensors
from hessianlens.sizes import readable

MOST_BYTES = 2**28
"""Data of all ranks up to which each of them gets all of it."""


@dataclass(frozen=True, eq=False)
class _AllData:
    """A problem on the data of all ranks, or why not."""

    problem: Problem | Refusal


def on_all_data(problem: Problem) -> Problem | Refusal:
    """A problem on the data of all ranks, on this one; a refusal if that is too much.

    Args:
        problem: From `hessianlens.problem`.

    >>> import hessianlens as hl
    >>> model, task = hl.models.Transformer(layers=1, d_model=4, d_mlp=3), hl.tasks.Addition()
    >>> problem = hl.problem(model, task.batch(2, seed=0), task.cross_entropy)
    >>> on_all_data(problem) is problem
    True
    """
    if problem.ranks.size == 1:
        return problem
    return problem.cached(_AllData, lambda: _AllData(_gathered(problem))).problem


def _gathered(problem: Problem) -> Problem | Refusal:
    sizes = problem.ranks.all_gather(
        "sizes of the data", lambda: (_bytes(problem.data), available_bytes(problem.device))
    )
    held, free = sum(size for size, _ in sizes), min(free for _, free in sizes)
    if held > min(MOST_BYTES, SAFE_SHARE * free):
        return Refusal(f"a closed form needs the data of all {problem.ranks.size} ranks in each, {readable(held)}")
    here = [map_tensors(lambda tensor: tensor.cpu(), batch) for batch in problem.data]
    everything = [batch for share in problem.ranks.all_gather("data", lambda: here) for batch in share]
    return replace(problem, data=[move(batch, None, problem.device) for batch in everything], ranks=SINGLE_RANK)


def _bytes(data: Batch) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors(data))
