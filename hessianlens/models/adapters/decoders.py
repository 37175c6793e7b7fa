"""Encoder-decoders: what goes into the decoder, made from the labels as the model itself makes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hessianlens.errors import InputError
from hessianlens.models.adapters.batches import targets_of
from hessianlens.models.adapters.losses import IGNORED
from hessianlens.problems import Batch

_INPUTS = ("decoder_input_ids", "decoder_inputs_embeds")
NOTE = "what goes into the decoder is made from the labels, as the model itself makes it"


def with_decoder_inputs(model: nn.Module, batch: Batch) -> Batch:
    """A batch with `decoder_input_ids`, the labels moved on by one; as it is if it has them, or no labels."""
    targets = targets_of(batch)
    if isinstance(batch, Mapping):
        named: dict[str, Any] = dict(batch)
    elif isinstance(batch, tuple):
        first = batch[0]
        named = dict(first) if isinstance(first, Mapping) else {str(getattr(model, "main_input_name", "")): first}
        named["labels"] = targets
    else:
        return batch
    if not isinstance(targets, Tensor) or any(name in named for name in _INPUTS):
        return batch
    try:
        return {**named, "decoder_input_ids": _moved_on(model, targets.long())}
    except (AttributeError, ValueError, TypeError) as error:
        raise InputError(
            f"model: {type(model).__name__} cannot make decoder_input_ids from the labels "
            f"({' '.join(str(error).split())}); set decoder_start_token_id and pad_token_id in its config, or give "
            "decoder_input_ids."
        ) from error


def _moved_on(model: Any, labels: Tensor) -> Tensor:
    """By the model's own function where it has one; else behind a start token, with padding for what has no loss."""
    own = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if own is not None:
        made = own(labels)
        assert isinstance(made, Tensor)
        return made
    config = model.config
    start = torch.full_like(labels[:, :1], int(config.decoder_start_token_id))
    moved = torch.cat([start, labels[:, :-1]], 1)
    return moved.masked_fill(moved == IGNORED, int(config.pad_token_id))
