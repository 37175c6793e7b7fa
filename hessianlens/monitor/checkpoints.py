"""A run that is over, or that others run: its saved checkpoints, measured one after the other."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from hessianlens.errors import InputError, Refusal
from hessianlens.inspect.preparation import OpenedModel, open_model
from hessianlens.inspect.settings import Settings
from hessianlens.monitor.choices import Effort
from hessianlens.monitor.edge import Edge
from hessianlens.monitor.history import History
from hessianlens.monitor.live import LiveProblem
from hessianlens.monitor.measuring import Measuring, everything
from hessianlens.monitor.record import Record
from hessianlens.monitor.saved import Checkpoint
from hessianlens.monitor.saved_optimizers import FILE, saved_edge
from hessianlens.monitor.store import RecordFile
from hessianlens.problems import Block

_WEIGHTS = (".safetensors", ".bin")
_CHUNK = 2**20


class CheckpointRun:
    """Measures checkpoints in order of their steps; what a store holds already is not measured again.

    Args:
        checkpoints: From `find_checkpoints`.
        settings: Data, blocks, precision; its model is replaced by each checkpoint.
        quantities: What is measured.
        effort: How much goes into it.
        store: A file that keeps every record as soon as it is there.
        lr: Learning rate of plain gradient descent, for the edge of stability; by default the optimiser that was saved
            with a checkpoint tells.
    """

    def __init__(
        self,
        checkpoints: Sequence[Checkpoint],
        settings: Settings,
        quantities: Sequence[str],
        effort: Effort,
        store: RecordFile | None = None,
        lr: float | None = None,
    ) -> None:
        self.checkpoints, self.settings, self.store = list(checkpoints), settings, store
        self.history = History(store.read() if store is not None else ())
        self._measuring = Measuring(tuple(quantities), effort)
        self._lr = lr
        self._shapes: dict[str, tuple[int, ...]] | None = None
        self.first: OpenedModel | None = None

    def run(self) -> Iterator[tuple[Checkpoint, Record | None]]:
        """Every checkpoint with its record; before it is measured without one."""
        for checkpoint in self.checkpoints:
            source = self._source(checkpoint)
            known = next((r for r in self.history if r.step == checkpoint.step and r.source == source), None)
            if known is None:
                yield checkpoint, None
                known = self._measure(checkpoint, source)
                self.history.add(known)
                if self.store is not None:
                    self.store.add(known)
            yield checkpoint, known

    def _measure(self, checkpoint: Checkpoint, source: str) -> Record:
        began, before = time.perf_counter(), self._measuring.products
        opened = open_model(replace(self.settings, model=str(checkpoint.path)))
        self.first = self.first or opened
        whole = LiveProblem(opened.problem).trained()
        shapes = {block.parameter: block.shape for block in whole}
        if self._shapes is not None and shapes != self._shapes:
            raise InputError(
                f"checkpoints: '{checkpoint.path}' has other parameters than '{self.checkpoints[0].path}', expected "
                "checkpoints of one model."
            )
        self._shapes = shapes
        blocks = opened.blocks if self.settings.blocks else ()
        notes: list[str] = []
        edge = self._edge(checkpoint, opened, whole, notes)
        numbers = everything(self._measuring, opened.problem, whole, list(blocks), edge, notes)
        told = checkpoint.lr if edge is None else edge.lr
        return Record(
            step=checkpoint.step,
            numbers=numbers,
            given={} if told is None else {"lr": told},
            cost=time.perf_counter() - began,
            products=self._measuring.products - before,
            notes=tuple(notes),
            source=source,
        )

    def _edge(
        self, checkpoint: Checkpoint, opened: OpenedModel, whole: Sequence[Block], notes: list[str]
    ) -> Edge | None:
        if "edge" not in self._measuring.quantities:
            return None
        model = opened.problem.source
        assert isinstance(model, nn.Module)
        found = saved_edge(checkpoint.path, model, whole, self._lr)
        if isinstance(found, Refusal):
            notes.append(f"no edge of stability: {found}")
            return None
        return found

    def _source(self, checkpoint: Checkpoint) -> str:
        """The checkpoint by what it holds and how it is looked at: another model, or other data, is measured anew."""
        digest = hashlib.blake2b(digest_size=8)
        asked: Any = replace(self.settings, model="toy")
        digest.update(repr((asked, self._measuring.quantities, self._measuring.effort, self._lr)).encode())
        seen = [FILE] if "edge" in self._measuring.quantities and self._lr is None else []
        files = [path for path in sorted(checkpoint.path.iterdir()) if path.suffix in _WEIGHTS or path.name in seen]
        for path in [*files, *([self.settings.data] if self.settings.data is not None else [])]:
            digest.update(path.name.encode())
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
        return f"{checkpoint.path.name} {digest.hexdigest()}"
