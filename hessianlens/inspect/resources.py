"""Memory and time: weights that fit, batches that keep a table within a limit, forward passes over long sequences."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from hessianlens.errors import InputError, expect
from hessianlens.memory import SAFE_SHARE, available_bytes
from hessianlens.models.adapters.micro_batches import cut_problem
from hessianlens.network.base.sampling import GraphSource, Request
from hessianlens.network.forecasting import Forecast, forecast
from hessianlens.problems import Batch, Block, Problem, batch_size, layer_groups, map_tensors, narrow_batch
from hessianlens.sizes import parse_size, readable
from hessianlens.work_times import counted_as


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


@counted_as("forecast")
def within_memory(
    problem: Problem, blocks: Sequence[Block], probes: int, parts: int, max_memory: str | float | None
) -> tuple[Problem, Forecast]:
    """The problem with its batches cut so that the process stays within a limit, and what it will take.

    Args:
        problem: From `hessianlens.problem`.
        blocks: What will be measured.
        probes: Probe vectors per block.
        parts: Number of parts.
        max_memory: Such as "2GB", for the whole process; None for most of what is free.

    `InputError` names the setting that would fit if cutting the batches is not enough. Of several processes each cuts
    its own; what does not fit in one of them is refused by all.
    """
    with problem.ranks.raise_together("memory"):
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
        probes: Probe vectors per block.
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


FIRST_EXCERPT_TOKENS = 64
TIMED_SECONDS = 0.5
"""Time of a run that is long enough to be extrapolated from."""
_REPEATS = 3
"""Runs of an excerpt, of which the fastest counts: other processes only slow a run down."""
_TOKENS = ("input_ids", "tokens")


def sequence_length(batch: Batch) -> int:
    """Tokens of the sequences of a batch; 0 if it holds no token ids.

    >>> import torch
    >>> sequence_length({"input_ids": torch.zeros(2, 5)}), sequence_length({"pixel_values": torch.zeros(2, 3, 8, 8)})
    (5, 0)
    """
    ids = next((batch[key] for key in _TOKENS if key in batch), None) if isinstance(batch, Mapping) else None
    return ids.shape[1] if isinstance(ids, Tensor) and ids.ndim == 2 else 0


def longest_sequence(batches: Iterable[Batch]) -> int:
    """Tokens of the longest sequence."""
    return max(map(sequence_length, batches), default=0)


def excerpt_of(batch: Batch, tokens: int) -> Batch:
    """The first tokens of the first sequence of a batch.

    >>> import torch
    >>> excerpt_of({"input_ids": torch.zeros(2, 5), "labels": torch.zeros(2)}, 3)
    {'input_ids': tensor([[0., 0., 0.]]), 'labels': tensor([0.])}
    """
    return map_tensors(
        lambda tensor: tensor[:, :tokens] if 2 <= tensor.ndim <= 3 else tensor, narrow_batch(batch, 0, 1)
    )


def pass_seconds(problem: Problem) -> float | None:
    """Time of a forward pass over all of the data of a problem; None if its model does not take excerpts.

    Args:
        problem: A draft, or any other problem, of long sequences.
    """
    longest = max(problem.data, key=sequence_length)
    times: list[tuple[int, float]] = []
    tokens = FIRST_EXCERPT_TOKENS
    try:
        while 2 * tokens <= sequence_length(longest) and (len(times) < 2 or times[-1][1] < TIMED_SECONDS):
            excerpt = excerpt_of(longest, tokens)
            times.append((tokens, min(_seconds(problem, excerpt) for _ in range(_REPEATS))))
            tokens *= 2
    except Exception:  # whatever a model says of a sequence of another length
        return None
    if len(times) < 2:
        return None
    (short, first), (long, second) = times[-2:]
    quadratic = max((second / long - first / short) / (long - short), 0.0)
    linear = second / long - quadratic * long
    lengths = [(batch_size(batch), sequence_length(batch)) for batch in problem.data]
    return sum(count * (linear * length + quadratic * length**2) for count, length in lengths)


def _seconds(problem: Problem, batch: Batch) -> float:
    """Time of the loss of a batch."""
    started = time.perf_counter()
    with problem.scope():
        float(problem.batch_loss(problem.params, batch))
    return time.perf_counter() - started


_BYTES_PER_MODULE = 4000
"""What the objects of one module take beside its weights."""


def ensure_model_fits(
    named: str, build: Callable[[int], nn.Module], layers: int, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> None:
    """Refuse a model whose weights would not fit in memory, before any of them exist.

    Weights and modules of n layers are ``a + b n``: models of one and of two layers on the meta device, where weights
    have a size and no contents, tell a and b.

    Args:
        named: The model, for the message.
        build: From a number of layers to a model.
        layers: How many it would have.
        dtype: Dtype of the derivatives, in which the weights are held beside the model's own.
        device: Where they are held.
    """
    try:
        with torch.device("meta"):
            sizes = [_size(build(count), dtype) for count in sorted({1, min(2, layers)})]
    except RuntimeError as error:  # sizes beyond what torch can count
        raise InputError(f"model: {named} could not be built: {' '.join(str(error).split())[:200]}") from error
    needed = sizes[0] + (sizes[-1] - sizes[0]) * (layers - 1)
    free = available_bytes(torch.device(device))
    expect(
        needed <= SAFE_SHARE * free,
        f"model: {named} would need {readable(needed)} for its weights, {readable(free)} are free; choose a smaller "
        "one, or --dtype float32.",
    )


def _size(model: nn.Module, dtype: torch.dtype) -> int:
    """Bytes of the weights, in their own dtype and a second time in that of the derivatives where it is another."""
    weights = {p.data_ptr() if not p.is_meta else id(p): p for p in (*model.parameters(), *model.buffers())}.values()
    held = sum(p.numel() * (p.element_size() + (dtype.itemsize if p.dtype != dtype else 0)) for p in weights)
    return held + _BYTES_PER_MODULE * sum(1 for _ in model.modules())


def ensure_saved_fits(folder: Path, dtype: torch.dtype) -> None:
    """Refuse a saved model whose files are larger than what fits in memory."""
    files = [file for pattern in ("*.safetensors", "*.bin") for file in folder.glob(pattern)]
    stored = sum(file.stat().st_size for file in files)
    # Saved in half precision at best, held in float32 and in the dtype of the derivatives.
    needed, free = stored * (1 + dtype.itemsize / 4), available_bytes(torch.device("cpu"))
    expect(
        needed <= SAFE_SHARE * free,
        f"model: the weights in '{folder}' would need at least {readable(needed)}, {readable(free)} are free; "
        "use --dtype float32, or a smaller model.",
    )
