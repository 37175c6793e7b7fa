"""PyTorch's own losses: `nn.CrossEntropyLoss()` and its like as modules, as functions, or with arguments bound.

They are called as PyTorch calls them, with its convention for the axis of the classes: outputs (C,), (N, C) or
(N, C, d1, ...). Outputs (N, ..., C) with targets (N, ...) are accepted where PyTorch's own reading is impossible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as nnf
from torch.nn._reduction import legacy_get_string
from torch.nn.modules.loss import _Loss

from hessianlens.distributed import SINGLE_RANK, Ranks
from hessianlens.errors import InputError, expect
from hessianlens.failures import failures_as_input_errors
from hessianlens.models.adapters.losses import (
    IGNORED,
    ClassLoss,
    StatedLoss,
    callable_loss,
    check_classes,
    labels,
    next_ones,
    targets_like,
)
from hessianlens.problems import Batch
from hessianlens.state_guard import ModuleTensors

_OF_LOGITS = ("cross_entropy", "CrossEntropyLoss")
_BY_CLASS = (*_OF_LOGITS, "nll_loss", "NLLLoss")
_SAME_SHAPE_ONLY = ("BCELoss", "binary_cross_entropy", "BCEWithLogitsLoss", "binary_cross_entropy_with_logits")
"""Losses that refuse targets of another shape than the outputs', where others broadcast them."""
_MARGINS = ("MultiMarginLoss", "multi_margin_loss", "MultiLabelMarginLoss", "multilabel_margin_loss")
"""Losses of numbers whose targets are classes, and may have another shape than the outputs."""
_FUNCTIONS = (
    *(nnf.cross_entropy, nnf.nll_loss, nnf.mse_loss, nnf.l1_loss, nnf.smooth_l1_loss, nnf.huber_loss),
    *(nnf.binary_cross_entropy, nnf.binary_cross_entropy_with_logits, nnf.kl_div, nnf.poisson_nll_loss),
    *(nnf.soft_margin_loss, nnf.multi_margin_loss, nnf.multilabel_margin_loss, nnf.multilabel_soft_margin_loss),
)


@dataclass(frozen=True, eq=False)
class TorchLoss:
    """What is known about one of PyTorch's losses.

    Attributes:
        name: Its name.
        call: It as a function of outputs and targets.
        reduction: Its own, such as "mean" or "sum".
        by_class: Whether its targets are numbers of classes.
        ignore_index: The class without a loss.
        weight: Weights of the classes.
        smoothing: The share of a target that is spread over all classes.
    """

    name: str
    call: Callable[[Tensor, Tensor], Tensor]
    reduction: str
    by_class: bool
    ignore_index: int
    weight: Tensor | None
    smoothing: float = 0.0

    def counted(self, targets: Tensor) -> float:
        """What its mean over these targets divides by, up to a constant factor."""
        if self.reduction == "batchmean":
            return float(len(targets))
        if not self.by_class or targets.is_floating_point():
            return float(targets.numel())
        seen = targets[targets != self.ignore_index].long()
        return float(len(seen)) if self.weight is None else float(self.weight.to(targets.device)[seen].double().sum())


def recognise_torch_loss(loss: object) -> TorchLoss | None:
    """One of PyTorch's losses of outputs and targets; None for any other function, and for classes derived from them.

    >>> (
    ...     recognise_torch_loss(nn.CrossEntropyLoss(ignore_index=0)).ignore_index,
    ...     recognise_torch_loss(partial(nnf.mse_loss)).name,
    ... )
    (0, 'mse_loss')
    >>> recognise_torch_loss(lambda outputs, batch: outputs.sum()) is None
    True
    """
    if isinstance(loss, _Loss):
        if type(loss).__module__ != _Loss.__module__:  # a forward of its own, about which nothing is known
            return None
        return _described(type(loss).__name__, partial(_call_module, loss), vars(loss), dict(loss.named_buffers()))
    bound = loss.keywords if isinstance(loss, partial) and not loss.args else {}
    given = loss.func if isinstance(loss, partial) and not loss.args else loss
    function = next((known for known in _FUNCTIONS if known is given), None)
    if function is not None:
        return _described(function.__name__, partial(_call_function, function, bound), bound, bound)
    return None


def derived_loss(loss: nn.Module, data: Sequence[Batch], reduction: str, shift: bool, ranks: Ranks) -> StatedLoss:
    """A class derived from one of PyTorch's losses: called with outputs and targets, and nothing else is known of it.

    Args:
        loss: The module.
        data: All batches.
        reduction: What was asked for.
        shift: Whether position p predicts token p + 1 (causal language models).
        ranks: Processes that hold a share of the data each.
    """
    own = str(getattr(loss, "reduction", "mean"))
    name = type(loss).__name__
    expect(own in ("mean", "sum"), f"loss: {name} has reduction={own!r}, expected 'mean' or 'sum'.")
    expect(
        reduction in ("mean", own),
        f"reduction: got {reduction!r}, but {name} itself has reduction={own!r}; set it there.",
    )

    def function(out: Tensor, batch: Batch) -> Tensor:
        targets = labels(batch, shift, int(getattr(loss, "ignore_index", IGNORED)))
        return _call_module(loss, out[:, :-1] if shift else out, targets[:, 1:] if shift else targets)

    stated = callable_loss(function, data, own, ranks)
    words = stated.reduction.replace("the given function", f"{'next-token ' if shift else ''}{name}")
    return StatedLoss(stated.function, words)


@dataclass(frozen=True, eq=False)
class TorchShare:
    """A batch's share of one of PyTorch's losses.

    Attributes:
        loss: The loss.
        total: What its mean over all of the data divides by.
        shift: Whether position p predicts token p + 1.
    """

    loss: TorchLoss
    total: float
    shift: bool

    def __call__(self, out: Tensor, batch: Batch) -> Tensor:
        """The share: PyTorch's own value of the batch, weighted by what it counts."""
        targets = _targets(self.loss, batch, self.shift)
        count = self.loss.counted(targets)
        if count == 0:  # PyTorch's mean over nothing is not a number
            return (0 * out).sum()
        outputs, taken = self._taken(out[:, :-1] if self.shift else out, targets)
        with failures_as_input_errors(f"loss: {self.loss.name} failed", f"it was given {_shapes(outputs, taken)}"):
            value = self.loss.call(outputs, taken)
        return value * (1.0 if self.loss.reduction == "sum" else count / self.total)

    def reading(self, out: Tensor, batch: Batch) -> str:
        """How outputs and targets are read, where there is more to it than PyTorch's (N, C); else empty."""
        targets = _targets(self.loss, batch, self.shift)
        if self.shift or out.ndim < 2:
            return ""
        shapes = f"outputs {tuple(out.shape)} and targets {tuple(targets.shape)}"
        if not self.loss.by_class:
            read = self.loss.name in _SAME_SHAPE_ONLY and targets.shape != out.shape
            return f"PyTorch's {self.loss.name} takes no {shapes}: one target is read for each output" if read else ""
        if not _as_pytorch(out, targets):
            return f"PyTorch's {self.loss.name} takes no {shapes}: classes are read from the last axis"
        return f"{self.loss.name} reads the classes from axis 1 of {shapes}, as PyTorch does" if out.ndim > 2 else ""

    def classes_last(self, out: Tensor, batch: Batch) -> bool:
        """Whether the last axis of the outputs is that of the classes."""
        return self.shift or out.ndim <= 2 or not _as_pytorch(out, _targets(self.loss, batch, self.shift))

    def _taken(self, out: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs and targets as PyTorch's function takes them."""
        if not self.loss.by_class:
            return out, _numbers(self.loss, out, targets)
        real = targets.is_floating_point()
        if not self.shift and _as_pytorch(out, targets):
            if not real:
                check_classes(out.movedim(min(1, out.ndim - 1), -1), targets, self.loss.ignore_index)
            return out, targets.to(out.dtype) if real else targets.long()
        if real:
            targets = targets_like(out, targets)
            return out.reshape(-1, out.shape[-1]), targets.reshape(-1, out.shape[-1])
        check_classes(out, targets, self.loss.ignore_index)
        return out.reshape(-1, out.shape[-1]), targets.reshape(-1).long()


def _as_pytorch(out: Tensor, targets: Tensor) -> bool:
    """Whether PyTorch's losses of classes take these: numbers of classes without axis 1, or shares of all classes."""
    wanted = out.shape if targets.is_floating_point() else (*out.shape[: out.ndim > 1], *out.shape[2:])
    return tuple(targets.shape) == tuple(wanted)


def _numbers(found: TorchLoss, out: Tensor, targets: Tensor) -> Tensor:
    """Targets of a loss of numbers, one for each output: PyTorch would broadcast others, and mix sequences by that."""
    if found.name in _MARGINS:
        return targets
    if targets.shape == out.shape or targets.numel() == out.numel() == 1:
        return targets.reshape(out.shape).to(out.dtype)
    if found.name in _SAME_SHAPE_ONLY:
        return targets_like(out, targets) if out.shape == (*targets.shape, 1) else targets
    try:
        wide = f"; PyTorch would broadcast both to {tuple(torch.broadcast_shapes(out.shape, targets.shape))}"
    except RuntimeError:
        wide = ""
    raise InputError(
        f"targets: got shape {tuple(targets.shape)}, expected that of the outputs, {tuple(out.shape)}, for "
        f"{found.name}{wide}. Reshape or expand them, or give a function of outputs and batch."
    )


def torch_loss(
    found: TorchLoss, data: Sequence[Batch], reduction: str, shift: bool, ranks: Ranks = SINGLE_RANK
) -> StatedLoss:
    """A batch's share of one of PyTorch's losses over all of the data, reduced as the loss itself says.

    Args:
        found: The loss.
        data: All batches, to weigh their means by what they count.
        reduction: What was asked for; it must not contradict the loss.
        shift: Whether position p predicts token p + 1 (causal language models).
        ranks: Processes that hold a share of the data each; a mean is one over all of them.
    """
    own = "mean" if found.reduction == "batchmean" else found.reduction
    expect(own in ("mean", "sum"), f"loss: {found.name} has reduction={own!r}, expected 'mean' or 'sum'.")
    expect(
        reduction in ("mean", own),
        f"reduction: got {reduction!r}, but {found.name} itself has reduction={own!r}; set it there.",
    )
    total = sum(
        ranks.all_gather("targets", lambda: sum(found.counted(_targets(found, batch, shift)) for batch in data))
    )
    expect(total > 0, f"targets: {found.name} counts none of them (ignore_index={found.ignore_index}), expected some.")
    share = TorchShare(found, total, shift)
    words = f"{'next-token ' if shift else ''}{found.name}, " + (
        f"mean over {total:g} {_unit(found)}" if own == "mean" else "summed over everything"
    )
    of_logits = found.name in _OF_LOGITS and not any(_targets(found, b, shift).is_floating_point() for b in data)
    if not of_logits:
        return StatedLoss(share, words, additive=True)

    def aligned(batch: Batch) -> Tensor:
        targets = labels(batch, shift, found.ignore_index)
        return next_ones(targets, found.ignore_index) if shift else targets

    factor = 1 / total if own == "mean" else 1.0
    classes = ClassLoss(share, aligned, factor, found.ignore_index, found.smoothing, found.weight)
    return StatedLoss(classes, words, additive=True)


def _shapes(outputs: Tensor, targets: Tensor) -> str:
    return f"outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)} {targets.dtype}"


def _unit(found: TorchLoss) -> str:
    if found.reduction == "batchmean":
        return "sequences"
    return "entries" if not found.by_class else "targets" if found.weight is None else "weights of targets"


def _targets(found: TorchLoss, batch: Batch, shift: bool) -> Tensor:
    targets = labels(batch, shift, found.ignore_index if found.by_class else IGNORED)
    return targets[:, 1:] if shift else targets


def _described(
    name: str, call: Callable[[Tensor, Tensor], Tensor], options: Mapping[str, Any], tensors: Mapping[str, Any]
) -> TorchLoss:
    weight = tensors.get("weight")
    old = options.get("size_average"), options.get("reduce")  # names of the reduction in former times
    former = legacy_get_string(*old, emit_warning=False) if old != (None, None) else None
    return TorchLoss(
        name=name,
        call=call,
        reduction=former or str(options.get("reduction", "mean")),
        by_class=name in _BY_CLASS,
        ignore_index=int(options.get("ignore_index", IGNORED)),
        weight=weight if isinstance(weight, Tensor) else None,
        smoothing=float(options.get("label_smoothing", 0.0)),
    )


def _call_module(loss: nn.Module, out: Tensor, targets: Tensor) -> Tensor:
    """The module with its weights in the outputs' precision; the module itself is left alone."""
    with ModuleTensors(loss):
        return functional_call(loss, {name: b.to(out) for name, b in loss.named_buffers()}, (out, targets))


def _call_function(function: Callable[..., Tensor], bound: Mapping[str, Any], out: Tensor, targets: Tensor) -> Tensor:
    options = {name: value.to(out) if isinstance(value, torch.Tensor) else value for name, value in bound.items()}
    return function(out, targets, **options)
