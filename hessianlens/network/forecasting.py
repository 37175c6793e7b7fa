"""What curvature will cost before it is computed: memory at the peak, number of products; and batches that fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hessianlens.curvature.excerpts import verification_bytes
from hessianlens.display import Cells, DisplayableRows, Picture, Share, Shares, facts
from hessianlens.errors import InputError, check_number, check_that, check_whole, expect
from hessianlens.memory import SAFE_SHARE, available_bytes, process_bytes
from hessianlens.models.adapters.micro_batches import cut_problem
from hessianlens.network.base import thresholds
from hessianlens.network.base.dry_run import DryRun, forward_sizes, sequences_of
from hessianlens.network.base.sampling import WORKSPACE
from hessianlens.network.routes.last_attention import closed_form_cost
from hessianlens.parts import PARTS
from hessianlens.problems import Block, Problem, check_problem, layer_groups, layer_of
from hessianlens.sizes import number_of, parse_size, readable
from hessianlens.state_guard import restores_state

_HVP_MAX_FORWARD_PASSES = 40
"""Times the bytes that a forward pass makes, and those of the parameters asked for, that no product comes near."""


@dataclass(frozen=True, repr=False)
class Forecast(DisplayableRows):
    """Memory and number of HVPs that a measurement would take.

    Attributes:
        products: Matrix-vector products, each over all of the data.
        bytes_per_sequence: Memory per sequence of a batch: its graph and the derivatives through it.
        vector_bytes: Memory of probes, products and gradients, which have the sizes of parameters.
        sequences: Sequences of the largest batch.
        available: Bytes that are free.
        process_bytes: Bytes that the process holds already: libraries, weights, data.
        closed_form_bytes: What closed forms hold at most, where they are used.
        verification_bytes: What the check of the second derivatives holds, on one sequence.
    """

    products: int
    bytes_per_sequence: int
    vector_bytes: int
    sequences: int
    available: int
    process_bytes: int = 0
    closed_form_bytes: int = 0
    verification_bytes: int = 0

    @property
    def graph_bytes(self) -> int:
        """The graph of the largest batch."""
        return self.bytes_per_sequence * self.sequences

    @property
    def total_bytes(self) -> int:
        """Everything held at once beyond what the process holds already."""
        checked = self.verification_bytes + self.bytes_per_sequence if self.verification_bytes else 0
        return max(self.graph_bytes + self.vector_bytes, checked) + self.closed_form_bytes

    @property
    def peak_bytes(self) -> int:
        """The most memory that the process will have held."""
        return self.process_bytes + self.total_bytes

    @property
    def fits(self) -> bool:
        """Whether it fits in the memory that is free."""
        return self.total_bytes <= SAFE_SHARE * self.available

    def micro_batch(self, max_bytes: float | None = None) -> int:
        """The largest number of sequences at once that stays within a limit; 0 if not even one does."""
        limit = SAFE_SHARE * self.available if max_bytes is None else check_number("max_bytes", max_bytes)
        return max(0, int((limit - self.vector_bytes) // max(self.bytes_per_sequence, 1)))

    def _records(self) -> list[dict[str, Any]]:
        totals = {"total_bytes": self.total_bytes, "peak_bytes": self.peak_bytes, "fits": self.fits}
        return [{**asdict(self), **totals}]

    def _cells(self) -> Cells:
        counts = {"products": self.products, "sequences at once": self.sequences, "fits": self.fits}
        return facts({**counts, "at the peak": readable(self.peak_bytes), "free": readable(self.available)})

    def _picture(self, asked: bool) -> Picture:
        """What is held and what is left."""
        parts = (
            ("graph", self.graph_bytes, "blue"),
            ("vectors", self.vector_bytes, "orange"),
            ("closed forms", self.closed_form_bytes, "green"),
            ("free beside them", max(self.available - self.total_bytes, 0), "grid"),
        )
        shares = [Share(name, float(size), readable(size), colour) for name, size, colour in parts]
        return Shares(shares, f"beside {readable(self.process_bytes)} that the process holds already")

    def __str__(self) -> str:
        closed = f", {readable(self.closed_form_bytes)} of closed forms" if self.closed_form_bytes else ""
        at_once = f"{number_of(self.sequences, 'sequence')} at once"
        return (
            f"{number_of(self.products, 'HVP')}, {readable(self.total_bytes)} ({readable(self.graph_bytes)} of graph "
            f"for {at_once}, {readable(self.vector_bytes)} of vectors{closed}) beside "
            f"{readable(self.process_bytes)} held already; {readable(self.available)} free"
        )

    __repr__ = __str__


@restores_state
def forecast(
    problem: Problem,
    blocks: Sequence[Block],
    probes: int = 20,
    parts: int = 3,
    *,
    together: bool = False,
    closed_forms: bool = False,
) -> Forecast:
    """Memory and HVPs that probing some blocks would take, from a dry run on the meta device; on this rank.

    Vectors are made and dropped one at a time, so the peak does not grow with their number. The dry run goes through
    the most demanding blocks only: those of the first layer, the widest and the first of the others.

    Args:
        problem: From `hessianlens.problem`.
        blocks: The blocks to be probed.
        probes: Vectors per block.
        parts: Number of parts asked for.
        together: Whether all blocks share one graph, as they do for pairs of blocks.
        closed_forms: Whether norms are exact where that is cheap, as with method="auto".
    """
    check_problem(problem)
    some = isinstance(blocks, Sequence) and len(blocks) > 0 and all(isinstance(block, Block) for block in blocks)
    check_that(some, "blocks", blocks, "blocks, from problem.select('layer*')")
    for block in blocks:
        expect(block.parameter in problem.params, f"blocks: {block.name} is not one of this problem's.")
    check_whole("probes", probes)
    check_whole("parts", parts, 1, len(PARTS))
    if not problem.data:  # of all processes that share a problem, one without data
        products = sum(min(probes, block.numel) for block in blocks)
        return Forecast(
            products, 0, _vector_bytes(blocks, problem), 0, available_bytes(problem.device), process_bytes()
        )
    dry_run, asked = DryRun(problem), PARTS[:1] if parts == 1 else PARTS
    groups = [list(blocks)] if together else _demanding(blocks)
    one = max(dry_run.peak(group, asked, 1) for group in groups)
    width = dry_run.sequences
    # Without contents the whole batch costs no more than a part of it.
    other = width if dry_run.on_meta_device else min(2, width)
    vectors = min(_vector_bytes(blocks, problem), one)
    if not dry_run.cut or other == 1:
        each = (one - vectors) // (1 if dry_run.cut else width)
    else:
        each = max(max(dry_run.peak(group, asked, other) for group in groups) - one, 0) // (other - 1)
        vectors = max(one - each, 0)
    return Forecast(
        products=sum(min(probes, block.numel) for block in blocks),
        bytes_per_sequence=each,
        vector_bytes=vectors + _held_bytes(problem, blocks, probes, len(asked)),
        sequences=width,
        available=available_bytes(problem.device),
        process_bytes=process_bytes(),
        closed_form_bytes=closed_form_bytes(problem, blocks, probes) if closed_forms else 0,
        verification_bytes=max(verification_bytes(problem, _parameters(group)) for group in groups)
        if problem.verify
        else 0,
    )


def closed_form_bytes(problem: Problem, blocks: Sequence[Block], probes: int) -> int:
    """The most that exact norms of some blocks hold where nothing else is asked for, from sizes alone.

    Args:
        problem: From `hessianlens.problem`.
        blocks: What is asked for.
        probes: Random vectors that a block would get otherwise.
    """
    *positions, _ = forward_sizes(problem).outputs
    length, sequences = positions[-1] if positions else 1, sum(map(sequences_of, problem.data))
    found = 0
    for block in blocks:
        most = thresholds.EXACT_MAX_HVPS_PER_PROBE * min(probes, block.numel)
        features = max((size for size in block.shape if size <= most), default=0)
        together = length if length * features <= most else 1
        found += 3 * sequences * length * together * features**2 * problem.dtype.itemsize
    attention = [block for block in blocks if ".attn." in block.name]
    if not attention:
        return min(found, thresholds.EXACT_MAX_BYTES)
    cost = closed_form_cost(problem, attention)
    fits = cost.held_bytes <= SAFE_SHARE * available_bytes(problem.device)
    affordable = fits and cost.products <= thresholds.EXACT_MAX_HVPS
    return max(min(found, thresholds.EXACT_MAX_BYTES), cost.held_bytes if affordable else 0)


def _parameters(group: Sequence[Block]) -> list[str]:
    return list(dict.fromkeys(block.parameter for block in group))


def _demanding(blocks: Sequence[Block]) -> list[list[Block]]:
    """Groups of blocks of which one must be the most demanding."""
    groups = layer_groups(blocks)
    layers = [group for group in groups if layer_of(group[0].name) is not None]
    others = [group for group in groups if layer_of(group[0].name) is None]
    widest = max(others, key=lambda group: group[0].numel, default=None)
    chosen = [*layers[:1], *others[:1], *([widest] if widest is not None and widest is not others[0] else [])]
    # Stacks of an encoder and a decoder: the first layer of each.
    seen = {(layer_of(group[0].name) or "").rpartition("layer")[0] for group in layers[:1]}
    for group in layers[1:]:
        stack = (layer_of(group[0].name) or "").rpartition("layer")[0]
        if stack not in seen:
            seen.add(stack)
            chosen.append(group)
    return chosen


def _vector_bytes(blocks: Sequence[Block], problem: Problem) -> int:
    """A probe of the widest block and its products."""
    return (1 + len(PARTS)) * max(block.numel for block in blocks) * problem.dtype.itemsize


def _held_bytes(problem: Problem, blocks: Sequence[Block], probes: int, parts: int) -> int:
    """Products that wait for the other batches."""
    if len(problem.data) == 1:
        return 0
    widest = max(block.numel for block in blocks) * parts * problem.dtype.itemsize
    group = max(sum(block.numel for block in group) for group in layer_groups(blocks))
    return max(widest, min(WORKSPACE, group * probes * parts * problem.dtype.itemsize))


def ensure_fits_in_memory(
    problem: Problem, blocks: Sequence[Block], probes: int, parts: int, together: bool = False
) -> None:
    """Refuse to probe blocks where that would not fit; asked first in a way that costs less than a forward pass.

    Args:
        problem: From `hessianlens.problem`.
        blocks: The blocks to be probed.
        probes: Vectors per block.
        parts: Number of parts asked for.
        together: Whether all blocks share one graph, as they do for pairs.
    """
    with problem.ranks.raise_together("memory"):
        if problem.data:
            _ensure_share_fits(problem, blocks, probes, parts, together)


def _ensure_share_fits(problem: Problem, blocks: Sequence[Block], probes: int, parts: int, together: bool) -> None:
    groups = [list(blocks)] if together else layer_groups(blocks)
    asked = max(sum(block.numel for block in group) for group in groups) * problem.dtype.itemsize
    if _HVP_MAX_FORWARD_PASSES * (forward_sizes(problem).made + asked) > SAFE_SHARE * available_bytes(problem.device):
        ensure_forecast_fits(forecast(problem, blocks, probes, parts, together=together))


def ensure_forecast_fits(made: Forecast) -> None:
    """Refuse work that would not fit, and name the setting that would."""
    if made.fits:
        return
    width = made.micro_batch()
    remedy = (
        f"hessianlens.network.fit_memory(problem), or micro_batch={width} in hessianlens.problem, would fit"
        if width
        else "not even one sequence at a time would fit: choose smaller blocks, shorter sequences or float32"
    )
    raise InputError(f"memory: {made}; {remedy}.")


@restores_state
def fit_memory(problem: Problem, max_memory: str | float | None = None) -> Problem:
    """The same problem with its batches cut so that the graph of one stays within a limit.

    Args:
        problem: From `hessianlens.problem`.
        max_memory: Bytes, or a text such as "2 GiB"; default: most of what is free.

    The total loss is the same: every batch that is cut is run once whole and once in pieces, and a cut that changes its
    loss is refused, as with ``micro_batch`` in `hessianlens.problem`.
    """
    check_problem(problem)
    limit = None if max_memory is None else parse_size(max_memory)
    with problem.ranks.raise_together("memory"):
        return _fitted(problem, limit)


def _fitted(problem: Problem, limit: float | None) -> Problem:
    made = forecast(problem, list(problem.blocks.values()), probes=1, parts=1)
    width = made.micro_batch(limit)
    expect(
        width > 0,
        f"max_memory: a single sequence needs {readable(made.bytes_per_sequence + made.vector_bytes)}, got "
        f"{readable(limit if limit is not None else SAFE_SHARE * made.available)}; allow more, or use float32.",
    )
    return problem if width >= made.sequences else cut_problem(problem, width, "max_memory")
