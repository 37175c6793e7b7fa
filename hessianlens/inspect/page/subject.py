"""What a page is about: a model, its data, and how the numbers can be had again."""

from __future__ import annotations

from dataclasses import dataclass

from hessianlens.problems import Problem, batch_size


@dataclass(frozen=True)
class Subject:
    """What was measured on what.

    Attributes:
        model: The model, in words.
        data: The data.
        loss: The loss and its value.
        how: Probes, seed and precision.
        notes: What was decided on the way.
        warnings: What limits what the numbers say.
        repeat: A program or a command that gives the same numbers.
        advice: What to do, in words.
    """

    model: str
    data: str
    loss: str
    how: str
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    repeat: str
    advice: str


def subject_of(problem: Problem, how: str, repeat: str, advice: str) -> Subject:
    """The subject of a measurement in Python."""
    parameters = sum(tensor.numel() for tensor in problem.params.values())
    named = type(problem.source).__name__ if problem.source is not None else "a model"
    return Subject(
        model=f"{named}: {parameters:,} parameters in {len(problem.blocks)} blocks",
        data=_described(problem),
        loss=f"{float(problem.total_loss().detach()):.6g} ({problem.reduction or 'as given'})",
        how=how,
        notes=tuple(problem.notes),
        warnings=(),
        repeat=repeat,
        advice=advice,
    )


def _described(problem: Problem) -> str:
    """How much data there is, in all processes."""
    counts = problem.ranks.shared("data", lambda: (sum(map(batch_size, problem.data)), len(problem.data)))
    sequences, batches = (sum(count[k] for count in counts) for k in (0, 1))
    return f"{sequences} sequences in {batches} batches"
