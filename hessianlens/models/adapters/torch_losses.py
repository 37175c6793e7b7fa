"""PyTorch's own losses: `nn.CrossEntropyLoss()` and its like as modules, as functions, or with arguments bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as nnf
from torch.nn.modules.loss import _Loss

from hessianlens.errors import expect
from hessianlens.failures import explained
from hessianlens.models.adapters.class_loss import ClassLoss, next_ones
from hessianlens.models.adapters.losses import IGNORED, StatedLoss, check_classes, labels, targets_like
from hessianlens.problems import Batch
from hessianlens.ranks import ALONE, Ranks
from hessianlens.state_guard import ModuleTensors

_OF_LOGITS = ("cross_entropy", "CrossEntropyLoss")
_BY_CLASS = (*_OF_LOGITS, "nll_loss", "NLLLoss")
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


def recognised(loss: object) -> TorchLoss | None:
    """One of PyTorch's losses of outputs and targets; None for any other function.

    >>> recognised(nn.CrossEntropyLoss(ignore_index=0)).ignore_index, recognised(partial(nnf.mse_loss)).name
    (0, 'mse_loss')
    >>> recognised(lambda outputs, batch: outputs.sum()) is None
    True
    """
    if isinstance(loss, _Loss):
        return _described(type(loss).__name__, partial(_call_module, loss), vars(loss), dict(loss.named_buffers()))
    bound = loss.keywords if isinstance(loss, partial) and not loss.args else {}
    given = loss.func if isinstance(loss, partial) and not loss.args else loss
    function = next((known for known in _FUNCTIONS if known is given), None)
    if function is not None:
        return _described(function.__name__, partial(_call_function, function, bound), bound, bound)
    return None


def torch_loss(
    found: TorchLoss, data: Sequence[Batch], reduction: str, shift: bool, ranks: Ranks = ALONE
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
    total = sum(ranks.shared("targets", lambda: sum(found.counted(_targets(found, batch, shift)) for batch in data)))
    expect(total > 0, f"targets: {found.name} counts none of them (ignore_index={found.ignore_index}), expected some.")

    def share(out: Tensor, batch: Batch) -> Tensor:
        targets = _targets(found, batch, shift)
        count = found.counted(targets)
        if count == 0:  # PyTorch's mean over nothing is not a number
            return (0 * out).sum()
        outputs, aligned = _aligned(found, out[:, :-1] if shift else out, targets)
        with explained(f"loss: {found.name} failed", f"it was given {_shapes(outputs, aligned)}"):
            value = found.call(outputs, aligned)
        return value * (count / total if own == "mean" else 1.0)

    words = f"{'next-token ' if shift else ''}{found.name}, " + (
        f"mean over {total:g} {_unit(found)}" if own == "mean" else "summed over everything"
    )
    of_logits = found.name in _OF_LOGITS and not any(_targets(found, b, shift).is_floating_point() for b in data)
    if not of_logits:
        return StatedLoss(share, words)

    def aligned(batch: Batch) -> Tensor:
        targets = labels(batch, shift, found.ignore_index)
        return next_ones(targets, found.ignore_index) if shift else targets

    factor = 1 / total if own == "mean" else 1.0
    return StatedLoss(ClassLoss(share, aligned, factor, found.ignore_index, found.smoothing, found.weight), words)


def _shapes(outputs: Tensor, targets: Tensor) -> str:
    return f"outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)} {targets.dtype}"


def _unit(found: TorchLoss) -> str:
    if found.reduction == "batchmean":
        return "sequences"
    return "entries" if not found.by_class else "targets" if found.weight is None else "weights of targets"


def _targets(found: TorchLoss, batch: Batch, shift: bool) -> Tensor:
    targets = labels(batch, shift, found.ignore_index if found.by_class else IGNORED)
    return targets[:, 1:] if shift else targets


def _aligned(found: TorchLoss, out: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs and targets in the shapes PyTorch's functions take: positions are flattened, classes last."""
    if not found.by_class:
        same = targets.shape == out.shape or out.shape == (*targets.shape, 1)
        return out, targets_like(out, targets) if same else targets
    if targets.is_floating_point():
        targets = targets_like(out, targets)
        return out.reshape(-1, out.shape[-1]), targets.reshape(-1, out.shape[-1])
    classes_second = targets.shape != out.shape[:-1] and targets.shape == (*out.shape[:1], *out.shape[2:])
    flat = out.movedim(1, -1) if classes_second else out
    check_classes(flat, targets, found.ignore_index)
    return flat.reshape(-1, flat.shape[-1]), targets.reshape(-1).long()


def _described(
    name: str, call: Callable[[Tensor, Tensor], Tensor], options: Mapping[str, Any], tensors: Mapping[str, Any]
) -> TorchLoss:
    weight = tensors.get("weight")
    return TorchLoss(
        name=name,
        call=call,
        reduction=str(options.get("reduction", "mean")),
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
