"""What a first run of a model shows: whether it repeats itself, what attention it calls, and how it ends."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from hessianlens.errors import InputError, Refusal, expect
from hessianlens.models.adapters.class_loss import ClassLoss
from hessianlens.models.adapters.long_attention import LongAttention
from hessianlens.models.adapters.outputs import call, checked_call, counted_call
from hessianlens.models.adapters.precision import is_half
from hessianlens.models.adapters.torch_losses import TorchShare
from hessianlens.models.adapters.unembedding import LastMap, Unembedding, UnformedCall, are_large, logits_note
from hessianlens.problems import Forward, Problem

_ANY = frozenset({torch.float16})
"""Narrower dtypes that may be asked for, where nobody has looked."""


@dataclass(frozen=True, eq=False)
class Seen:
    """What a first run showed: its outputs, narrower dtypes that were asked for, attention, and the last linear map."""

    outputs: Tensor
    asked: frozenset[torch.dtype]
    met: LongAttention
    last: Unembedding | Refusal


def first_run(model: nn.Module, made: Problem, with_targets: bool, check: bool) -> Seen:
    """The first batch; with `check` twice, to see that two runs agree and are finite."""
    batch = made.data[0]
    with made.scope() as met, torch.no_grad():
        with LastMap(made.params) as maps:
            first = checked_call(model, made.params, batch, with_targets)
        last = maps.found(model, first)
        again, asked = counted_call(model, made.params, batch, with_targets) if check else (first, _ANY)
    assert isinstance(met, LongAttention)
    if check:
        _expect_same(first, again)
        value = made.loss(first, batch)
        expect(bool(torch.isfinite(value)), f"loss: got {float(value)} on the first batch, expected a finite number.")
    return Seen(first, asked, met, last)


def _expect_same(first: Tensor, again: Tensor) -> None:
    expect(
        bool(torch.isfinite(first).all()),
        "model: its outputs on the first batch are not finite; look for NaN or infinity in the data and the weights.",
    )
    if not torch.equal(first, again):
        raise InputError(
            f"model: two runs on the same batch differ by up to {float((first - again).abs().max()):.2g}; "
            "it draws random numbers in evaluation mode, and its derivatives would be noise. Turn that off."
        )


def ended(made: Problem, seen: Seen, logits: str, with_targets: bool) -> tuple[Forward, tuple[str, ...]]:
    """The forward pass, which may end in front of its last linear map, and what is said of that."""
    model, halves = made.source, any(map(is_half, seen.asked))
    assert isinstance(model, nn.Module)
    whole = partial(call, model, with_targets=with_targets, halves=halves)
    if logits == "whole" or (logits == "auto" and not are_large(seen.outputs)):
        return whole, ()
    last: Unembedding | Refusal = seen.last
    if not isinstance(made.loss, ClassLoss):
        last = Refusal("the loss is not known to be a cross-entropy of classes")
    elif isinstance(last, Refusal):
        pass
    elif isinstance(made.loss.share, TorchShare) and not made.loss.share.classes_last(seen.outputs, made.data[0]):
        last = Refusal(f"{made.loss.share.loss.name} reads the classes from axis 1")
    note = logits_note(seen.outputs, last)
    return UnformedCall(model, last, with_targets, halves) if isinstance(last, Unembedding) else whole, (note,)
