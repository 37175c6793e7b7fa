"""Which blocks a table has, what it will take, and batches that keep it within a limit of memory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from hessianlens.errors import InputError
from hessianlens.memory import SAFE_SHARE
from hessianlens.models.adapters.cutting import cut_problem
from hessianlens.network.base.sampling import GraphSource, Request
from hessianlens.network.forecasting import Forecast, forecast
from hessianlens.problems import Block, Problem, layer_groups
from hessianlens.sizes import parse_size, readable


def choose_blocks(problem: Problem, patterns: Sequence[str], per_head: bool = False) -> list[Block]:
    """The blocks of a table, all of them without a pattern.

    Args:
        problem: From `hessianlens.problem`.
        patterns: Names, globs or ``re:`` expressions.
        per_head: Whether heads stand in place of what they are cut from, unless that is named itself.
    """
    blocks = problem.select(list(patterns)) if patterns else list(problem.blocks.values())
    if not per_head:
        return blocks
    heads = {block.name: problem.parts.get(block.name, [block]) for block in blocks}
    return problem.select(
        [b.name for block in blocks for b in ([block] if block.name in patterns else heads[block.name])]
    )


@dataclass(frozen=True)
class TableCost:
    """What a table will take.

    Attributes:
        memory: Bytes and products.
        seconds: A guess, from two products of the first and of the last blocks; closed forms are not counted in.
    """

    memory: Forecast
    seconds: float


def cost(problem: Problem, blocks: Sequence[Block], parts: Sequence[str], probes: int) -> TableCost:
    """Memory and time of a table."""
    groups = layer_groups(blocks)
    ends = [groups[0], groups[-1]]
    building = each = 0.0
    for group in ends:
        requests = [Request(block, 0, 2 if block is group[0] else 0) for block in group]
        seconds, start = [], time.perf_counter()
        for _ in GraphSource(problem, parts, 0).draw(requests):
            seconds.append(time.perf_counter() - start)
            start = time.perf_counter()
        each += seconds[-1] / len(ends)
        building += max(seconds[0] - seconds[-1], 0.0) / len(ends)
    memory = forecast(problem, blocks, probes, len(parts), closed_forms=True)
    return TableCost(memory, building * len(groups) + each * memory.products)


def within_memory(
    problem: Problem, blocks: Sequence[Block], probes: int, parts: int, max_memory: str | float | None
) -> tuple[Problem, Forecast]:
    """The problem with its batches cut so that the process stays within a limit, and what it will take.

    Args:
        problem: From `hessianlens.problem`.
        blocks: What will be measured.
        probes: Random vectors a block.
        parts: Number of parts.
        max_memory: Such as "2GB", for the whole process; None for most of what is free.

    `InputError` names the setting that would fit if cutting the batches is not enough. Of several processes each cuts
    its own; what does not fit in one of them is refused by all.
    """
    with problem.ranks.jointly("memory"):
        made, width = fitting_width(problem, blocks, probes, parts, max_memory)
        if width >= made.sequences:
            return problem, made
        cut = cut_problem(problem, width, "max_memory")
        return cut, forecast(cut, blocks, probes, parts, closed_forms=True)


def fitting_width(
    problem: Problem, blocks: Sequence[Block], probes: int, parts: int, max_memory: str | float | None
) -> tuple[Forecast, int]:
    """What a table will take, and how many sequences at a time fit; `InputError` if not even one does.

    Args:
        problem: From `hessianlens.problem`, or a draft of it.
        blocks: What will be measured.
        probes: Random vectors a block.
        parts: Number of parts.
        max_memory: As for `within_memory`.
    """
    made = forecast(problem, blocks, probes, parts, closed_forms=True)
    room = SAFE_SHARE * made.available if max_memory is None else parse_size(max_memory) - made.process_bytes
    width = made.micro_batch(room)
    if width > 0 or made.sequences == 0:
        return made, width
    least = made.process_bytes + made.vector_bytes + made.bytes_per_sequence
    got = f"only {readable(made.available)} are free" if max_memory is None else f"got {max_memory}"
    raise InputError(
        f"max_memory: one sequence at a time needs {readable(least)} ({readable(made.process_bytes)} that the process "
        f"holds already, {readable(made.vector_bytes)} of vectors, {readable(made.bytes_per_sequence)} of graph), "
        f"{got}; {_remedy(problem, blocks, made, room, least, given=max_memory is not None)}."
    )


def _remedy(problem: Problem, blocks: Sequence[Block], made: Forecast, room: float, least: int, given: bool) -> str:
    """The first setting that would fit: smaller blocks, shorter sequences; else the least memory that would."""
    widest = max(block.numel for block in blocks)
    left = room - made.bytes_per_sequence
    # What does not grow with the sequences is a multiple of the widest block.
    entries = int(widest * left / max(made.vector_bytes, 1)) if left > 0 else 0
    if any(block.numel <= entries for block in blocks):
        return f"blocks of at most {entries} entries would fit: leave out larger ones with --blocks"
    more = f"--max-memory {readable(1.05 * least).replace(' ', '')} would fit, or " if given else ""
    return f"{more}shorter sequences with --length, or --dtype float32"
