"""Batches cut into micro-batches, where that leaves the loss as it is; the one rule for every cut.

A cut is right if the outputs of a sequence do not depend on the others in its batch, and the loss is a sum over
sequences: of named losses and of PyTorch's it is known, of a user's function it is compared, with its derivatives by
the outputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hessianlens.errors import InputError
from hessianlens.memory import SAFE_SHARE, LiveBytes, available_bytes, lacks_memory
from hessianlens.models.adapters.comparison import same_value
from hessianlens.problems import Batch, CutBatches, LogitsForward, Problem, batch_size, pieces, uncut_batches
from hessianlens.sizes import number_of, readable

_REMEDY = "give a loss that is a mean over sequences, or a sum with reduction='sum', or batches of that size"


def cut_problem(problem: Problem, width: int, argument: str) -> Problem:
    """The same problem in batches of at most `width` sequences; `InputError` where that would change the loss.

    Every batch that is cut is run once whole and once in pieces, without derivatives. A batch that is too large for
    that is cut only if the loss is known to be a sum over sequences, and a note says that it was not compared.

    Args:
        problem: The problem.
        width: The largest number of sequences of a piece.
        argument: What the user gave, for messages.
    """
    data = CutBatches(problem.data, width)
    notes: dict[str, None] = {}
    for number, batch in enumerate(uncut_batches(data)):
        parts = list(pieces(batch, data.size))
        if len(parts) > 1:
            notes |= dict.fromkeys(_compared(problem, number, batch, parts, argument))
    return replace(problem, data=data, notes=(*problem.notes, *(note for note in notes if note not in problem.notes)))


def _compared(problem: Problem, number: int, batch: Batch, parts: Sequence[Batch], argument: str) -> list[str]:
    """Notes on the cut of a batch; `InputError` where it changes the loss."""
    size = number_of(batch_size(batch), "sequence")
    what = f"{argument}: batch {number}, of {size}, cannot be cut into pieces of {_largest(parts)}"
    try:
        with problem.scope(), torch.no_grad():
            with LiveBytes(problem.params.values()) as live:
                first = _run(problem, parts[0])
            cut = [first, *(_run(problem, part) for part in parts[1:])]
    except InputError as error:
        raise InputError(f"{what}: {error}") from error
    needed = math.ceil(live.peak * batch_size(batch) / _largest(parts))
    whole = _whole(problem, batch, needed)
    if whole is None:
        return [_uncompared(problem, what, needed)]
    reason = _difference(problem, batch, whole, parts, cut)
    if reason:
        total = sum(value for _, value in cut)
        raise InputError(f"{what}: its loss is {whole[1]:.6g} and that of its pieces {total:.6g}; {reason}; {_REMEDY}.")
    return []


def _largest(parts: Sequence[Batch]) -> int:
    """Sequences of the first, and largest, piece."""
    return batch_size(parts[0])


def _run(problem: Problem, batch: Batch) -> tuple[Tensor | None, float]:
    """Outputs, if they are materialised, and the loss."""
    if isinstance(problem.forward, LogitsForward):
        return None, float(problem.batch_loss(problem.params, batch))
    outputs = problem.forward(problem.params, batch)
    return outputs, float(problem.loss(outputs, batch))


def _whole(problem: Problem, batch: Batch, needed: int) -> tuple[Tensor | None, float] | None:
    """Outputs and loss of an uncut batch; None if there is no memory for them."""
    if needed > SAFE_SHARE * available_bytes(problem.device):
        return None
    try:
        with problem.scope(), torch.no_grad():
            return _run(problem, batch)
    except Exception as error:
        if lacks_memory(error):
            return None
        raise


def _uncompared(problem: Problem, what: str, needed: int) -> str:
    if _is_additive(problem):
        return "the uncut batches are too large to be run: the loss of their pieces is a sum over sequences by its name"
    raise InputError(
        f"{what}: whether its loss stays the same cannot be found, since the uncut batch takes about "
        f"{readable(needed)} even without derivatives; give smaller batches, or a loss by name or of PyTorch."
    )


def _is_additive(problem: Problem) -> bool:
    """Whether the loss is known to be a sum over sequences."""
    written = problem.written
    return written is not None and written.additive and written.instead_of[1] is problem.loss


def _difference(
    problem: Problem,
    batch: Batch,
    whole: tuple[Tensor | None, float],
    parts: Sequence[Batch],
    cut: Sequence[tuple[Tensor | None, float]],
) -> str:
    """How the pieces differ from the whole; empty if they do not."""
    outputs, value = whole
    eps = torch.finfo(problem.dtype).eps
    found = [each for each, _ in cut if each is not None]
    aligned = outputs is not None and outputs.ndim > 0 and len(found) == len(parts)
    if outputs is not None and aligned and all(each.ndim > 0 for each in found):
        joined = torch.cat(found) if all(each.shape[1:] == outputs.shape[1:] for each in found) else None
        if joined is not None and joined.shape == outputs.shape:
            if not _close(joined, outputs, eps):
                return "outputs depend on other sequences of the batch, or a tensor without a batch axis was cut"
            compared = [] if _is_additive(problem) else _derivatives(problem, batch, outputs, parts)
            if not all(_close(one, other, eps) for one, other in compared):
                return "the loss is not a sum over sequences: its derivatives with respect to the outputs differ"

    def loss(at: Tensor) -> Tensor:
        return problem.loss(at, batch)

    with problem.scope(), torch.no_grad():
        same = same_value(value, sum(each for _, each in cut), eps, loss, outputs)
    return "" if same else "the loss is not a sum over sequences"


def _close(one: Tensor, other: Tensor, eps: float) -> bool:
    """Whether the numbers of two tensors agree up to half of their digits."""
    gap, scale = (one - other).abs(), torch.maximum(one.abs(), other.abs())
    finite = torch.isfinite(gap)
    same = bool(torch.equal(torch.isfinite(one), torch.isfinite(other)))
    return same and (not bool(finite.any()) or bool(gap[finite].max() <= math.sqrt(eps) * scale[finite].max()))


def _derivatives(
    problem: Problem, batch: Batch, outputs: Tensor, parts: Sequence[Batch]
) -> list[tuple[Tensor, Tensor]]:
    """Derivatives of the loss by the outputs, of the whole batch and of its pieces; the model is not run.

    The gradient, and one Hessian-vector product: where all sequences are alike a gradient shows no coupling.
    """
    generator = torch.Generator(outputs.device).manual_seed(0)
    along = torch.randn(outputs.shape, generator=generator, dtype=outputs.dtype, device=outputs.device)
    sizes = [batch_size(part) for part in parts]
    with problem.scope(), torch.enable_grad():
        whole = _two_derivatives(problem, batch, outputs, along)
        cut = [
            _two_derivatives(problem, part, at, v)
            for part, at, v in zip(parts, outputs.split(sizes), along.split(sizes), strict=True)
        ]
    joined = [torch.cat(pieces_of_one) for pieces_of_one in zip(*cut, strict=False)]
    return list(zip(whole, joined, strict=False))


def _two_derivatives(problem: Problem, batch: Batch, outputs: Tensor, along: Tensor) -> list[Tensor]:
    """Gradient and Hessian-vector product of the loss by the outputs; the gradient alone if there is no other."""
    leaf = outputs.detach().requires_grad_()
    value = problem.loss(leaf, batch)
    zero = torch.zeros_like(leaf)
    if not value.requires_grad:
        return [zero, zero]
    (first,) = torch.autograd.grad(value, leaf, create_graph=True, allow_unused=True)
    if first is None or not first.requires_grad:
        return [zero if first is None else first, zero]
    try:
        (second,) = torch.autograd.grad((first * along).sum(), leaf, allow_unused=True)
    except RuntimeError:  # no second derivative, which the first measurement will say
        return [first.detach()]
    return [first.detach(), zero if second is None else second]
