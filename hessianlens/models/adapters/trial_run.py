"""What a first run of a model shows, on the meta device or in earnest: attention, outputs, memory, repeatability."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hessianlens.errors import InputError, Refusal, expect
from hessianlens.memory import SAFE_SHARE, LiveBytes, available_bytes
from hessianlens.models.adapters.losses import ClassLoss
from hessianlens.models.adapters.outputs import arguments, as_tensor, call, checked_call, counted_call
from hessianlens.models.adapters.precision import NarrowResults, is_half
from hessianlens.models.adapters.torch_losses import TorchShare
from hessianlens.models.adapters.twice_differentiable import LongAttention, differentiable_twice, evaluation_mode
from hessianlens.models.adapters.unembedding import FusedLossCall, LastMap, Unembedding, are_large, logits_note
from hessianlens.problems import Batch, Forward, Problem, move, tensors
from hessianlens.sizes import readable


@dataclass(frozen=True, eq=False)
class KnownBatch:
    """What is known of a batch from a trial run.

    Attributes:
        batch: The batch.
        outputs: Outputs as a problem with materialised logits computes them, or as the model by itself does.
        own: What the model by itself returns; None if that was not kept.
    """

    batch: Batch
    outputs: Tensor
    own: object | None


def has_own_digits(model: nn.Module, precisions: Iterable[torch.dtype], device: torch.device) -> bool:
    """Whether the model by itself computes on this device, and in a dtype with digits to compare."""
    placed = all(p.device == device for p in model.parameters())
    return placed and not any(map(is_half, precisions))


def floating_dtypes(model: nn.Module) -> set[torch.dtype]:
    """Floating dtypes of the parameters."""
    return {p.dtype for p in model.parameters() if p.is_floating_point()}


def own_result(model: nn.Module, batch: Batch, with_targets: bool) -> object | None:
    """What the model by itself returns; None if it cannot be run so.

    Args:
        model: The model.
        batch: A batch.
        with_targets: Whether the model is handed the targets too.

    >>> own_result(nn.Identity(), torch.ones(1, 2), with_targets=False)
    tensor([[1., 1.]])
    """
    dtypes = floating_dtypes(model)
    given = move(batch, next(iter(dtypes)) if len(dtypes) == 1 else None, None)
    args, options = arguments(given, with_targets)
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    kept = {name: tensor.detach() for name, tensor in state.items()}
    try:
        with evaluation_mode(model), torch.no_grad():
            result: object = functional_call(model, kept, args, options)
            as_tensor(result)
    except Exception:  # half of the data in another dtype, a kernel that is not there: the problem has run
        return None
    return result


@dataclass(frozen=True, eq=False)
class TrialRun:
    """What a first run showed.

    Attributes:
        outputs: Its outputs.
        asked: Narrower dtypes that were asked for.
        attention: Attention that it came to.
        last: The last linear map.
        known: Batches with their outputs: the first, where two runs of it agreed; or all, as the model itself has them.
    """

    outputs: Tensor
    asked: frozenset[torch.dtype]
    attention: LongAttention
    last: Unembedding | Refusal
    known: tuple[KnownBatch, ...] = ()


def first_run(model: nn.Module, made: Problem, with_targets: bool, check: bool) -> TrialRun:
    """The first batch; with `check` twice, to see that two runs agree and are finite.

    The second run is that of the model by itself, which its loss is compared with later; where that has other digits,
    as other kernels give, the first one is repeated.
    """
    batch = made.data[0]
    with made.scope() as attention, torch.no_grad():
        with LastMap(made.params) as maps:
            outputs, asked = checked_call(model, made.params, batch, with_targets)
        last = maps.found(model, outputs)
    assert isinstance(attention, LongAttention)
    if not check:
        return TrialRun(outputs, asked, attention, last)
    _expect_finite(outputs)
    own = own_result(model, batch, with_targets) if has_own_digits(model, [made.dtype], made.device) else None
    if own is None or not _same(outputs, as_tensor(own)):
        expect_repeatable(model, made, with_targets, batch, outputs)
    known = KnownBatch(batch, outputs, None if are_large(outputs) else own)
    return TrialRun(outputs, asked, attention, last, (known,))


def own_run(model: nn.Module, made: Problem, with_targets: bool) -> TrialRun | None:
    """The model by itself on every batch, once; None where that would not tell what a problem has to know of it.

    It does where the model has no step in another precision than the problem, which then differs from it in kernels
    alone, and where its outputs are small enough to be held until they are compared.
    """
    if not has_own_digits(model, [made.dtype], made.device) or floating_dtypes(model) != {made.dtype}:
        return None
    known: list[KnownBatch] = []
    for batch in made.data:
        with NarrowResults(made.dtype) as narrow:
            own = own_result(model, batch, with_targets)
        if own is None or narrow.seen or as_tensor(own).dtype != made.dtype:
            return None
        known.append(KnownBatch(batch, as_tensor(own), own))
        if are_large(*(one.outputs for one in known)):
            return None
    _expect_finite(known[0].outputs)
    unknown = Refusal("its last linear map was not looked for")
    return TrialRun(known[0].outputs, frozenset(), LongAttention("math"), unknown, tuple(known))


def _expect_finite(outputs: Tensor) -> None:
    expect(
        bool(torch.isfinite(outputs).all()),
        "model: its outputs on the first batch are not finite; look for NaN or infinity in the data and the weights.",
    )


def expect_repeatable(model: nn.Module, made: Problem, with_targets: bool, batch: Batch, outputs: Tensor) -> None:
    """A run of a batch as the problem computes it gives the same outputs once more, bit by bit."""
    with made.scope(), torch.no_grad():
        _expect_same(outputs, counted_call(model, made.params, batch, with_targets)[0])


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal bit by bit."""
    return (one.dtype, one.shape, one.device) == (other.dtype, other.shape, other.device) and torch.equal(one, other)


def _expect_same(first: Tensor, again: Tensor) -> None:
    if not _same(first, again):
        raise InputError(
            f"model: two runs on the same batch differ by up to {float((first - again).abs().max()):.2g}; "
            "it draws random numbers in evaluation mode, and its derivatives would be noise. Turn that off."
        )


def end_before_logits(
    made: Problem, seen: TrialRun, logits: str, with_targets: bool
) -> tuple[Forward, tuple[str, ...]]:
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
    return FusedLossCall(model, last, with_targets, halves) if isinstance(last, Unembedding) else whole, (note,)


@dataclass(frozen=True, eq=False)
class ForwardDryRun:
    """A forward pass without contents.

    Attributes:
        seen: What a first run would have shown.
        peak_bytes: The most memory that its tensors would hold at once, beside parameters and data.
    """

    seen: TrialRun
    peak_bytes: int


def run_dry(model: nn.Module, made: Problem, batch: Batch, with_targets: bool) -> ForwardDryRun | None:
    """A batch on the meta device; None where the model cannot do without contents.

    Args:
        model: The model.
        made: The problem that is made of it.
        batch: One batch of its data.
        with_targets: Whether the model is handed the targets too.
    """
    try:
        on_meta = replace(made.alone(), data=[batch]).to(device="meta")
        inputs = (*on_meta.params.values(), *tensors(on_meta.data))
        with on_meta.scope() as attention, torch.no_grad(), LastMap(on_meta.params) as maps:
            with LiveBytes(inputs) as live:
                outputs, asked = counted_call(model, on_meta.params, on_meta.data[0], with_targets)
            last = maps.found(model, outputs)
    except Exception:  # whatever a model makes of tensors without contents, with contents it may run
        return None
    assert isinstance(attention, LongAttention)
    return ForwardDryRun(TrialRun(outputs, asked, attention, last), live.peak)


def ensure_batches_fit(model: nn.Module, made: Problem, with_targets: bool) -> None:
    """Refuse data of which the largest batch does not fit in memory, not even without derivatives.

    Args:
        model: The model.
        made: The problem that is made of it.
        with_targets: Whether the model is handed the targets too.
    """
    largest = max(made.data, key=lambda batch: sum(tensor.numel() for tensor in tensors(batch)))
    found = run_dry(model, made, move(largest, None, made.device), with_targets)
    free = available_bytes(made.device)
    if found is None or found.peak_bytes <= SAFE_SHARE * free:
        return
    shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors(largest))
    eager = getattr(getattr(model, "config", None), "_attn_implementation", None) == "eager"
    chunks = ", or load the model with attn_implementation='sdpa', whose attention runs in chunks" if eager else ""
    raise InputError(
        f"data: got a batch of shapes {shapes}, whose forward pass alone holds {readable(found.peak_bytes)}; expected "
        f"at most {readable(SAFE_SHARE * free)} of the {readable(free)} that are free on {made.device}; take shorter "
        f"sequences or fewer of them per batch{chunks}."
    )


def output_shape(model: nn.Module, batch: Batch) -> torch.Size:
    """The shape of a model's outputs, without running it where it can do without contents.

    Args:
        model: The model.
        batch: A batch.

    >>> output_shape(nn.Linear(3, 2), torch.zeros(5, 3))
    torch.Size([5, 2])
    """
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    on_meta = {name: tensor.detach().to("meta") for name, tensor in state.items()}
    with differentiable_twice(model), torch.no_grad():
        try:
            with LiveBytes():
                return call(model, on_meta, move(batch, None, "meta")).shape
        except Exception:  # as in `run_dry`
            return call(model, state, batch).shape
