"""Token ids: whole numbers, one row a sequence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from hessianlens.errors import expect
from hessianlens.models.adapters.batches import TOKENS, inputs_of
from hessianlens.problems import Batch


def check_ids(model: nn.Module, batch: Batch) -> None:
    """Refuse token ids of a Hugging Face model that are no whole numbers, or a single row of them."""
    for name, ids in _ids(model, batch):
        expect(
            not ids.is_floating_point() and not ids.is_complex() and ids.dtype != torch.bool,
            f"data: {name} is {ids.dtype}, expected token ids, whole numbers; convert them with .long().",
        )
        expect(
            ids.ndim > 1,
            f"data: {name} has shape {tuple(ids.shape)}, expected (sequences, tokens); for one sequence add an axis "
            "with ids[None].",
        )
        expect(ids.shape[-1] > 0, f"data: {name} has shape {tuple(ids.shape)}, expected at least one token a sequence.")


def _ids(model: nn.Module, batch: Batch) -> Iterator[tuple[str, Tensor]]:
    """What a model of tokens looks up; other models may take what they like."""
    inputs = inputs_of(batch)
    if getattr(model, "main_input_name", None) != "input_ids" or not hasattr(model, "config"):
        return
    if isinstance(inputs, Mapping):
        yield from ((name, inputs[name]) for name in TOKENS if isinstance(inputs.get(name), Tensor))
    elif isinstance(inputs, Tensor):
        yield "input_ids", inputs
