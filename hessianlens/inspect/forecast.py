"""What curvature will cost before it is computed: memory of the graphs, number of products; and batches that fit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hessianlens.curvature import Linearisation
from hessianlens.errors import InputError, expect
from hessianlens.memory import available_bytes, readable
from hessianlens.models.adapters.batches import as_batches
from hessianlens.problems import Block, Problem, batch_size, tensors

_SAFETY = 0.8
"""Share of the free memory that a forecast may claim."""


@dataclass(frozen=True)
class Forecast:
    """Memory and products of a piece of work on a problem.

    Attributes:
        products: Matrix-vector products, each over all of the data.
        graph_bytes: Graph of the largest batch, kept while its products are made.
        vector_bytes: Probe vectors and results.
        available: Bytes that are free.
        sequences: Sequences of the largest batch.
        bytes_per_sequence: Graph of a single sequence.
    """

    products: int
    graph_bytes: int
    vector_bytes: int
    available: int
    sequences: int
    bytes_per_sequence: int

    @property
    def total_bytes(self) -> int:
        """Everything held at once."""
        return self.graph_bytes + self.vector_bytes

    @property
    def fits(self) -> bool:
        """Whether it fits in the memory that is free."""
        return self.total_bytes <= _SAFETY * self.available

    def micro_batch(self, max_bytes: float | None = None) -> int:
        """The largest number of sequences at once that stays within a limit; 0 if not even one does."""
        limit = _SAFETY * self.available if max_bytes is None else max_bytes
        return max(0, int((limit - self.vector_bytes) // max(self.bytes_per_sequence, 1)))

    def __str__(self) -> str:
        return (
            f"{self.products} products, {readable(self.total_bytes)} ({readable(self.graph_bytes)} of graph for "
            f"{self.sequences} sequences at once, {readable(self.vector_bytes)} of vectors); "
            f"{readable(self.available)} free"
        )


def forecast(problem: Problem, blocks: Sequence[Block], probes: int = 20, parts: int = 3) -> Forecast:
    """What it takes to probe some blocks, measured on a single sequence of the data.

    Args:
        problem: From `hessianlens.problem`.
        blocks: The blocks to be probed.
        probes: Vectors a block.
        parts: Parts of each block that are held at once.
    """
    expect(len(blocks) > 0, "blocks: got none, expected at least one.")
    widest = max(blocks, key=lambda block: block.numel)
    per_sequence = _sequence_bytes(problem, widest)
    sequences = max(_size(batch) for batch in problem.data)
    itemsize = problem.dtype.itemsize
    vectors = sum(block.numel for block in blocks) * min(probes, widest.numel) * parts * itemsize
    return Forecast(
        products=sum(min(probes, block.numel) for block in blocks),
        graph_bytes=per_sequence * sequences,
        vector_bytes=vectors,
        available=available_bytes(problem.device),
        sequences=sequences,
        bytes_per_sequence=per_sequence,
    )


def ensure_forecast_fits(made: Forecast) -> None:
    """Refuse work that would not fit, and name the setting that would."""
    if made.fits:
        return
    width = made.micro_batch()
    remedy = (
        f"hessianlens.fit_memory(problem), or micro_batch={width} in hessianlens.problem, would fit"
        if width
        else "not even one sequence at a time would fit: choose fewer blocks or probes, shorter sequences or float32"
    )
    raise InputError(f"memory: {made}; {remedy}.")


def fit_memory(problem: Problem, max_memory: str | float | None = None) -> Problem:
    """The same problem with its batches cut so that the graph of one stays within a limit.

    Args:
        problem: From `hessianlens.problem`.
        max_memory: Bytes, or a text such as "2 GiB"; default: most of what is free.

    The total loss is the same; a function given as loss whose shares do not add up over the cut is refused.
    """
    limit = None if max_memory is None else parse_size(max_memory)
    made = forecast(problem, list(problem.blocks.values()), probes=1, parts=1)
    width = made.micro_batch(limit)
    expect(
        width > 0,
        f"max_memory: a single sequence needs {readable(made.bytes_per_sequence + made.vector_bytes)}, got "
        f"{readable(limit if limit is not None else _SAFETY * made.available)}; allow more, or use float32.",
    )
    if width >= made.sequences:
        return problem
    largest = max(problem.data, key=_size)
    with torch.no_grad():
        whole, cut = (float(replace(problem, data=d).total_loss()) for d in ([largest], as_batches([largest], width)))
    expect(
        abs(whole - cut) <= torch.finfo(problem.dtype).eps ** 0.5 * max(abs(whole), abs(cut)),
        f"max_memory: batches of at most {width} sequences fit, but the loss of the largest batch is {whole:.6g} and "
        f"that of its pieces {cut:.6g}; give a loss that is a mean over sequences, or a sum with reduction='sum'.",
    )
    return replace(problem, data=as_batches(list(problem.data), width))


def parse_size(size: str | float) -> float:
    """Bytes from a number or a text.

    >>> parse_size("1.5 GiB") == 1.5 * 2**30, parse_size("200MB"), parse_size(1000)
    (True, 200000000.0, 1000.0)
    """
    if isinstance(size, (int, float)):
        expect(size > 0, f"max_memory: got {size}, expected a positive number of bytes.")
        return float(size)
    units = {"": 1, "b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([a-zA-Z]*)\s*", size)
    if found is None or found.group(2).lower() not in units:
        raise InputError(f"max_memory: got {size!r}, expected a size such as '2 GiB' or '500 MB'.")
    return float(found.group(1)) * units[found.group(2).lower()]


def _sequence_bytes(problem: Problem, block: Block) -> int:
    """Graph of a single sequence; a share of the first batch's where model or loss need a whole batch."""
    first = problem.data[0]
    try:
        return _graph_bytes(problem, as_batches([first], 1)[0], block)
    except (RuntimeError, ValueError, IndexError):
        return -(-_graph_bytes(problem, first, block) // _size(first))


def _size(batch: object) -> int:
    """Sequences of a batch; one if it holds no tensor that would tell."""
    try:
        return batch_size(batch)
    except InputError:
        return 1


def _graph_bytes(problem: Problem, batch: object, block: Block) -> int:
    """Bytes that the graph of one batch holds for products with a block."""
    with _counting(problem, batch) as seen:
        at = Linearisation(problem, batch, [block.parameter])
        tangent = torch.zeros_like(problem.params[block.parameter])
        at.split({block.parameter: tangent}, [block.parameter])
        at.hessian({block.parameter: tangent}, [block.parameter])
    return sum(storage.nbytes() for storage in seen.values())


@contextmanager
def _counting(problem: Problem, batch: object) -> Iterator[dict[int, torch.UntypedStorage]]:
    """Distinct memory saved for backward passes; parameters and data, which are there anyway, are left out.

    All of it is kept until the end: an address that is free again may be given to another tensor, and count once.
    """
    owned = {tensor.untyped_storage().data_ptr() for tensor in (*problem.params.values(), *tensors(batch))}
    seen: dict[int, torch.UntypedStorage] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in owned:
            seen[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        yield seen
