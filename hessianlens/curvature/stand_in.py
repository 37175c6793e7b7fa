"""One sequence that stands for a problem where its derivatives are checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hessianlens.curvature.linearisation import Linearisation
from hessianlens.derivatives.difference import STEPS
from hessianlens.derivatives.graph import custom_functions, in_half_precision, kinked
from hessianlens.errors import InputError
from hessianlens.memory import available_bytes
from hessianlens.problems import Batch, Problem, batch_size, pieces

_VECTORS = 10
"""Vectors as long as the asked parameters that are held at once."""


def representative(problem: Problem, names: Sequence[str]) -> tuple[Linearisation, dict[str, Tensor]] | None:
    """One sequence and its gradient; the first batch where model or loss need several sequences, or have no gradient.

    None if there is no precision in which a difference would say something.
    """
    found = None
    for batch in candidates(problem.data[0]):
        at = _in_precision(replace(problem, data=[batch]), names)
        if at is not None:
            found = at, at.pulled_gradient()
            if any(bool(gradient.any()) for gradient in found[1].values()):
                break
    return found


def _in_precision(problem: Problem, names: Sequence[str]) -> Linearisation | None:
    """In float64; in its own precision where the model has other steps there, or cannot run in float64.

    In float32 differences are so coarse that kinks cannot be told from bends: smooth networks only, and only if a step
    without a formula of PyTorch's own gives reason to look.
    """
    wide = _running(problem, torch.float64, names) if _fits(problem, names) else None
    if wide is not None and in_half_precision(wide.loss):
        return None
    own = None if problem.dtype == torch.float64 else _running(problem, problem.dtype, names)
    if own is None:
        return wide
    unseen = custom_functions(own.loss) - (set() if wide is None else custom_functions(wide.loss))
    return own if unseen and problem.dtype in STEPS and not kinked(own.loss) else wide


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
    """One sequence of a batch, if there are more and it can be cut; then the batch itself."""
    try:
        one = [next(iter(pieces(first, 1)))] if batch_size(first) > 1 else []
    except InputError:  # a batch without tensors, or with sparse ones, cannot be cut
        one = []
    yield from one
    yield first
