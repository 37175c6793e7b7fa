"""One random module after the other: asked, judged, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.hostile.generator import specimen
from tests.hostile.questions import Examiner, Findings

ROUTES = {
    "last attention layer": "what lies behind",
    "flat key bias": "the same vector added to all keys",
    "readout": "it makes the outputs",
    "linear map, positions together": "positions of a sequence are taken together",
    "linear map, positions alone": "couples no two positions",
}
"""Routes to an exact answer, by what their reasons say."""


def examine(seed: int) -> Findings:
    """What came of a few questions about the module of a seed."""
    return Examiner(specimen(seed)).some(seed)


@dataclass(eq=False)
class Census:
    """How many modules reach each route, and how many are answered wrongly.

    Attributes:
        modules: How many were looked at.
        routes: Modules with an exact answer by a route.
        wrong: Seeds of modules with wrong answers.
    """

    modules: int = 0
    routes: Counter[str] = field(default_factory=Counter)
    wrong: dict[int, Findings] = field(default_factory=dict)

    def take(self, seeds: Iterable[int]) -> None:
        """Look at the modules of some seeds."""
        for seed in seeds:
            found = examine(seed)
            self.modules += 1
            self.routes.update({name for name, told in ROUTES.items() if any(told in why for why in found.why)})
            self.routes["some exact answer"] += bool(found.why)
            if found.wrong:
                self.wrong[seed] = found

    def share(self, route: str) -> float:
        """Of the modules that reach a route."""
        return self.routes[route] / max(1, self.modules)

    def __str__(self) -> str:
        lines = [f"{self.modules} modules, {len(self.wrong)} with wrong answers"]
        lines += [f"  {self.share(route):5.1%}  {route}" for route in ("some exact answer", *ROUTES)]
        return "\n".join(lines)
