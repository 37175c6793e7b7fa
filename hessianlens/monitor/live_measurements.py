"""Measurements of a model in training: what each takes up, what it costs, and how it begins."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hessianlens.monitor.edge_of_stability import Edge, stability_edges
from hessianlens.monitor.inputs import check_given
from hessianlens.monitor.live_problem import LiveProblem
from hessianlens.monitor.measurement import Measurer, Pieces, WorkPiece, measurement_pieces, rehearse
from hessianlens.monitor.ongoing import GRADIENTS_PER_PIECE, Ongoing, price_of
from hessianlens.monitor.pace import Pace, PieceTimes
from hessianlens.monitor.plan import SPAN_SHARE, MeasurementPlan, affordable_plan, whole_plan
from hessianlens.monitor.records import MODEL, Reading
from hessianlens.problems import Block
from hessianlens.state_guard import restores_state, without_side_effects
from hessianlens.updates.optimizers import check_optimizer


class LiveMeasurements:
    """Measurements of a model in training, of as much as training pays for.

    Args:
        live: The model, on the probe batch.
        measurer: What is measured, and with how much effort.
        pace: What training has paid for.
        blocks: Blocks that are measured individually.
        whole: Whether the model as a whole is measured, too.

    Attributes:
        prices: Seconds that pieces of the work have taken.
    """

    def __init__(self, live: LiveProblem, measurer: Measurer, pace: Pace, blocks: list[Block], whole: bool) -> None:
        self.live, self.measurer, self.pace = live, measurer, pace
        self.blocks, self.whole = blocks, whole
        self.prices = PieceTimes[WorkPiece]()

    def set_up(self) -> None:
        """Do all one-time work, and time the pieces of a measurement."""
        self.prices = PieceTimes[WorkPiece]()
        watched = [*self._trained, *self.blocks]
        with without_side_effects():
            for piece, seconds in rehearse(self.measurer, self.live.now(), watched, self.pace.clock):
                self.prices.add(piece, seconds)
        self.live.verified()

    @property
    def _trained(self) -> list[Block]:
        """What the model as a whole consists of; nothing if it is not measured."""
        return self.live.trained() if self.whole else []

    def affords(self, piece: WorkPiece | None) -> bool:
        """Whether a piece of a measurement is paid for; there may be none left."""
        return piece is not None and self.pace.affords(price_of(piece, self.prices))

    @property
    def whole_plan(self) -> MeasurementPlan:
        """Everything that was asked for."""
        return whole_plan(self.measurer.quantities, self.measurer.effort, self._matrices)

    @property
    def affordable_plan(self) -> MeasurementPlan:
        """As much as training pays for within `every` steps, or within a third of the run so far."""
        seconds = self.pace.earns_in(max(self.pace.every, SPAN_SHARE * self.pace.steps))
        gradient = price_of(WorkPiece("gradient"), self.prices) / GRADIENTS_PER_PIECE["gradient"]
        seconds -= gradient * sum(GRADIENTS_PER_PIECE[work] for work in ("gradient", "attention", "first HVP"))
        name = MODEL if self.whole else self.blocks[0].name
        each = price_of(WorkPiece("HVP", name), self.prices)
        return affordable_plan(self.whole_plan, self._matrices, max(seconds, 0.0) / each if each else math.inf)

    @property
    def _matrices(self) -> int:
        return self.whole + len(self.blocks)

    @restores_state
    def begin(
        self, step: int, plan: MeasurementPlan, optimizer: Any, given: Mapping[str, float], trained_before: float
    ) -> Ongoing:
        """A measurement of the weights as they are now; with a limit on its time it may take several steps.

        Args:
            step: The step.
            plan: What it takes up.
            optimizer: The optimiser; None if there is none.
            given: Other numbers to record.
            trained_before: Seconds of training before this process went on with the run.
        """
        self.pace.begin(step)
        inner = None if optimizer is None else check_optimizer(optimizer)
        values = {name: check_given(name, value) for name, value in given.items()}
        if inner is not None and "lr" not in values:
            values = {"lr": max(float(group["lr"]) for group in inner.param_groups), **values}
        trained, notes = trained_before + self.pace.trained, list[str]()
        if self.pace.overhead is not None and (said := plan.note(self.pace.overhead)):
            notes.append(said)
        with self.pace.spending(), without_side_effects():
            found: dict[str, dict[str, Reading]] = {}
            pieces = self._pieces(optimizer, notes, plan, found)
        ongoing = Ongoing(step, plan, values, trained, self.measurer.products, pieces, notes, found)
        ongoing.cost = self.pace.last
        return ongoing

    def _pieces(
        self, optimizer: Any, notes: list[str], plan: MeasurementPlan, found: dict[str, dict[str, Reading]]
    ) -> Pieces[None]:
        problem = self.live.now(copied=self.pace.overhead is not None)
        trained = self._trained
        edges = self._edges(optimizer, trained, notes) if "edge" in plan.quantities else {}
        return measurement_pieces(self.measurer, problem, trained, self.blocks, edges, notes, plan, found)

    def _edges(self, optimizer: Any, trained: Sequence[Block], notes: list[str]) -> dict[str, Edge]:
        """By what is watched, how the optimiser sees it."""
        if "edge" not in self.measurer.quantities or optimizer is None:
            return {}
        asked = {MODEL: trained} if trained else {}
        return stability_edges(optimizer, self.live.model, {**asked, **{b.name: [b] for b in self.blocks}}, notes)
