"""How much work a forward pass is, and from where on a tape, or several vectors at once, save time.

Work is counted from sizes, never measured by a clock, so that the same calls take the same way every time.
"""

from __future__ import annotations

from hessianlens.problems import Batch, Problem, tensors

TAPE_MIN_HVPS_DONE = 2
"""Products through the graph before a tape is made, where it must be put to the test on the whole batch."""
TAPE_MIN_HVPS_EXPECTED = 6
"""Products that are known to follow, from which on a tape pays even if it is put to the test on the whole batch."""
TAPE_MIN_HVPS_BY_EXCERPT = 3
"""Products that are known to follow, from which on a tape pays if an excerpt of the batch is enough for its test."""
EXCERPT_MAX_SHARE = 0.25
"""Share of a batch up to which a test costs little."""
TAPE_MIN_MULTIPLY_ADDS = 3e8
"""Multiply-adds of a forward pass below which the graph, with fewer calls from Python, is as fast."""
TAPE_MIN_MULTIPLY_ADDS_IF_MANY = 2e7
"""The same where many HVPs will follow, over which making the tape is spread."""
TAPE_MANY_HVPS = 40
"""HVPs that are many."""
VECTORS_MULTIPLY_ADDS = 4.5e7
"""Multiply-adds of a forward pass, times vectors, up to which vectors go through a graph at once."""
VECTORS_AT_ONCE = (3, 16)
"""Fewest and most vectors at once."""


def tape_can_pay_off(problem: Problem, batch: Batch, least: float | None = None) -> bool:
    """Whether a tape may be worthwhile, as far as that can be known before anything has run."""
    return largest_size(batch) * matrix_entries(problem) >= (TAPE_MIN_MULTIPLY_ADDS if least is None else least)


def forward_multiply_adds(problem: Problem) -> float:
    """Multiply-adds of a forward pass of all data, roughly: every weight meets every number of the largest tensor.

    >>> import torch
    >>> weight = torch.zeros(3, 2)
    >>> forward_multiply_adds(Problem(lambda w, b: b @ w["w"], lambda out, b: out.sum(), {"w": weight}, {}, [weight.T]))
    36.0
    """
    return float(sum(map(largest_size, problem.data)) * matrix_entries(problem))


def matrix_entries(problem: Problem) -> int:
    """Entries of all weights with more than one axis, each of which meets every position of a pass."""
    return sum(tensor.numel() for tensor in problem.params.values() if tensor.ndim > 1)


def largest_size(batch: Batch) -> int:
    """Numbers in the largest tensor of a batch."""
    return max((tensor.numel() for tensor in tensors(batch)), default=0)
