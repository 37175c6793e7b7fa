"""Which loss a problem has: the one that is asked for, or the model's own, whose value it must then have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.loss import _Loss

from hessianlens.distributed import SINGLE_RANK, Ranks
from hessianlens.errors import InputError, check_choice, expect
from hessianlens.failures import failures_as_input_errors
from hessianlens.models.adapters.batches import SPANS, targets_of
from hessianlens.models.adapters.losses import NOTE, StatedLoss, callable_loss, named_loss
from hessianlens.models.adapters.outputs import as_tensor
from hessianlens.models.adapters.precision import in_precision_of
from hessianlens.models.adapters.task_heads import head_kind, no_own_loss
from hessianlens.models.adapters.torch_losses import derived_loss, recognise_torch_loss, torch_loss
from hessianlens.problems import Batch, Problem

LossLike = str | Callable[[Tensor, Batch], Tensor] | None


def is_own_loss(loss: object) -> bool:
    """Whether the model's own loss is asked for."""
    return loss is None or (isinstance(loss, str) and loss == "model")


def choose_loss(
    model: nn.Module, typical: Batch, data: Sequence[Batch], loss: LossLike, reduction: str, ranks: Ranks = SINGLE_RANK
) -> StatedLoss:
    """The loss as a function of outputs and a batch, with the sentence that says what it is.

    Args:
        model: The model.
        typical: One of its batches.
        data: All of them.
        loss: What is asked for; None for the model's own.
        reduction: How terms are put together.
        ranks: Those that share the data.
    """
    targets = targets_of(typical)
    kind = head_kind(model, targets)
    torchs_own = recognise_torch_loss(loss)
    if torchs_own is not None:
        return torch_loss(torchs_own, data, reduction, kind == "causal", ranks)
    if isinstance(loss, _Loss):
        return derived_loss(loss, data, reduction, kind == "causal", ranks)
    if callable(loss):
        return callable_loss(loss, data, reduction, ranks)
    if is_own_loss(loss):
        if kind is None or (targets is None and kind != "causal"):
            raise InputError(no_own_loss(model, kind, targets))
        name = {"regression": "square", "multi_label": "bce"}.get(kind, "cross_entropy")
        return named_loss(name, data, reduction, kind == "causal", ranks=ranks)
    check_choice("loss", loss, ("cross_entropy", "square", "bce", "model"))
    return named_loss(str(loss), data, reduction, kind == "causal", ranks=ranks)


def expect_own_loss(model: nn.Module, made: Problem, number: int, batch: Batch) -> None:
    """Refuse a loss whose value is not that of the model itself.

    Args:
        model: The model.
        made: Its problem.
        number: Of the batch.
        batch: The batch; without labels the model has no loss of its own.
    """
    if not isinstance(batch, Mapping) or not ("labels" in batch or all(key in batch for key in SPANS)):
        return
    # The model makes what goes into its decoder by itself, unless it was given that; it may make something else.
    from_labels = NOTE in made.notes
    asked = {key: value for key, value in batch.items() if not from_labels or key != "decoder_input_ids"}
    with made.scope(), torch.no_grad():
        result = _own_result(model, made.params, asked)
        found = getattr(result, "loss", None)
        if not isinstance(found, Tensor) or found.numel() != 1 or not bool(torch.isfinite(found)):
            return
        stated = choose_loss(model, batch, [batch], None, "mean")
        outputs = made.forward(made.params, batch) if from_labels else as_tensor(result)
        own, here = float(found), float(stated.function(outputs, batch))
    expect(
        abs(own - here) <= max(1e-3, 16 * torch.finfo(made.dtype).eps) * max(abs(own), abs(here)),
        f"loss: {type(model).__name__}'s own is {own:.6g} on batch {number}, expected {here:.6g}, the "
        f"{stated.reduction}; give its loss as a function of outputs and batch.",
    )


def _own_result(model: nn.Module, params: Mapping[str, Tensor], batch: Mapping[str, object]) -> object:
    """What a model returns with labels, without the kind of problem that Hugging Face notes in its configuration."""
    what, remedy = f"loss: {type(model).__name__} could not compute its own", "give a function of outputs and batch"
    with failures_as_input_errors(what, remedy), in_precision_of(params.values()):
        return functional_call(model, dict(params), (), dict(batch))
