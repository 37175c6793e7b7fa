"""A dry run of products on the meta device: how much memory they hold at their peak, and the shape of the outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch

from hessianlens.errors import InputError
from hessianlens.memory import LiveBytes
from hessianlens.models.adapters.batches import as_batches
from hessianlens.network.base.sampling import GraphSource, Request
from hessianlens.problems import Batch, Block, LogitsForward, Problem, batch_size, move, tensors

T = TypeVar("T")


def sequences_of(batch: Batch) -> int:
    """Sequences of a batch; one if it holds no tensor that would tell."""
    try:
        return batch_size(batch)
    except InputError:
        return 1


@dataclass(frozen=True)
class ForwardSizes:
    """A forward pass.

    Attributes:
        outputs: The shape of its outputs.
        made: Bytes of everything that it makes on the way.
        whole: Whether logits and attention are materialised, so that the model as it is written makes as much.
    """

    outputs: tuple[int, ...]
    made: int
    whole: bool


class DryRun:
    """Runs of a problem on the meta device, where tensors have a size but no contents and cost next to nothing.

    A model or a loss that asks for contents is run on a few sequences instead; one that needs its whole batch, on that.

    Args:
        problem: What would be differentiated.

    Attributes:
        batch: The largest batch.
        cut: Whether a part of that batch could be run alone.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem.alone()
        self.batch: Batch = max(problem.data, key=sequences_of)
        self._on_meta: Problem | None = self.problem.to(device="meta")
        self.cut = True

    @property
    def sequences(self) -> int:
        """Sequences of the largest batch."""
        return sequences_of(self.batch)

    @property
    def on_meta_device(self) -> bool:
        """Whether all runs so far could do without contents."""
        return self._on_meta is not None

    def forward(self) -> ForwardSizes:
        """The sizes of a forward pass of the largest batch."""
        return self._measured(_forward, self.sequences)

    def peak(self, group: Sequence[Block], parts: Sequence[str], sequences: int) -> int:
        """Bytes held at the peak by a product with the widest of some blocks that share a graph."""
        widest = max(group, key=lambda block: block.numel)
        requests = [Request(block, 0, int(block is widest)) for block in group]

        def product(problem: Problem) -> int:
            with LiveBytes((*problem.params.values(), *tensors(problem.data))) as live:
                for _ in GraphSource(problem, parts, 0).draw(requests):
                    pass
            return live.peak

        return self._measured(product, sequences)

    def _measured(self, measure: Callable[[Problem], T], sequences: int) -> T:
        if self._on_meta is not None:
            try:
                return measure(self._on(self._on_meta, sequences))
            except Exception:  # whatever a model makes of tensors without contents, with contents it may run
                self._on_meta = None
        if self.cut and sequences < self.sequences:
            try:
                return measure(self._on(self.problem, sequences))
            except (RuntimeError, ValueError, IndexError):
                self.cut = False
        return measure(self._on(self.problem, self.sequences if not self.cut else sequences))

    def _on(self, problem: Problem, sequences: int) -> Problem:
        """The problem on the first sequences of the largest batch."""
        batch = self.batch if sequences >= self.sequences else as_batches([self.batch], sequences)[0]
        return replace(problem, data=[move(batch, None, problem.device)])


def _forward(problem: Problem) -> ForwardSizes:
    with problem.scope() as attention, torch.no_grad(), LiveBytes(problem.params.values()) as live:
        outputs = problem.forward(problem.params, problem.data[0])
    in_chunks = isinstance(problem.forward, LogitsForward) or getattr(attention, "in_chunks", False)
    return ForwardSizes(tuple(outputs.shape), live.made, not in_chunks)


_REMEMBERED: WeakKeyDictionary[Problem, ForwardSizes] = WeakKeyDictionary()


def forward_sizes(problem: Problem) -> ForwardSizes:
    """The sizes of a forward pass of a problem's largest batch, found once."""
    found = _REMEMBERED.get(problem)
    if found is None:
        found = _REMEMBERED[problem] = DryRun(problem).forward()
    return found


def written_sizes(problem: Problem) -> ForwardSizes:
    """The same of the problem as its user wrote it: without another dry run where it is computed in the same way."""
    written = problem.as_written()
    sizes = forward_sizes(problem) if written.data is problem.data else None
    return sizes if sizes is not None and sizes.whole else forward_sizes(written)
