"""Saved checkpoints of a run, measured one after the other, with the optimiser saved beside each of them."""

from __future__ import annotations

import hashlib
import pickle
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hessianlens.errors import InputError, Refusal
from hessianlens.inspect.preparation import OpenedModel, open_model
from hessianlens.inspect.settings import Settings
from hessianlens.monitor.arguments import Checkpoint, Effort
from hessianlens.monitor.edge_of_stability import Edge, StabilityEdge, stability_edge
from hessianlens.monitor.history import History
from hessianlens.monitor.live_problem import LiveProblem
from hessianlens.monitor.measurement import Measurer, all_at_once, measurement_pieces
from hessianlens.monitor.plan import whole_plan
from hessianlens.monitor.records import MODEL, Reading, Record, RecordFile
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
            with a checkpoint says.
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
        self._measurer = Measurer(tuple(quantities), effort)
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
        began, before = time.perf_counter(), self._measurer.products
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
        edges = {} if edge is None else {MODEL: edge}
        plan = whole_plan(self._measurer.quantities, self._measurer.effort)
        numbers: dict[str, dict[str, Reading]] = {}
        all_at_once(
            measurement_pieces(self._measurer, opened.problem, whole, list(blocks), edges, notes, plan, numbers)
        )
        text = checkpoint.lr if edge is None else edge.lr
        return Record(
            step=checkpoint.step,
            numbers=numbers,
            given={} if text is None else {"lr": text},
            cost=time.perf_counter() - began,
            products=self._measurer.products - before,
            notes=tuple(notes),
            source=source,
        )

    def _edge(
        self, checkpoint: Checkpoint, opened: OpenedModel, whole: Sequence[Block], notes: list[str]
    ) -> Edge | None:
        if "edge" not in self._measurer.quantities:
            return None
        model = opened.problem.source
        assert isinstance(model, nn.Module)
        found = saved_edge(checkpoint.path, model, whole, self._lr)
        if isinstance(found, Refusal):
            notes.append(f"no stability threshold: {found}")
            return None
        return found

    def _source(self, checkpoint: Checkpoint) -> str:
        """The checkpoint by what it holds and how it is looked at: another model, or other data, is measured anew."""
        digest = hashlib.blake2b(digest_size=8)
        asked: Any = replace(self.settings, model="toy")
        digest.update(repr((asked, self._measurer.quantities, self._measurer.effort, self._lr)).encode())
        seen = [FILE] if "edge" in self._measurer.quantities and self._lr is None else []
        files = [path for path in sorted(checkpoint.path.iterdir()) if path.suffix in _WEIGHTS or path.name in seen]
        for path in [*files, *([self.settings.data] if self.settings.data is not None else [])]:
            digest.update(path.name.encode())
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
        return f"{checkpoint.path.name} {digest.hexdigest()}"


FILE = "optimizer.pt"
"""Where Hugging Face's Trainer saves the state of its optimiser."""
_PLAIN = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)", re.IGNORECASE)
"""Names of parameters without weight decay, which the Trainer puts into a second group beside those of LayerNorm."""


def saved_edge(folder: Path, model: nn.Module, blocks: Sequence[Block], lr: float | None) -> Edge | Refusal:
    """The edge at a checkpoint; a refusal where there is none.

    Args:
        folder: The checkpoint.
        model: Its model.
        blocks: Whole parameters, in the order of the Hessian.
        lr: A learning rate of plain gradient descent, to be taken in place of what was saved.
    """
    if lr is not None:
        return StabilityEdge(2 / lr, None, None, lr)
    optimizer = _restored(folder / FILE, model)
    return optimizer if isinstance(optimizer, Refusal) else stability_edge(optimizer, model, blocks)


def _restored(file: Path, model: nn.Module) -> torch.optim.Optimizer | Refusal:
    """The optimiser with its state, on the parameters of the model."""
    if not file.is_file():
        return Refusal(f"there is no {FILE} in {file.parent.name}; --lr draws the line of plain gradient descent")
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
        groups = state["param_groups"]
        kind = _kind(groups[0])
    except (OSError, RuntimeError, pickle.UnpicklingError, KeyError, IndexError, TypeError) as error:
        return Refusal(f"{FILE} cannot be read ({type(error).__name__})")
    if kind is None:
        return Refusal(f"the optimiser in {FILE} is none of AdamW, Adam, SGD, RMSprop")
    for order in _orders(model, groups):
        if _fits(order, groups, state["state"], model):
            named = dict(model.named_parameters())
            made: torch.optim.Optimizer = kind([{"params": [named[name] for name in names]} for names in order], lr=1.0)
            made.load_state_dict(state)
            return made
    return Refusal(f"the groups of parameters in {FILE} are not those of this model in an order known here")


def _orders(model: nn.Module, groups: Sequence[Mapping[str, Any]]) -> Iterator[list[list[str]]]:
    """Names of parameters by group: what was saved has numbers instead.

    First as the model has them, one group after the other; then as the Trainer does, those with weight decay first.
    """
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    norms = [path for path, module in model.named_modules() if isinstance(module, nn.LayerNorm)]
    gains = {f"{path}.{kind}" for path in norms for kind in ("weight", "bias")}
    plain = [name for name in names if name in gains or _PLAIN.search(name)]
    for order in (names, [*(name for name in names if name not in plain), *plain]):
        rest = iter(order)
        yield [list(islice(rest, len(group["params"]))) for group in groups]


def _fits(
    order: Sequence[Sequence[str]], groups: Sequence[Mapping[str, Any]], state: Mapping[int, Any], model: nn.Module
) -> bool:
    """Whether there is a name for every number, and every state has the shape of its parameter.

    Without states nothing distinguishes one group from another.
    """
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    trained = sum(parameter.requires_grad for parameter in model.parameters())
    if sum(len(group["params"]) for group in groups) != trained:
        return False
    for names, group in zip(order, groups, strict=True):
        for name, number in zip(names, group["params"], strict=True):
            held = [t for t in state.get(number, {}).values() if isinstance(t, torch.Tensor) and t.ndim]
            if any(tuple(tensor.shape) != shapes[name] for tensor in held) or (len(groups) > 1 and not held):
                return False
    return True


def _kind(group: Mapping[str, Any]) -> type[Any] | None:
    """The class of an optimiser, which is not saved, by settings that only this kind has."""
    if "amsgrad" in group:
        return torch.optim.AdamW if group.get("decoupled_weight_decay", True) else torch.optim.Adam
    return next((kind for key, kind in _KINDS.items() if key in group), None)


_KINDS: dict[str, type[Any]] = {"nesterov": torch.optim.SGD, "centered": torch.optim.RMSprop}
