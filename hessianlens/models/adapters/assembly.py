"""`problem`: a model, data and a loss become a frozen `Problem` with named blocks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from hessianlens.checks import check_device, check_precision
from hessianlens.distributed import SINGLE_RANK, Ranks, ranks_of
from hessianlens.errors import InputError, check_choice, check_flag
from hessianlens.memory import ensure_fits
from hessianlens.models.adapters.batches import check_ids, check_micro_batch
from hessianlens.models.adapters.comparison import LateComparison, ModelComparison
from hessianlens.models.adapters.loss_choice import LossLike, choose_loss, expect_own_loss, is_own_loss
from hessianlens.models.adapters.losses import NOTE, ClassLoss, with_decoder_inputs
from hessianlens.models.adapters.micro_batches import cut_problem
from hessianlens.models.adapters.outputs import call, wants_targets
from hessianlens.models.adapters.precision import precision_note, weights_note, widest_dtype
from hessianlens.models.adapters.sharded_data import expect_same_weights, own_batches, typical_batches
from hessianlens.models.adapters.task_heads import decodes
from hessianlens.models.adapters.trial_run import (
    TrialRun,
    end_before_logits,
    ensure_batches_fit,
    first_run,
    own_run,
    run_dry,
)
from hessianlens.models.adapters.twice_differentiable import (
    KERNELS,
    LONG,
    attention_notes,
    differentiable_twice,
    is_compiled,
    replacement_of_fused,
)
from hessianlens.models.adapters.unembedding import LOGITS
from hessianlens.models.adapters.weights import check_weights
from hessianlens.models.adapters.wrappers import unwrap_model
from hessianlens.models.discovery import discover
from hessianlens.problems import Batch, ClassesLoss, CutBatches, Problem, ReferenceComputation, move, tensors
from hessianlens.state_guard import restores_state

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@restores_state
def problem(
    model: nn.Module,
    data: Batch | Iterable[Batch],
    loss: LossLike = None,
    *,
    reduction: str = "mean",
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    micro_batch: int | None = None,
    heads: bool = False,
    attention: str = "auto",
    logits: str = "auto",
    check: bool = True,
    verify: bool = True,
    process_group: ProcessGroup | None = None,
) -> Problem:
    """The loss of a model on data, as a function of its named blocks.

    While it runs, the model is in evaluation mode, without dropout and with attention that can be differentiated twice;
    afterwards it is restored. Derivatives are computed in `dtype`, whatever the model's own dtype, even where the model
    casts to a narrower one, as many norms do. Half-precision weights keep their values and are cast to float32.

    Args:
        model: Any `nn.Module`, Hugging Face model or TransformerLens-style model.
        data: A batch (tensor, (inputs, targets), dict) or an iterable of batches.
        loss: "cross_entropy", "square", "bce", "model" (a Hugging Face model's own, from `labels`), one of PyTorch's
            losses such as `nn.CrossEntropyLoss()` or `torch.nn.functional.mse_loss`, called with PyTorch's axes, or a
            function of outputs and batch. Default: the model's own loss if the data has labels, else next-token
            cross-entropy for a causal language model.
        reduction: "mean" over all targets, "sequence" (sum per sequence, mean over sequences) or "sum"; for a function:
            "mean" over batches, weighted by size, or "sum"; PyTorch's losses keep their own reduction.
        dtype: Precision of the derivatives, float32 or float64; default: the widest of the model's, at least float32.
        device: Device for the derivatives; default: the model's device.
        micro_batch: Largest number of sequences differentiated at once; refused if the loss of a batch cannot be
            computed from its pieces.
        heads: Whether each head's part of q, k, v and o is listed as a block; by name, it is always available.
        attention: What replaces PyTorch's fused attention, which has no second derivative: "math", its plain kernel,
            which stores L x L matrices; "chunked", this library's `scaled_dot_product_attention`, which stores none;
            "auto", "chunked" where those matrices would be large.
        logits: Whether the logits of a final linear map before a cross-entropy are materialised: "whole", all of them;
            "chunked", those of some tokens at a time, by this library's `linear_cross_entropy`; "auto", "chunked" where
            they would be large.
        check: Run the unmodified model once on every batch and compare the first computation with it, to catch
            randomness and a loss that differs from the model's; see docs/how-to/models.md.
        verify: At the first measurement, check that autograd sees every second derivative, to catch modules that hide
            part of it: from the operations that autograd records and, in doubtful cases, by finite differences of the
            gradient.
        process_group: A `torch.distributed` group, such as ``torch.distributed.group.WORLD``, each rank of which holds
            part of the data: `data` is this rank's part, of any size, or None. The loss is over the data of all ranks,
            and so are HVPs and everything computed from them. All ranks must make the same calls
            (docs/how-to/distributed.md).

    >>> layer = nn.Sequential(nn.Linear(3, 2))
    >>> p = problem(layer, (torch.zeros(4, 3), torch.tensor([0, 1, 1, 0])), "cross_entropy")
    >>> p.reduction, list(p.blocks)
    ('cross_entropy, mean over 4 targets', ['0.weight', '0.bias'])
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model: got {type(model).__name__}, expected a torch nn.Module.")
    check_flag("heads", heads)
    check_flag("check", check)
    check_choice("attention", attention, KERNELS)
    check_choice("logits", logits, LOGITS)
    ranks = ranks_of(process_group)
    with ranks.raise_together("a problem"):
        asked = _ProblemOptions(reduction, dtype, device, micro_batch, heads, attention, logits, check, verify)
        return _assembled(model, data, loss, asked, ranks)


@restores_state
def draft_problem(
    model: nn.Module,
    data: object,
    loss: LossLike = None,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    heads: bool = False,
) -> Problem:
    """As `problem` makes it, from a dry run: nothing of the size of the data has run or was compared.

    For forecasts only. Where the model cannot be run without contents, logits are taken as materialised.

    >>> draft_problem(nn.Linear(3, 2), (torch.zeros(4, 3), torch.zeros(4, 2)), "square")
    Problem(8 parameters in 2 blocks, batches: 1, float32 on cpu, loss: square, mean over all 8 entries)
    """
    return _assembled(
        model,
        data,
        loss,
        _ProblemOptions("mean", dtype, device, None, heads, "auto", "auto", False, True, True),
        SINGLE_RANK,
    )


@dataclass(frozen=True)
class _ProblemOptions:
    """How a problem is to be made: the arguments of `problem` of the same names, and whether nothing may run."""

    reduction: str
    dtype: torch.dtype | None
    device: torch.device | str | None
    micro_batch: int | None
    heads: bool
    attention: str
    logits: str
    check: bool
    verify: bool
    dry: bool = False


def _assembled(model: nn.Module, data: object, loss: LossLike, asked: _ProblemOptions, ranks: Ranks) -> Problem:
    model, looked_through = unwrap_model(model)
    check_weights(model)
    check_micro_batch(asked.micro_batch)
    uncut, decoder_notes = _batches(model, data, ranks)
    params, target_dtype, target_device = _parameters(model, asked.dtype, asked.device)
    expect_same_weights(params, ranks)
    uncut = [move(batch, target_dtype, target_device) for batch in uncut]
    batches = uncut if asked.micro_batch is None else CutBatches(uncut, asked.micro_batch)
    typical, share_notes = typical_batches(batches, ranks, target_device)
    stated = choose_loss(model, typical[0], uncut, loss, asked.reduction, ranks)
    found = discover(model, heads=asked.heads)
    kernel = "math" if _short(typical) and asked.attention == "auto" else asked.attention
    longest = _longest(typical)
    scope = partial(differentiable_twice, model, kernel, replacement_of_fused(model, kernel, longest))
    with scope():
        with_targets = wants_targets(model, params, typical[0])
    first = (*looked_through, *found.notes, *_compiled_note(model))
    last = (*weights_note(model, target_dtype), *_targets_note(model, with_targets), *decoder_notes, *share_notes)
    made = Problem(
        forward=partial(call, model, with_targets=with_targets),
        loss=stated.function,
        params=params,
        blocks=found.blocks,
        data=batches,
        reduction=stated.reduction,
        notes=(*first, *attention_notes(model, kernel, longest, None), *last),
        scope=scope,
        source=model,
        aliases=found.aliases,
        parts=found.parts,
        verify=asked.verify,
        ranks=ranks,
    )
    alone = _may_wait(made, loss, kernel, asked)
    seen = own_run(model, made, with_targets) if alone else None
    if seen is None:
        alone, seen = False, _first_look(model, replace(made, data=typical), with_targets, asked)
    if seen is not None:
        forward, about_logits = end_before_logits(replace(made, data=typical), seen, asked.logits, with_targets)
        made = replace(
            made,
            forward=forward,
            notes=(
                *first,
                *attention_notes(model, kernel, longest, seen.attention),
                *about_logits,
                *last,
                *precision_note(seen.asked, target_dtype),
            ),
        )
    made = replace(made, written=_written(model, made, with_targets, stated.additive))
    if seen is None or not asked.check:
        return made
    checked = _checked(model, made, loss, seen, with_targets, kernel, asked)
    if not alone:
        return checked
    waiting = ModelComparison(model, checked, loss, with_targets, seen.asked, False, seen.known)
    return replace(checked, model_check=LateComparison(waiting))


def _may_wait(made: Problem, loss: LossLike, kernel: str, asked: _ProblemOptions) -> bool:
    """Whether a problem, as far as its options say, is the model with other kernels at most.

    Its passes are then compared with the model itself when the first one is taken. Everything else is compared now: a
    loss of the model's own, chunks, micro-batches and data that ranks share.
    """
    return (
        asked.check
        and not asked.dry
        and not is_own_loss(loss)
        and kernel == "math"
        and _short(made.data)
        and asked.logits != "chunked"
        and asked.micro_batch is None
        and made.ranks.size == 1
    )


def _first_look(model: nn.Module, made: Problem, with_targets: bool, asked: _ProblemOptions) -> TrialRun | None:
    """A first run, for a draft a dry one; None if nothing asks for it. Data that does not fit is refused before."""
    if asked.dry:
        found = run_dry(model, made, made.data[0], with_targets)
        return None if found is None else found.seen
    if asked.check and not _short(made.data):
        ensure_batches_fit(model, made, with_targets)
    if asked.check or (asked.logits != "whole" and isinstance(made.loss, ClassesLoss)):
        return first_run(model, made, with_targets, asked.check)
    return None


def _checked(
    model: nn.Module,
    made: Problem,
    loss: LossLike,
    seen: TrialRun,
    with_targets: bool,
    kernel: str,
    asked: _ProblemOptions,
) -> Problem:
    """The problem, with every batch's loss compared with that of the model itself and that of the uncut batch."""
    if is_own_loss(loss):
        for number, batch in enumerate(made.data):
            expect_own_loss(model, made, number, batch)
    compared = ModelComparison(model, made, loss, with_targets, seen.asked, kernel != "math", seen.known).checked()
    if compared.forward is not made.forward:
        assert made.written is not None
        compared = replace(compared, written=replace(made.written, instead_of=(compared.forward, compared.loss)))
    return compared if asked.micro_batch is None else cut_problem(compared, asked.micro_batch, "micro_batch")


def _written(model: nn.Module, made: Problem, with_targets: bool, additive: bool) -> ReferenceComputation:
    """The same with materialised logits, plain attention and the loss as a plain function of outputs."""
    return ReferenceComputation(
        forward=partial(call, model, with_targets=with_targets),
        loss=made.loss.share if isinstance(made.loss, ClassLoss) else made.loss,
        scope=partial(differentiable_twice, model, "math"),
        instead_of=(made.forward, made.loss),
        additive=additive,
    )


def _batches(model: nn.Module, data: object, ranks: Ranks) -> tuple[list[Batch], tuple[str, ...]]:
    """The batches with all that goes into the model, and what was made for them."""
    given = own_batches(data, ranks)
    for batch in given:
        check_ids(model, batch)
    if not decodes(model):
        return given, ()
    completed = [with_decoder_inputs(model, batch) for batch in given]
    return completed, (NOTE,) if any(new is not old for new, old in zip(completed, given, strict=True)) else ()


def _parameters(
    model: nn.Module, dtype: torch.dtype | None, device: torch.device | str | None
) -> tuple[dict[str, Tensor], torch.dtype, torch.device]:
    """Parameters and floating buffers, detached, in the precision and place of the derivatives."""
    named = dict(model.named_parameters())
    target_dtype = widest_dtype(model) if dtype is None else check_precision("dtype", dtype)
    target_device = check_device(device) if device is not None else next(iter(named.values())).device
    state = {**named, **dict(model.named_buffers())}
    copied = sum(t.numel() for t in state.values() if t.dtype != target_dtype or t.device != target_device)
    what, instead = "A copy of the parameters", "use the model's own dtype and device, or a smaller model"
    ensure_fits(what, (copied,), target_dtype, target_device, instead)
    moved = {
        name: tensor.detach().to(device=target_device, dtype=target_dtype if tensor.is_floating_point() else None)
        for name, tensor in state.items()
    }
    return moved, target_dtype, target_device


def _compiled_note(model: nn.Module) -> tuple[str, ...]:
    if not is_compiled(model):
        return ()
    return ("what torch.compile makes has no second derivative: the model runs as it is written",)


def _longest(batches: Sequence[Batch]) -> int:
    """The longest axis behind that of the sequences: no less than how many tokens one has, where tokens go in."""
    return max((size for batch in batches for tensor in tensors(batch) for size in tensor.shape[1:]), default=0)


def _short(batches: Sequence[Batch]) -> bool:
    """Whether no sequence holds so many numbers that attention among them could be long."""
    return all(math.prod(tensor.shape[1:]) < LONG for batch in batches for tensor in tensors(batch))


def _targets_note(model: nn.Module, with_targets: bool) -> tuple[str, ...]:
    if not with_targets:
        return ()
    return (f"{type(model).__name__} gives outputs at every position only with targets: it is called with them",)
