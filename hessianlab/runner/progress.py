"""How far a run is, and how long the rest will take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hessianlab.runner.plan import Plan, Task, typical_of

Outcome = Literal["stored", "new", "failed"]


@dataclass
class Tally:
    """The cells of one plan.

    Attributes:
        planned: All of them.
        stored: Found in the store, those among them that another run has put there during this one.
        new: Measured in this run.
        failed: Tried in this run without success.
        seconds: Processor time of the new ones.
        forecast: Expected seconds of those still to do whose length is known from earlier runs.
        timed: How many those are.
        typical: Seconds of a cell as it typically takes, until one of this run is measured; None if nobody knows.
    """

    experiment: str
    preset: str
    planned: int
    stored: int = 0
    new: int = 0
    failed: int = 0
    seconds: float = 0.0
    forecast: float = 0.0
    timed: int = 0
    typical: float | None = None

    def count(self, outcome: Outcome, seconds: float, forecast: float | None) -> None:
        """Count one cell.

        Args:
            outcome: What became of it.
            seconds: How long it took, if it is new.
            forecast: How long it was expected to take; None if nobody knew.
        """
        setattr(self, outcome, getattr(self, outcome) + 1)
        self.seconds += seconds
        if forecast is not None:
            self.forecast -= forecast
            self.timed -= 1

    @property
    def to_do(self) -> int:
        """Neither stored nor tried yet."""
        return self.planned - self.stored - self.new - self.failed

    @property
    def work_left(self) -> float | None:
        """Seconds of work still to do: from earlier runs, else as the cells of this run, else as cells typically take.

        None if nobody knows.

        >>> Tally("fig8", "quick", planned=10).work_left is None, Tally("fig8", "quick", 10, typical=0.5).work_left
        (True, 5.0)
        """
        unknown = self.to_do - self.timed
        each = self.seconds / self.new if self.new else self.typical
        if unknown > 0 and each is None:
            return None
        return self.forecast + (unknown * each if unknown > 0 and each is not None else 0.0)


@dataclass
class Progress:
    """The state of a run.

    Attributes:
        tallies: One a plan, in the order of the plans.
        workers: How many cells run at a time.
        elsewhere: How many cells another run on the same store was measuring when this one last looked.
        notes: What the user should know, e.g. about cells of other code.
    """

    tallies: Sequence[Tally]
    workers: int = 1
    elsewhere: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def planned(self) -> int:
        """All cells."""
        return sum(tally.planned for tally in self.tallies)

    @property
    def kept(self) -> int:
        """Cells in the store."""
        return sum(tally.stored + tally.new for tally in self.tallies)

    @property
    def seconds_left(self) -> float | None:
        """Until the end of the run; None while the length of some experiment is not known."""
        left = [tally.work_left for tally in self.tallies]
        known = [seconds for seconds in left if seconds is not None]
        return sum(known) / self.workers if len(known) == len(left) else None


def start_progress(plans: Sequence[Plan], tasks: Iterable[Task]) -> Progress:
    """The state before the first cell."""
    to_do = {task.key: task for task in tasks}
    tallies = []
    for plan in plans:
        keys = plan.key_set
        tally = Tally(plan.experiment.name, plan.preset, len(keys), stored=len(keys - to_do.keys()))
        timed = [to_do[key].seconds for key in keys & to_do.keys()]
        known = [seconds for seconds in timed if seconds is not None]
        tally.forecast, tally.timed = sum(known), len(known)
        whole = typical_of(plan.experiment.name, plan.preset)
        tally.typical = None if whole is None else whole / max(len(keys), 1)
        tallies.append(tally)
    return Progress(tallies)
