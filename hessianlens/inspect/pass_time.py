"""Time of a forward pass over long sequences, extrapolated from short excerpts of one of them.

A pass over L tokens takes about ``a L + b L^2``: linear maps and attention. Excerpts of 64, 128, ... tokens are run
until one takes long enough to be timed; the last two give a and b.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from torch import Tensor

from hessianlens.problems import Batch, Problem, batch_size, mapped, narrowed

FIRST_EXCERPT_TOKENS = 64
TIMED_SECONDS = 0.5
"""Time of a run that is long enough to be extrapolated from."""
_REPEATS = 3
"""Runs of an excerpt, of which the fastest counts: other processes only slow a run down."""
_TOKENS = ("input_ids", "tokens")


def sequence_length(batch: Batch) -> int:
    """Tokens of the sequences of a batch; 0 if it holds no token ids.

    >>> import torch
    >>> sequence_length({"input_ids": torch.zeros(2, 5)}), sequence_length({"pixel_values": torch.zeros(2, 3, 8, 8)})
    (5, 0)
    """
    ids = next((batch[key] for key in _TOKENS if key in batch), None) if isinstance(batch, Mapping) else None
    return ids.shape[1] if isinstance(ids, Tensor) and ids.ndim == 2 else 0


def longest_sequence(batches: Iterable[Batch]) -> int:
    """Tokens of the longest sequence."""
    return max(map(sequence_length, batches), default=0)


def excerpt_of(batch: Batch, tokens: int) -> Batch:
    """The first tokens of the first sequence of a batch.

    >>> import torch
    >>> excerpt_of({"input_ids": torch.zeros(2, 5), "labels": torch.zeros(2)}, 3)
    {'input_ids': tensor([[0., 0., 0.]]), 'labels': tensor([0.])}
    """
    return mapped(lambda tensor: tensor[:, :tokens] if 2 <= tensor.ndim <= 3 else tensor, narrowed(batch, 0, 1))


def pass_seconds(problem: Problem) -> float | None:
    """Time of a forward pass over all of the data of a problem; None if its model does not take excerpts.

    Args:
        problem: A draft, or any other problem, of long sequences.
    """
    longest = max(problem.data, key=sequence_length)
    times: list[tuple[int, float]] = []
    tokens = FIRST_EXCERPT_TOKENS
    try:
        while 2 * tokens <= sequence_length(longest) and (len(times) < 2 or times[-1][1] < TIMED_SECONDS):
            excerpt = excerpt_of(longest, tokens)
            times.append((tokens, min(_seconds(problem, excerpt) for _ in range(_REPEATS))))
            tokens *= 2
    except Exception:  # whatever a model says of a sequence of another length
        return None
    if len(times) < 2:
        return None
    (short, first), (long, second) = times[-2:]
    quadratic = max((second / long - first / short) / (long - short), 0.0)
    linear = second / long - quadratic * long
    lengths = [(batch_size(batch), sequence_length(batch)) for batch in problem.data]
    return sum(count * (linear * length + quadratic * length**2) for count, length in lengths)


def _seconds(problem: Problem, batch: Batch) -> float:
    """Time of the loss of a batch."""
    started = time.perf_counter()
    with problem.scope():
        float(problem.batch_loss(problem.params, batch))
    return time.perf_counter() - started
