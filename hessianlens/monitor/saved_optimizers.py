"""The optimiser of a checkpoint, from the state that was saved beside the model, and its edge of stability."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hessianlens.errors import Refusal
from hessianlens.monitor.edge import Edge, edge_of
from hessianlens.problems import Block

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
        return Edge(2 / lr, None, None, lr)
    optimizer = _restored(folder / FILE, model)
    return optimizer if isinstance(optimizer, Refusal) else edge_of(optimizer, model, blocks)


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

    Without states nothing tells one group from another.
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
