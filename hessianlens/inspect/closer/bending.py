"""Ends and densities of the spectra of blocks, as many as a time allows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from hessianlens.errors import InputError
from hessianlens.network.base.progress import Deadline, Watch
from hessianlens.network.operators import hessian
from hessianlens.problems import Problem
from hessianlens.spectra import SpectralDensity, density, eigenvalues

_TOLERANCE = 1e-3
"""Relative accuracy of the eigenvalues at the ends."""
_EFFORTS = ((8, 48), (4, 32), (3, 20), (2, 12))
"""Probes and steps of a density, the best first."""


class TimeUp(Exception):
    """There is no time left."""


@dataclass(frozen=True)
class Ends:
    """The smallest and the largest eigenvalue of a block; `converged` if both are known to a thousandth."""

    smallest: float
    largest: float
    converged: bool


@dataclass
class Bending:
    """What is known of the spectra of some blocks.

    Attributes:
        problem: The problem.
        deadline: When to stop.
        seed: Of start vectors and probes.
        watch: Is told what comes next.
        ends: By block.
        densities: By block.
        refused: By block, why nothing is known of it.
        pace: Seconds that a product with a block takes.
    """

    problem: Problem
    deadline: Deadline
    seed: int = 0
    watch: Watch = field(default_factory=Watch)
    ends: dict[str, Ends] = field(default_factory=dict)
    densities: dict[str, SpectralDensity] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    pace: dict[str, float] = field(default_factory=dict)

    def find_ends(self, names: Sequence[str], until: float = 0.0) -> None:
        """The ends of the spectra of these blocks, one after the other, until so many seconds are left."""
        for name in names:
            if name in self.ends or self.deadline.left <= until:
                continue
            self.watch.step(f"eigenvalues of {name}")
            try:
                self._find(name, until)
            except TimeUp:
                self.refused[name] = "its eigenvalues were not found in time"
            except InputError as error:
                self.refused[name] = str(error)

    def _find(self, name: str, until: float) -> None:
        op, start, count = hessian(self.problem, name), time.monotonic(), op_size(self.problem, name)

        def on_time(made: int, _: int) -> None:
            if self.deadline.left <= until:
                raise TimeUp

        which = "both" if count > 1 else "largest"
        found = eigenvalues(op, 1, which, tol=_TOLERANCE, seed=self.seed, check_symmetry=False, progress=on_time)
        took = self.problem.ranks.agreed(time.monotonic() - start)
        self.pace[name] = took / max(found.products, 1)
        if len(found.values):
            self.ends[name] = Ends(float(found.values.min()), float(found.values.max()), found.converged)

    def find_densities(self, names: Sequence[str], share: float = 0.5) -> None:
        """Densities of these blocks, with one effort for all, so that they can be compared, in a share of the time."""
        known = [name for name in names if name in self.ends]
        if not known:
            return
        cost = sum(self.pace[name] for name in known)
        fitting = [effort for effort in _EFFORTS if effort[0] * effort[1] * cost <= share * self.deadline.left]
        if not fitting:
            self.refused.update({name: "there was no time for its density" for name in known})
            return
        probes, steps = fitting[0]
        for name in known:
            self.watch.step(f"density of {name}")
            op = hessian(self.problem, name)
            try:
                found = density(op, probes, steps, self.seed, check_symmetry=False, chunk=1, progress=self._on_time)
            except TimeUp:
                self.refused[name] = "its density was not found in time"
                continue
            self.densities[name] = found

    def _on_time(self, made: int, _: int) -> None:
        if self.deadline.left <= 0:
            raise TimeUp


def op_size(problem: Problem, name: str) -> int:
    """Rows of the Hessian of a block."""
    return problem.blocks[name].numel
