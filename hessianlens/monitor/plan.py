"""What a measurement takes up: everything that was asked for, or what training pays for in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hessianlens.monitor.arguments import Effort

HVPS_PER_SEARCH = 4
"""HVPs of a search for a largest eigenvalue that begins with Ritz vectors of several Lanczos steps, about."""
HVPS_PER_SEARCH_ALONE = 10
"""The same of one that begins with the last eigenvector."""
FEWEST_HVPS_PER_SEARCH = 4
"""What a search is given at least, however long that takes to be paid for."""
SPAN_SHARE = 1 / 3
"""A measurement may take as long as this share of the run so far, or as `every` steps, if those are longer."""


@dataclass(frozen=True)
class MeasurementPlan:
    """What one measurement takes up.

    Attributes:
        quantities: Those that are measured.
        effort: How much goes into them.
        left_out: Those that were asked for and are not measured.
        limited: Whether searches for eigenvalues may end before they have converged.
        hvps: About how many HVPs it takes.
    """

    quantities: tuple[str, ...]
    effort: Effort
    left_out: tuple[str, ...] = ()
    limited: bool = False
    hvps: float = 0.0

    @property
    def spectral(self) -> bool:
        """Whether Lanczos quadrature is asked for; trace and norm take one HVP per probe."""
        return "negative" in self.quantities

    @property
    def sampled(self) -> bool:
        """Whether probe vectors are multiplied."""
        return self.spectral or "trace" in self.quantities or "norm" in self.quantities

    def note(self, overhead: float) -> str:
        """What is missing, and why; empty if nothing is."""
        if not self.left_out and not self.limited:
            return ""
        parts = [f"without {', '.join(self.left_out)}"] if self.left_out else []
        parts += ["searches for eigenvalues after a few HVPs"] if self.limited else []
        return f"to stay within overhead={overhead:g}: {'; '.join(parts)}"


def whole_plan(quantities: Sequence[str], effort: Effort, matrices: int = 1) -> MeasurementPlan:
    """Everything that was asked for.

    Args:
        quantities: Among `hessianlens.monitor.arguments.QUANTITIES`.
        effort: How much goes into them.
        matrices: The model as a whole, and blocks.

    >>> whole_plan(("top", "trace", "negative"), Effort()).hvps, whole_plan(("trace", "weight"), Effort()).hvps
    (28.0, 4.0)
    """
    plan = MeasurementPlan(tuple(quantities), effort)
    each = effort.probes * (effort.steps if plan.spectral else plan.sampled)
    search = HVPS_PER_SEARCH if plan.spectral else HVPS_PER_SEARCH_ALONE
    return replace(plan, hvps=float(matrices * (each + search * _searches(plan))))


def affordable_plan(whole: MeasurementPlan, matrices: int, hvps: float) -> MeasurementPlan:
    """The most of it that so many HVPs are enough for.

    Shares of eigenvalues go first, which take several HVPs per probe, then trace and norm, then the accuracy of largest
    eigenvalues: a search begins at the vector where the last one ended, and gets on from one measurement to the next.

    Args:
        whole: Everything that was asked for.
        matrices: The model as a whole, and blocks.
        hvps: How many may be made.

    >>> whole = whole_plan(("top", "trace", "norm", "negative"), Effort())
    >>> [affordable_plan(whole, 1, hvps).left_out for hvps in (30, 15, 7)]
    [(), ('negative',), ('trace', 'norm', 'negative')]
    >>> affordable_plan(whole, 1, 7).effort.most
    7
    """
    plan = whole
    for drop in ((), ("negative",), ("trace", "norm")):
        if not any(name in plan.quantities for name in drop) and drop:
            continue
        left = tuple(name for name in plan.quantities if name not in drop)
        plan = whole_plan(left, whole.effort, matrices)
        if plan.hvps <= hvps:
            break
    missing = tuple(name for name in whole.quantities if name not in plan.quantities)
    searches = matrices * _searches(plan)
    if not searches or plan.hvps <= hvps:
        return replace(plan, left_out=missing)
    most = max(FEWEST_HVPS_PER_SEARCH, int(hvps // searches))
    limited = replace(plan.effort, most=min(most, plan.effort.most))
    return replace(plan, effort=limited, left_out=missing, limited=True, hvps=float(searches * most))


def _searches(plan: MeasurementPlan) -> int:
    return ("top" in plan.quantities) + ("edge" in plan.quantities)
