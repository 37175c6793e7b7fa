"""Norms block by block, so that progress can be shown and an interruption keeps what is done."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from hessianlens.errors import InputError
from hessianlens.inspect.table import Row
from hessianlens.models.discovery.heads import head_name
from hessianlens.network.forecast import Forecast, fit_memory, forecast, parse_size
from hessianlens.network.norms import block_norms
from hessianlens.parts import PARTS
from hessianlens.problems import Block, Problem
from hessianlens.sizes import readable

_LAYER = re.compile(r"(?:^|\.)layer(\d+)\.")
_SHARE = 0.8
"""Share of the free memory that is used where no limit is given."""


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
    return [b for b in blocks if b.name in patterns or head_name(b.name, 0) not in problem.blocks]


def groups(blocks: Sequence[Block]) -> list[list[Block]]:
    """Blocks that are measured together: those of one attention layer share a closed form, others stand alone.

    >>> import torch
    >>> made = [Block.of(n, n, torch.zeros(1)) for n in ("embed", "layer0.attn.q", "layer0.attn.k", "layer0.mlp.in")]
    >>> [[block.name for block in group] for group in groups(made)]
    [['embed'], ['layer0.attn.q', 'layer0.attn.k'], ['layer0.mlp.in']]
    """
    found: dict[str, list[Block]] = {}
    for block in blocks:
        layer, attention, _ = block.name.partition(".attn.")
        found.setdefault(layer + attention if attention else block.name, []).append(block)
    return list(found.values())


def rows(
    problem: Problem,
    blocks: Sequence[Block],
    parts: Sequence[str] = PARTS,
    *,
    probes: int = 20,
    seed: int = 0,
    on_group: Callable[[str], None] | None = None,
) -> Iterator[Row]:
    """A row for each block, as soon as its group is measured.

    Args:
        problem: From `hessianlens.problem`.
        blocks: The blocks.
        parts: Among "full", "ggn" and "functional".
        probes: Random vectors a block.
        seed: Seed of the probes.
        on_group: Called with a title before a group is measured.
    """
    for group in groups(blocks):
        if on_group is not None:
            on_group(group[0].name + (f" and {len(group) - 1} more" if len(group) > 1 else ""))
        found = block_norms(problem, [block.name for block in group], parts, probes=probes, seed=seed)
        for block in group:
            yield Row.of(block, {part: found[block.name, part] for part in parts})


@dataclass(frozen=True)
class Cost:
    """What a table will take.

    Attributes:
        memory: Bytes and products; groups of blocks are measured one after the other.
        seconds: A guess, from a few products of the first and of the last block.
    """

    memory: Forecast
    seconds: float


def forecast_rows(problem: Problem, blocks: Sequence[Block], probes: int, parts: int) -> Forecast:
    """Graph of the most demanding block, vectors of the largest group, products of all blocks."""
    graph = forecast(problem, [_deepest(problem, blocks)], probes, parts)
    sizes = [sum(min(probes, block.numel) * block.numel for block in group) for group in groups(blocks)]
    return replace(
        graph,
        products=sum(min(probes, block.numel) for block in blocks),
        vector_bytes=max(sizes) * parts * problem.dtype.itemsize,
    )


def _deepest(problem: Problem, blocks: Sequence[Block]) -> Block:
    """The block whose products hold the largest graph: more of the network lies behind it than behind the others.

    Of blocks in layers only those of the first layer can be it.
    """
    layers = {block.name: _LAYER.search(block.name) for block in blocks}
    first = min((int(found.group(1)) for found in layers.values() if found), default=0)
    candidates = [b for b in blocks if (found := layers[b.name]) is None or int(found.group(1)) == first]
    return max(candidates, key=lambda block: forecast(problem, [block], 1, 1).bytes_per_sequence)


def cost(problem: Problem, blocks: Sequence[Block], parts: Sequence[str], probes: int) -> Cost:
    """Memory and time of a table; the time is measured on a few products, closed forms not counted in."""
    few, more = 2, 4
    fixed = each = 0.0
    ends = [blocks[0], blocks[-1]]
    for block in ends:
        seconds = []
        for count in (few, more):
            start = time.perf_counter()
            block_norms(problem, [block.name], parts, probes=count, method="products")
            seconds.append(time.perf_counter() - start)
        slope = max(seconds[1] - seconds[0], 0.0) / (more - few)
        fixed, each = fixed + max(seconds[0] - few * slope, 0.0) / len(ends), each + slope / len(ends)
    memory = forecast_rows(problem, blocks, probes, len(parts))
    return Cost(memory, fixed * len(blocks) + each * memory.products)


def within_memory(
    problem: Problem, blocks: Sequence[Block], probes: int, parts: int, max_memory: str | None
) -> Problem:
    """The problem with its batches cut so that every block's work stays within a limit.

    Args:
        problem: From `hessianlens.problem`.
        blocks: What will be measured.
        probes: Random vectors a block.
        parts: Number of parts.
        max_memory: Such as "2GB"; None for most of what is free.

    `InputError` names the setting that would fit if cutting the batches is not enough.
    """
    made = forecast_rows(problem, blocks, probes, parts)
    if max_memory is None and made.fits:
        return problem
    limit = _SHARE * made.available if max_memory is None else parse_size(max_memory)
    if made.micro_batch(limit) > 0:
        deepest = _deepest(problem, blocks)
        alone = replace(problem, blocks={deepest.name: deepest})
        # fit_memory counts one vector of this block; the probes and products of a group are held here.
        room = limit - made.vector_bytes + deepest.numel * problem.dtype.itemsize
        return replace(fit_memory(alone, room), blocks=problem.blocks)
    raise InputError(
        f"max_memory: one sequence at a time needs {readable(made.bytes_per_sequence + made.vector_bytes)} "
        f"({readable(made.vector_bytes)} of probes and products), {'got' if max_memory else 'free for it'} "
        f"{readable(limit)}; {_remedy(problem, blocks, made, probes, parts, limit)}."
    )


def _remedy(problem: Problem, blocks: Sequence[Block], made: Forecast, probes: int, parts: int, limit: float) -> str:
    """The first setting that would fit: fewer probes, fewer blocks; else the least memory that would."""
    left, itemsize = limit - made.bytes_per_sequence, problem.dtype.itemsize
    vector = max(sum(block.numel for block in group) for group in groups(blocks)) * parts * itemsize
    fewer = int(left // vector)
    if 2 <= fewer < probes:
        return f"--probes {fewer} would fit"
    smaller = [block for block in blocks if block.numel * min(probes, block.numel) * parts * itemsize <= left]
    if smaller:
        widest = max(smaller, key=lambda block: block.numel)
        return f"a block of at most {widest.numel} entries would fit: leave out larger ones with --blocks"
    least = readable(made.bytes_per_sequence + 2 * vector).replace(" ", "")
    return f"--max-memory {least} with --probes 2 would fit, or shorter sequences with --length"
