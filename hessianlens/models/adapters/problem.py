"""`problem`: a model, data and a loss become a frozen `Problem` with named blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hessianlens.checks import check_precision
from hessianlens.errors import InputError, check_choice, expect
from hessianlens.memory import ensure_fits
from hessianlens.models.adapters.batches import as_batches, targets_of
from hessianlens.models.adapters.losses import StatedLoss, callable_loss, named_loss
from hessianlens.models.adapters.outputs import call, counted_call, wants_targets
from hessianlens.models.adapters.scope import differentiable_twice, fused_attention, uses_scaled_dot_product
from hessianlens.models.adapters.torch_losses import recognised, torch_loss
from hessianlens.models.discovery import discover
from hessianlens.problems import Batch, Problem, move

LossLike = str | Callable[[Tensor, Batch], Tensor] | None


def problem(
    model: nn.Module,
    data: object,
    loss: LossLike = None,
    *,
    reduction: str = "mean",
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    micro_batch: int | None = None,
    heads: bool = False,
    check: bool = True,
    verify: bool = True,
) -> Problem:
    """The loss of a model on data, as a function of its named blocks.

    The model is put in evaluation mode, without dropout and with attention that can be differentiated twice, only
    while it runs, and is left as it was. Derivatives are taken in `dtype` whatever the model's own is, also where the
    model casts to a narrower one, as many norms do. Weights in half precision are taken as the numbers they are, and
    computed with in float32.

    Args:
        model: Any `nn.Module`, Hugging Face model or TransformerLens-style model.
        data: A batch (tensor, (inputs, targets), dict) or an iterable of batches.
        loss: "cross_entropy", "square", "bce", "model" (a Hugging Face model's own, from `labels`), one of PyTorch's
            losses such as `nn.CrossEntropyLoss()` or `torch.nn.functional.mse_loss`, or a function of outputs and
            batch. Default: the model's own if the data has labels, else next-token cross-entropy for a causal
            language model.
        reduction: "mean" over all targets, "sequence" (mean over sequences of sums) or "sum"; for a function: "mean"
            over batches by size, or "sum"; PyTorch's losses keep their own.
        dtype: Precision of the derivatives, float32 or float64; default: the widest of the model's, at least float32.
        device: Where they are computed; default: where the model is.
        micro_batch: Largest number of sequences differentiated at once.
        heads: Also name every head's own part of q, k, v and o.
        check: Run the first batch twice and compare, to catch randomness.
        verify: With the first measurement, compare autograd's second derivatives to differences of the gradient on one
            sequence, to catch modules that hide part of their derivative; costs a few gradients of it a layer.

    >>> layer = nn.Sequential(nn.Linear(3, 2))
    >>> p = problem(layer, (torch.zeros(4, 3), torch.tensor([0, 1, 1, 0])), "cross_entropy")
    >>> p.reduction, list(p.blocks)
    ('cross_entropy, mean over 4 targets', ['0.weight', '0.bias'])
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model: got {type(model).__name__}, expected a torch nn.Module.")
    params, target_dtype, target_device = _parameters(model, dtype, device)
    batches = [move(batch, target_dtype, target_device) for batch in as_batches(data, micro_batch)]
    stated = _stated_loss(model, batches, loss, reduction)
    found = discover(model, heads=heads)
    with differentiable_twice(model):
        with_targets = wants_targets(model, params, batches[0])
    made = Problem(
        forward=partial(call, model, with_targets=with_targets),
        loss=stated.function,
        params=params,
        blocks=found.blocks,
        data=batches,
        reduction=stated.reduction,
        notes=(
            *found.notes,
            *_weights_note(model, target_dtype),
            *_attention_note(model),
            *_targets_note(model, with_targets),
        ),
        scope=partial(differentiable_twice, model),
        source=model,
        aliases=found.aliases,
        verify=verify,
    )
    if check:
        asked = _expect_deterministic(made, partial(counted_call, model, with_targets=with_targets))
        made = replace(
            made,
            forward=partial(call, model, with_targets=with_targets, halves=any(map(_is_half, asked))),
            notes=(*made.notes, *_precision_note(asked, target_dtype)),
        )
        if loss in (None, "model"):
            _expect_own_loss(model, made)
    return made


def _parameters(
    model: nn.Module, dtype: torch.dtype | None, device: torch.device | str | None
) -> tuple[dict[str, Tensor], torch.dtype, torch.device]:
    """Parameters and floating buffers, detached, in the precision and place of the derivatives."""
    named = dict(model.named_parameters())
    expect(len(named) > 0, f"model: {type(model).__name__} has no parameters.")
    target_dtype = _widest(model) if dtype is None else check_precision("dtype", dtype)
    target_device = torch.device(device) if device is not None else next(iter(named.values())).device
    state = {**named, **dict(model.named_buffers())}
    copied = sum(t.numel() for t in state.values() if t.dtype != target_dtype or t.device != target_device)
    what, instead = "A copy of the parameters", "use the model's own dtype and device, or a smaller model"
    ensure_fits(what, (copied,), target_dtype, target_device, instead)
    moved = {
        name: tensor.detach().to(device=target_device, dtype=target_dtype if tensor.is_floating_point() else None)
        for name, tensor in state.items()
    }
    return moved, target_dtype, target_device


def _own_dtypes(model: nn.Module) -> list[torch.dtype]:
    """Floating dtypes of the parameters, narrowest first."""
    found = {p.dtype for p in model.parameters() if p.is_floating_point()}
    return sorted(found, key=lambda dtype: (dtype.itemsize, str(dtype)))


def _widest(model: nn.Module) -> torch.dtype:
    return torch.float64 if torch.float64 in _own_dtypes(model) else torch.float32


def _stated_loss(model: nn.Module, data: Sequence[Batch], loss: LossLike, reduction: str) -> StatedLoss:
    kind = _head_kind(model, targets_of(data[0]))
    torchs_own = recognised(loss)
    if torchs_own is not None:
        return torch_loss(torchs_own, data, reduction, shift=kind == "causal")
    if callable(loss):
        return callable_loss(loss, data, reduction)
    if loss in (None, "model"):
        if kind is None or (targets_of(data[0]) is None and kind != "causal"):
            raise InputError(
                f"loss: {type(model).__name__} says nothing about its loss, or the data has no labels; "
                "give loss='cross_entropy', 'square' or 'bce' with targets, or a function of outputs and batch."
            )
        name = "square" if kind == "regression" else "bce" if kind == "multi_label" else "cross_entropy"
        return named_loss(name, data, reduction, shift=kind == "causal")
    check_choice("loss", loss, ("cross_entropy", "square", "bce", "model"))
    return named_loss(str(loss), data, reduction, shift=kind == "causal")


def _head_kind(model: nn.Module, targets: Tensor | None) -> str | None:
    """What a Hugging Face head predicts, by its class name; None for other models."""
    if not hasattr(model, "config"):
        return None
    name = type(model).__name__
    if name.endswith(("ForCausalLM", "LMHeadModel")):
        return "causal"
    if name.endswith("Classification") and not name.endswith("TokenClassification"):
        return _classification_kind(model.config, targets)
    if name.endswith("TokenClassification"):
        return "classes"
    return "classes" if name.endswith(("ForMaskedLM", "ForPreTraining")) else None


def _classification_kind(config: object, targets: Tensor | None) -> str:
    """As Hugging Face decides it: what the configuration states, else by the number and dtype of the labels."""
    stated = getattr(config, "problem_type", None)
    if stated is None and getattr(config, "num_labels", None) == 1:
        return "regression"
    if stated is None and targets is not None and targets.is_floating_point():
        return "multi_label"
    return {"regression": "regression", "multi_label_classification": "multi_label"}.get(str(stated), "classes")


def _attention_note(model: nn.Module) -> tuple[str, ...]:
    fused = fused_attention(model)
    if fused is not None:
        return (
            f"attention implementation {fused} has no second derivative: eager attention is used while differentiating",
        )
    if uses_scaled_dot_product(model):
        return ("fused attention has no second derivative: the plain kernel is used while differentiating",)
    return ()


def _targets_note(model: nn.Module, with_targets: bool) -> tuple[str, ...]:
    if not with_targets:
        return ()
    return (f"{type(model).__name__} gives outputs at every position only with targets: it is called with them",)


def _is_half(dtype: torch.dtype) -> bool:
    return dtype.itemsize < torch.float32.itemsize


def _weights_note(model: nn.Module, dtype: torch.dtype) -> tuple[str, ...]:
    own = _own_dtypes(model)
    half = any(map(_is_half, own))
    if not half and len(own) < 2:
        return ()
    rounded = " of the rounded weights" if half else ""
    return (f"weights are {_names(own)}: derivatives are computed in {_names([dtype])}{rounded}",)


def _precision_note(asked: Iterable[torch.dtype], dtype: torch.dtype) -> tuple[str, ...]:
    if not asked:
        return ()
    return (f"the model casts some steps to {_names(asked)}: they run in {_names([dtype])} while differentiating",)


def _names(dtypes: Iterable[torch.dtype]) -> str:
    return " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))


def _expect_deterministic(
    made: Problem, counted: Callable[..., tuple[Tensor, frozenset[torch.dtype]]]
) -> frozenset[torch.dtype]:
    """Two runs of the first batch agree and are finite; gives the narrower dtypes that the model asked for."""
    with made.scope(), torch.no_grad():
        first = made.forward(made.params, made.data[0])
        again, asked = counted(made.params, made.data[0])
    expect(
        bool(torch.isfinite(first).all()),
        "model: its outputs on the first batch are not finite; look for NaN or infinity in the data and the weights.",
    )
    if not torch.equal(first, again):
        raise InputError(
            f"model: two runs on the same batch differ by up to {float((first - again).abs().max()):.2g}; "
            "it draws random numbers in evaluation mode, and its derivatives would be noise. Turn that off."
        )
    value = made.loss(first, made.data[0])
    expect(bool(torch.isfinite(value)), f"loss: got {float(value)} on the first batch, expected a finite number.")
    return asked


def _expect_own_loss(model: nn.Module, made: Problem) -> None:
    """A causal model's own loss has, on the first batch, the value of the next-token loss that stands for it."""
    batch = made.data[0]
    if _head_kind(model, None) != "causal" or not isinstance(batch, Mapping) or "labels" not in batch:
        return
    with made.scope(), torch.no_grad():
        found = getattr(functional_call(model, dict(made.params), (), dict(batch)), "loss", None)
        if not isinstance(found, Tensor) or not bool(torch.isfinite(found)):
            return
        stated = named_loss("cross_entropy", [batch], "mean", shift=True)
        own, here = float(found), float(stated.function(made.forward(made.params, batch), batch))
    expect(
        abs(own - here) <= 1e-3 * max(abs(own), abs(here)),
        f"loss: {type(model).__name__}'s own is {own:.6g} on the first batch, expected {here:.6g}, the "
        f"{stated.reduction}; give its loss as a function of outputs and batch.",
    )
