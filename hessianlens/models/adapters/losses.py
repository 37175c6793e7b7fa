"""Losses by name, each as a sum over the data with its reduction stated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from hessianlens.distributed import SINGLE_RANK, Ranks
from hessianlens.errors import InputError, check_choice, expect
from hessianlens.failures import failures_as_input_errors
from hessianlens.losses import linear_cross_entropy
from hessianlens.models.adapters.batches import inputs_of, targets_of
from hessianlens.models.adapters.precision import in_precision_of
from hessianlens.problems import Batch, BatchLoss, Classes, ClassesLoss, Logits, batch_size
from hessianlens.sizes import number_of


@dataclass(frozen=True, eq=False)
class ClassLoss(ClassesLoss):
    """A batch's share of the total loss, a multiple of the sum over its targets.

    Attributes:
        share: The same as a function of outputs and batch.
        targets: From a batch to a class for every position of the outputs.
        factor: What the sum is multiplied by.
        ignore_index: The target of positions without a loss.
        smoothing: The share of a target that is spread over all classes.
        weight: How much each class counts.
    """

    share: BatchLoss
    targets: Callable[[Batch], Tensor]
    factor: float
    ignore_index: int
    smoothing: float = 0.0
    weight: Tensor | None = None

    def __call__(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The share of a batch."""
        return self.share(outputs, batch)

    def classes(self, batch: Batch) -> Classes:
        """The share by its targets."""
        return Classes(self.targets(batch).long(), self.factor, self.ignore_index, self.smoothing, self.weight)

    def of_logits(self, logits: Logits, batch: Batch) -> Tensor:
        """The share, without outputs."""
        found = self.classes(batch)
        positions = tuple(logits.hidden.shape[:-1])
        expect(
            tuple(found.targets.shape) == positions,
            f"targets: got shape {tuple(found.targets.shape)}, expected {positions}, a class per position.",
        )
        total = linear_cross_entropy(
            logits.hidden,
            logits.weight,
            found.targets,
            linear_bias=logits.bias,
            weight=None if found.weight is None else found.weight.to(logits.weight),
            reduction="sum",
            ignore_index=found.ignore_index,
            label_smoothing=found.smoothing,
            scale=logits.scale,
            softcap=logits.softcap,
        )
        return total * found.factor


def next_ones(targets: Tensor, ignore_index: int) -> Tensor:
    """For every position the target of the next one; the last has none.

    >>> next_ones(torch.tensor([[3, 4, 5]]), -100)
    tensor([[   4,    5, -100]])
    """
    return torch.cat([targets[:, 1:], targets.new_full((len(targets), 1), ignore_index)], 1)


IGNORED = -100


@dataclass(frozen=True)
class StatedLoss:
    """A batch's share of the total loss, and, as text, how the total reduces.

    Attributes:
        function: The share.
        reduction: How the total reduces.
        additive: Whether the share of a batch is the sum of the shares of its sequences, whatever the outputs are.
    """

    function: BatchLoss
    reduction: str
    additive: bool = False


def named_loss(
    name: str,
    data: Sequence[Batch],
    reduction: str,
    shift: bool,
    ignore_index: int = IGNORED,
    ranks: Ranks = SINGLE_RANK,
) -> StatedLoss:
    """A loss by name: "cross_entropy", "square" or "bce".

    Args:
        name: Which loss.
        data: All batches, to count what a mean divides by.
        reduction: "mean" over everything that counts, "sequence" (sums within a sequence, mean over them), or "sum".
        shift: Whether position p predicts token p + 1 (causal language models).
        ignore_index: The target without a loss.
        ranks: Processes that hold a share of the data each; a mean divides by what all of them hold.
    """
    check_choice("loss", name, ("cross_entropy", "square", "bce"))
    check_choice("reduction", reduction, ("mean", "sequence", "sum"))
    terms: dict[str, Callable[[Tensor, Batch], Tensor]] = {
        "cross_entropy": lambda out, batch: _cross_entropy(
            out, labels(batch, shift, ignore_index), shift, ignore_index
        ),
        "square": lambda out, batch: (out - _like(out, batch)).square().sum(),
        "bce": lambda out, batch: nnf.binary_cross_entropy_with_logits(out, _like(out, batch), reduction="sum"),
    }
    total, words = _denominator(name, data, reduction, shift, ignore_index, ranks)
    term = terms[name]

    def share(out: Tensor, batch: Batch) -> Tensor:
        return term(out, batch) / total

    if name != "cross_entropy":
        return StatedLoss(share, words, additive=True)

    def aligned(batch: Batch) -> Tensor:
        targets = labels(batch, shift, ignore_index)
        return next_ones(targets, ignore_index) if shift else targets

    return StatedLoss(ClassLoss(share, aligned, 1 / total, ignore_index), words, additive=True)


def callable_loss(
    function: Callable[[Tensor, Batch], Tensor], data: Sequence[Batch], reduction: str, ranks: Ranks = SINGLE_RANK
) -> StatedLoss:
    """A user's function of outputs and batch, averaged over batches in proportion to their sizes, or summed."""
    check_choice("reduction", reduction, ("mean", "sum"))
    sequences = sum(ranks.all_gather("sequences", lambda: sum(batch_size(batch) for batch in data)))

    def share(out: Tensor, batch: Batch) -> Tensor:
        remedy = f"it was given outputs of shape {tuple(out.shape)} and the batch"
        with failures_as_input_errors("loss: the given function failed", remedy), in_precision_of([out]):
            value = function(out, batch)
        expect(
            isinstance(value, Tensor) and value.numel() == 1,
            "loss: the function must return a scalar tensor, got "
            + (f"shape {tuple(value.shape)}." if isinstance(value, Tensor) else f"{type(value).__name__}."),
        )
        return value.reshape(()) * (batch_size(batch) / sequences if reduction == "mean" else 1.0)

    words = (
        "the given function, mean over batches by size"
        if reduction == "mean"
        else "the given function, summed over batches"
    )
    return StatedLoss(share, words)


def labels(batch: Batch, shift: bool, ignore_index: int) -> Tensor:
    """Integer targets; for a causal model without any, its own input tokens, padding left out."""
    found = checked_targets(batch)
    if found is not None:
        wanted = "expected (sequences, tokens)"
        expect(not shift or found.ndim > 1, f"targets: got shape {tuple(found.shape)}, {wanted}.")
        return found
    inputs = inputs_of(batch)
    tokens = inputs.get("input_ids", inputs.get("tokens")) if isinstance(inputs, Mapping) else inputs
    if not shift or not isinstance(tokens, Tensor) or tokens.is_floating_point():
        raise InputError("data: no targets; give (inputs, targets) pairs or a dict with 'labels'.")
    seen = inputs.get("attention_mask") if isinstance(inputs, Mapping) else None
    return tokens if seen is None else tokens.masked_fill(seen == 0, ignore_index)


def checked_targets(batch: Batch) -> Tensor | None:
    """The targets of a batch, which are a tensor if there are any."""
    found = targets_of(batch)
    expect(
        found is None or isinstance(found, Tensor),
        f"targets: got {type(found).__name__}, expected a tensor; wrap it with torch.as_tensor.",
    )
    return found


def check_classes(out: Tensor, targets: Tensor, ignore_index: int) -> None:
    """Targets are numbers of classes, one for each row of outputs."""
    expect(
        targets.shape == out.shape[:-1],
        f"targets: got shape {tuple(targets.shape)}, expected {tuple(out.shape[:-1])} for outputs {tuple(out.shape)}.",
    )
    expect(
        not targets.is_floating_point(),
        f"targets: got dtype {targets.dtype}, expected numbers of classes; convert them with .long(), or use 'bce' "
        "or 'square'.",
    )
    if targets.is_meta:  # a dry run on the meta device
        return
    classes = out.shape[-1]
    wrong = targets[((targets < 0) | (targets >= classes)) & (targets != ignore_index)]
    if wrong.numel():
        raise InputError(
            f"targets: got class {int(wrong[0])} ({wrong.numel()} of {targets.numel()} out of range), expected "
            f"0 .. {classes - 1} for outputs of {classes} classes, or {ignore_index} where there is no loss."
        )


def _cross_entropy(out: Tensor, targets: Tensor, shift: bool, ignore_index: int) -> Tensor:
    if shift:
        out, targets = out[:, :-1], targets[:, 1:]
    check_classes(out, targets, ignore_index)
    return nnf.cross_entropy(
        out.reshape(-1, out.shape[-1]), targets.reshape(-1).long(), ignore_index=ignore_index, reduction="sum"
    )


def _like(out: Tensor, batch: Batch) -> Tensor:
    targets = checked_targets(batch)
    if targets is None:
        raise InputError("data: no targets; give (inputs, targets) pairs or a dict with 'labels'.")
    return targets_like(out, targets)


def targets_like(out: Tensor, targets: Tensor) -> Tensor:
    """Targets in the shape and dtype of the outputs; one number per sequence serves a single output."""
    if out.shape == (*targets.shape, 1):
        targets = targets[..., None]
    expect(
        targets.shape == out.shape,
        f"targets: got shape {tuple(targets.shape)}, expected that of the outputs, {tuple(out.shape)}.",
    )
    return targets.to(out.dtype)


def _denominator(
    name: str, data: Sequence[Batch], reduction: str, shift: bool, ignore_index: int, ranks: Ranks
) -> tuple[float, str]:
    """What the sum of terms is divided by, and the sentence that says so; over the data of all processes."""
    if reduction == "sum":
        return 1.0, f"{name}, summed over everything"
    if reduction == "sequence":
        sequences = sum(ranks.all_gather("sequences", lambda: sum(batch_size(batch) for batch in data)))
        return float(sequences), f"{name}, summed within a sequence, mean over {number_of(sequences, 'sequence')}"
    if name != "cross_entropy":
        entries = sum(ranks.all_gather("entries", lambda: _entries(data)))
        return float(max(entries, 1)), f"{name}, mean over all {number_of(entries, 'entry', plural='entries')}"
    counted = ranks.all_gather("targets", lambda: _counted(data, shift, ignore_index))
    count, width = sum(count for count, _ in counted), max(width for _, width in counted)
    expect(width > 1, "targets: got sequences of one token, expected at least two to predict the next one.")
    expect(count > 0, f"targets: every target is {ignore_index}, expected at least one with a loss.")
    torch_words = "next-token " if shift else ""
    return float(count), f"{torch_words}{name}, mean over {number_of(count, 'target')}"


def _entries(data: Sequence[Batch]) -> int:
    found = [checked_targets(batch) for batch in data]
    return sum(targets.numel() for targets in found if targets is not None)


def _counted(data: Sequence[Batch], shift: bool, ignore_index: int) -> tuple[int, int]:
    """Targets with a loss, and the tokens of the longest sequence."""
    count = width = 0
    for batch in data:
        targets = labels(batch, shift, ignore_index)
        width = max(width, targets.shape[1] if shift else 2)
        count += int(((targets[:, 1:] if shift else targets) != ignore_index).sum())
    return count, width


_INPUTS = ("decoder_input_ids", "decoder_inputs_embeds")
NOTE = "the decoder's inputs are made from the labels, as the model itself makes them"


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
