"""A measurement that is underway: its pieces are done as training pays for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hessianlens.monitor.measurement import Pieces, WorkPiece
from hessianlens.monitor.pace import Pace, PieceTimes
from hessianlens.monitor.plan import MeasurementPlan
from hessianlens.monitor.records import Reading, Record
from hessianlens.sizes import number_of

GRADIENTS_PER_PIECE = {"gradient": 1.2, "attention": 0.7, "first HVP": 4.0, "HVP": 2.2}
"""Gradients of the probe batch that a piece of work takes, where none was done yet; of HVPs per vector."""


def price_of(piece: WorkPiece, prices: PieceTimes[WorkPiece]) -> float:
    """Seconds that a piece of work takes; none where nothing is known.

    >>> prices = PieceTimes[WorkPiece]()
    >>> prices.add(WorkPiece("gradient"), 1.2)
    >>> price_of(WorkPiece("HVP", "model"), prices)
    2.2
    """
    known = prices.of(piece)
    gradient = (prices.of(WorkPiece("gradient")) or 0.0) / GRADIENTS_PER_PIECE["gradient"]
    return gradient * GRADIENTS_PER_PIECE[piece.work] * piece.vectors if known is None else known


@dataclass(eq=False)
class Ongoing:
    """A measurement of the weights at one step.

    Attributes:
        step: The step.
        plan: What is measured.
        given: What the loop passed at this step.
        trained: Seconds of training until then.
        before: HVPs that were made before it.
        pieces: The work.
        notes: What was left out, and why.
        found: The numbers, as soon as they are there.
        cost: Seconds that went into it.
        done: Whether there are no more pieces.
    """

    step: int
    plan: MeasurementPlan
    given: Mapping[str, float]
    trained: float
    before: int
    pieces: Pieces[None]
    notes: list[str]
    found: dict[str, dict[str, Reading]]
    cost: float = 0.0
    done: bool = False
    _piece: WorkPiece | None = None

    @property
    def piece(self) -> WorkPiece | None:
        """What comes next; None at the end."""
        if self._piece is None and not self.done:
            self._go_on()
        return self._piece

    def work(self, pace: Pace, prices: PieceTimes[WorkPiece]) -> None:
        """Do the next piece."""
        piece = self.piece
        try:
            with pace.spending():
                self._go_on()
        finally:
            self.cost += pace.last
        if piece is not None:
            prices.add(piece, pace.last)

    def _go_on(self) -> None:
        try:
            self._piece = next(self.pieces)
        except StopIteration:
            self._piece, self.done = None, True

    @property
    def missing(self) -> list[str]:
        """Quantities of the plan that have not been measured yet; the edge may have no number at any time."""
        there = {quantity for readings in self.found.values() for quantity in readings}
        signs = {"heads": "largest_logit", "entropy": "entropy_share", "edge": "sharpness"}
        return [name for name in self.plan.quantities if signs.get(name, name) not in there]

    def record(self, until: int, products: int) -> Record:
        """What was measured.

        Args:
            until: The step at which it was complete.
            products: HVPs made so far.
        """
        return Record(
            step=self.step,
            numbers=self.found,
            given=self.given,
            trained=self.trained,
            cost=self.cost,
            products=products - self.before,
            notes=tuple(self.notes),
            until=None if until == self.step else until,
        )

    def __repr__(self) -> str:
        comes = "complete" if self.piece is None else f"next: {self.piece.work}"
        return f"measurement of step {self.step}, {number_of(self.plan.hvps, 'HVP', '.0f')} planned, {comes}"
