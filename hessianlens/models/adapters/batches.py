"""Data in the forms people have it: tensors, pairs, dictionaries, lists of them, loaders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

from hessianlens.errors import InputError, expect
from hessianlens.problems import Batch, batch_size, pieces


def as_batches(data: object, micro_batch: int | None = None) -> list[Batch]:
    """A list of batches: a tensor, a tuple or a mapping is one batch; a list, a loader or an iterable holds several.

    Args:
        data: What the user has.
        micro_batch: Split every batch along its first axis into pieces of at most this size.

    >>> import torch
    >>> [b[0].shape[0] for b in as_batches((torch.zeros(5, 2), torch.zeros(5)), micro_batch=2)]
    [2, 2, 1]
    """
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
        expect(
            is_batch(batch), f"data[{k}]: got {type(batch).__name__}, expected a tensor, (inputs, targets) or a dict."
        )
        expect(batch_size(batch) > 0, f"data[{k}]: got an empty batch, expected at least one sequence.")
    if micro_batch is None:
        return batches
    expect(
        isinstance(micro_batch, int) and micro_batch > 0,
        f"micro_batch: got {micro_batch!r}, expected a positive whole number of sequences.",
    )
    return [piece for batch in batches for piece in pieces(batch, micro_batch)]


def is_batch(data: object) -> bool:
    """A tensor, a mapping, or a tuple that begins with one."""
    if isinstance(data, (Tensor, Mapping)):
        return True
    return isinstance(data, tuple) and len(data) > 0 and isinstance(data[0], (Tensor, Mapping))


LABELS = ("labels", "label", "targets", "target", "y")


def inputs_of(batch: Batch) -> Batch:
    """What goes into the model: a batch without its targets."""
    if isinstance(batch, Mapping):
        return {key: value for key, value in batch.items() if key not in LABELS}
    return batch[0] if isinstance(batch, tuple) else batch


def targets_of(batch: Batch) -> Tensor | None:
    """The targets of a batch, if it has any."""
    if isinstance(batch, Mapping):
        return next((batch[key] for key in LABELS if key in batch), None)
    return batch[1] if isinstance(batch, tuple) and len(batch) > 1 else None
