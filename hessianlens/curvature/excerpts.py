"""A piece of the data that stands for a problem where its derivatives are checked.

What is checked is the code of a model, and an excerpt of one sequence runs through it as the batch does: enough to
pass the check; a failure is confirmed on a whole sequence. Whether the batch takes steps of kinds that the piece does
not (a branch for other words, a kernel for long sequences) can be seen once its graph or its tape is there; then pieces
are looked for that take them too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hessianlens.curvature.linearisation import Linearisation
from hessianlens.derivatives.difference import STEPS
from hessianlens.derivatives.graph import custom_functions, has_kink, in_half_precision, kinds
from hessianlens.errors import InputError
from hessianlens.memory import available_bytes
from hessianlens.problems import Batch, Problem, batch_size, map_tensors, pieces, tensors

_VECTORS = 10
"""Vectors as long as the asked parameters that are held at once."""
_POSITIONS = 16
"""Positions of an excerpt."""

Piece = tuple[Linearisation, dict[str, Tensor]]
"""A piece of the data, and the gradient there."""


def excerpt(problem: Problem, names: Sequence[str]) -> Piece | None:
    """Some positions of one sequence of the first batch, if the model takes them and every parameter plays a part."""
    first = problem.data[0]
    one = _single(first)
    short = _shortened(first if one is None else one)
    at = None if short is None else _in_precision(replace(problem, data=[short]), names)
    if at is None:
        return None
    gradient = at.vjp_gradient()
    plays = all(bool(part.any()) and bool(part.isfinite().all()) for part in gradient.values())
    return (at, gradient) if plays else None


def representative_sequence(problem: Problem, names: Sequence[str], cut: bool = True) -> Piece | None:
    """One sequence and its gradient; the first batch where model or loss need several sequences, or have no gradient.

    None if there is no precision in which a difference would say something.

    Args:
        problem: What is differentiated.
        names: The parameters.
        cut: Whether one sequence of the batch may do.
    """
    found = None
    for batch in (one for one in (_single(problem.data[0]) if cut else None, problem.data[0]) if one is not None):
        at = _in_precision(replace(problem, data=[batch]), names)
        if at is not None:
            found = at, at.vjp_gradient()
            if any(bool(gradient.any()) for gradient in found[1].values()):
                break
    return found


def _in_precision(problem: Problem, names: Sequence[str]) -> Linearisation | None:
    """In float64; in its own precision where the model has other steps there, or cannot run in float64.

    In float32 differences are so coarse that kinks cannot be distinguished from curvature: smooth networks only, and
    only if a step without a formula of PyTorch's own gives reason to look.
    """
    wide = _running(problem, torch.float64, names) if _fits(problem, names) else None
    if wide is not None and in_half_precision(wide.loss):
        return None
    own = None if problem.dtype == torch.float64 else _running(problem, problem.dtype, names)
    if own is None:
        return wide
    unseen = custom_functions(own.loss) - (set() if wide is None else custom_functions(wide.loss))
    return own if unseen and problem.dtype in STEPS and not has_kink(own.loss) else wide


def verification_bytes(problem: Problem, names: Sequence[str]) -> int:
    """What a check of some parameters holds beside the graph of a sequence: vectors, and parameters in float64.

    >>> weight = torch.zeros(3, dtype=torch.float64)
    >>> verification_bytes(Problem(lambda w, b: w["w"], lambda out, b: out.sum(), {"w": weight}, {}, [0]), ["w"])
    240
    """
    size = sum(tensor.numel() for tensor in problem.params.values() if tensor.dtype != torch.float64)
    return torch.float64.itemsize * (size + _VECTORS * sum(problem.params[name].numel() for name in names))


def _fits(problem: Problem, names: Sequence[str]) -> bool:
    return verification_bytes(problem, names) <= available_bytes(problem.device) / 2


def _running(problem: Problem, dtype: torch.dtype, names: Sequence[str]) -> Linearisation | None:
    """The problem's only batch in some precision; None if the model refuses one of them."""
    try:
        moved = problem.to(dtype)
        at = Linearisation(moved, moved.data[0], names)
        at.loss  # noqa: B018 - built when first asked for
    except Exception:  # whatever a model says of what it cannot take
        return None
    return at


def candidates(first: Batch) -> Iterator[Batch]:
    """From small to large: an excerpt of one sequence of a batch, that sequence, the batch; as far as it can be cut."""
    one = _single(first)
    for found in (_shortened(first if one is None else one), one):
        if found is not None:
            yield found
    yield first


def sequences_with_steps(
    problem: Problem, batch: Batch, names: Sequence[str], missing: Collection[str]
) -> Iterator[Batch]:
    """Sequences of a batch that take steps of some kinds; the batch itself if there are kinds that no single one takes.

    Args:
        problem: What is differentiated.
        batch: One batch of its data.
        names: The parameters.
        missing: The kinds.
    """
    left = set(missing)
    for one in _singles(batch):
        try:
            shown = kinds(Linearisation(problem, one, names).loss) & left
        except Exception:  # whatever a model says of a single sequence
            continue
        if shown:
            yield one
            left -= shown
        if not left:
            return
    yield batch


def _singles(batch: Batch) -> Iterator[Batch]:
    """The sequences of a batch, if there are several and it can be cut."""
    try:
        if batch_size(batch) > 1:
            yield from pieces(batch, 1)
    except InputError:  # a batch without tensors, or with sparse ones, cannot be cut
        return


def _single(batch: Batch) -> Batch | None:
    """One sequence of a batch, if there are more."""
    return next(_singles(batch), None)


def _shortened(one: Batch) -> Batch | None:
    """A few positions of a sequence, those with the most distinct numbers (padding is all the same); None if unclear.

    Every tensor with several axes must have its positions along the second one, and nowhere else.
    """
    several = [tensor for tensor in tensors(one) if tensor.ndim > 1]
    lengths = {tensor.shape[1] for tensor in several}
    if len(lengths) != 1 or any(tensor.layout != torch.strided for tensor in several):
        return None
    (length,) = lengths
    if length < 2 * _POSITIONS or any(t.ndim > 3 or length in (t.shape[0], *t.shape[2:]) for t in several):
        return None
    starts = (0, length - _POSITIONS, (length - _POSITIONS) // 2)
    cut = [[tensor[:, start : start + _POSITIONS] for tensor in several] for start in starts]
    distinct = [sum(_distinct(part) for part in parts) for parts in cut]
    start = starts[max(range(len(starts)), key=distinct.__getitem__)]
    return map_tensors(lambda tensor: tensor[:, start : start + _POSITIONS] if tensor.ndim > 1 else tensor, one)


def _distinct(part: Tensor) -> int:
    """Distinct numbers; none are known on the meta device, where any excerpt has the size of all others."""
    return 0 if part.is_meta else len(torch.unique(part))
