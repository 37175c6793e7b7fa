"""Data in the forms people have it: tensors, pairs, dictionaries, lists of them, loaders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from hessianlens.errors import InputError, check_that, expect
from hessianlens.problems import Batch, batch_size, pieces


def as_batches(data: object, micro_batch: int | None = None) -> list[Batch]:
    """A list of batches: a tensor, a tuple or a mapping is one batch; a list, a loader or an iterable holds several.

    Args:
        data: What the user has.
        micro_batch: Split every batch along its first axis into pieces of at most this size.

    >>> [b[0].shape[0] for b in as_batches((torch.zeros(5, 2), torch.zeros(5)), micro_batch=2)]
    [2, 2, 1]
    """
    _expect_no_array("data", data)
    if is_batch(data):
        batches = [data]
    elif isinstance(data, Iterable):
        # PyTorch's loaders hand out pairs as lists.
        batches = [tuple(batch) if isinstance(batch, list) else batch for batch in data]
    else:
        raise InputError(
            f"data: got {type(data).__name__}, expected a batch (tensor, (inputs, targets), dict) "
            "or an iterable of batches."
        )
    expect(len(batches) > 0, "data: got no batch at all; an exhausted generator cannot be read twice, pass a list.")
    for k, batch in enumerate(batches):
        _expect_no_array(f"data[{k}]", batch)
        expect(
            is_batch(batch), f"data[{k}]: got {type(batch).__name__}, expected a tensor, (inputs, targets) or a dict."
        )
        _check_tensors(f"data[{k}]", batch)
        expect(batch_size(batch) > 0, f"data[{k}]: got an empty batch, expected at least one sequence.")
    width = check_micro_batch(micro_batch)
    return batches if width is None else [piece for batch in batches for piece in pieces(batch, width)]


def check_micro_batch(micro_batch: int | None) -> int | None:
    """A positive number of sequences, or None for batches as they are."""
    whole = isinstance(micro_batch, int) and not isinstance(micro_batch, bool) and micro_batch > 0
    check_that(micro_batch is None or whole, "micro_batch", micro_batch, "a positive whole number of sequences")
    return micro_batch


def is_batch(data: object) -> bool:
    """A tensor, a mapping, or a tuple that begins with one."""
    if isinstance(data, (Tensor, Mapping)):
        return True
    return isinstance(data, tuple) and len(data) > 0 and isinstance(data[0], (Tensor, Mapping))


def named_tensors(batch: Batch, name: str = "data") -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a batch with a name for it: its key, or its place."""
    if isinstance(batch, Tensor):
        yield name, batch
    elif isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from named_tensors(value, str(key))
    elif isinstance(batch, (tuple, list)):
        for place, value in enumerate(batch):
            yield from named_tensors(value, f"{name}[{place}]")


def _check_tensors(name: str, batch: Batch) -> None:
    """Tensors hold numbers, and what should be tensors are."""
    for key, tensor in named_tensors(batch, name):
        expect(
            not tensor.is_meta,
            f"data: {key} is on the meta device, which holds shapes and no numbers; give it its numbers.",
        )
    if not isinstance(batch, (tuple, Mapping)):
        return
    items: Iterable[tuple[object, object]] = batch.items() if isinstance(batch, Mapping) else enumerate(batch)
    for at, value in items:
        place = f"{name}[{at!r}]"
        _expect_no_array(place, value)
        expect(
            not isinstance(value, list) or at not in (*TOKENS, *LABELS, *SPANS, "attention_mask", 1),
            f"{place}: got a list, expected a tensor; wrap it with torch.as_tensor (a tokenizer gives tensors with "
            "return_tensors='pt').",
        )


def _expect_no_array(name: str, value: object) -> None:
    expect(
        not isinstance(value, np.ndarray),
        f"{name}: got a NumPy array, expected torch tensors; wrap it with torch.as_tensor.",
    )


TOKENS = ("input_ids", "decoder_input_ids", "tokens")
LABELS = ("labels", "label", "targets", "target", "y")
SPANS = ("start_positions", "end_positions")
"""Targets of a model that finds the start and the end of an answer."""


def inputs_of(batch: Batch) -> Batch:
    """What goes into the model: a batch without its targets."""
    if isinstance(batch, Mapping):
        without = (*LABELS, *SPANS) if _has_spans(batch) else LABELS
        return {key: value for key, value in batch.items() if key not in without}
    return batch[0] if isinstance(batch, tuple) else batch


def targets_of(batch: Batch) -> Tensor | None:
    """The targets of a batch, if it has any; starts and ends of answers as a column each."""
    if isinstance(batch, Mapping):
        if _has_spans(batch):
            return torch.stack([batch[key] for key in SPANS], -1)
        return next((batch[key] for key in LABELS if key in batch), None)
    return batch[1] if isinstance(batch, tuple) and len(batch) > 1 else None


def _has_spans(batch: Mapping[str, object]) -> bool:
    return all(isinstance(batch.get(key), Tensor) for key in SPANS)


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
        shape = tuple(ids.shape)
        expect(ids.shape[-1] > 0, f"data: {name} has shape {shape}, expected at least one token per sequence.")


def _ids(model: nn.Module, batch: Batch) -> Iterator[tuple[str, Tensor]]:
    """What a model of tokens looks up; other models may take what they like."""
    inputs = inputs_of(batch)
    if getattr(model, "main_input_name", None) != "input_ids" or not hasattr(model, "config"):
        return
    if isinstance(inputs, Mapping):
        yield from ((name, inputs[name]) for name in TOKENS if isinstance(inputs.get(name), Tensor))
    elif isinstance(inputs, Tensor):
        yield "input_ids", inputs
