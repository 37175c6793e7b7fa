"""The ledger as an experiment: one cell a claim, so that a store keeps what was found and a run can be continued."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hessianlens.errors import InputError
from hessianlens.lab.claims.check import Check
from hessianlens.lab.claims.entry import Entry
from hessianlens.lab.claims.finding import Curves, Finding
from hessianlens.lab.claims.ledger import Ledger, examine
from hessianlens.lab.claims.registry import all_claims, find
from hessianlens.lab.experiments.experiment import Experiment
from hessianlens.lab.results import Measurement, Parameters, Result

_PARTS = ("checks", "conditional", "support")


@dataclass(frozen=True)
class ClaimsConfig:
    """Which claims to test; none named means all."""

    ids: tuple[str, ...] = ()


def cells(config: ClaimsConfig) -> list[Parameters]:
    """One cell for each claim that has a test."""
    chosen = find(config.ids) if config.ids else all_claims()
    return [{"claim": claim.id} for claim in chosen if claim.test is not None]


def measure(parameters: Parameters) -> Measurement:
    """Test one claim; a test that raises is a failed cell."""
    (claim,) = find([str(parameters["claim"])])
    entry = examine(claim)
    if entry.finding is None:
        raise InputError(f"claim {claim.id}: {entry.error}")
    return Measurement(({"verdict": str(entry.verdict), "finding": json.dumps(dataclasses.asdict(entry.finding))},))


EXPERIMENT = Experiment(
    name="claims",
    title="The claims ledger",
    source="All four documents",
    question="Which statements of the documents are true as written?",
    presets={"quick": ClaimsConfig(), "paper": ClaimsConfig()},
    cells=cells,
    measure=measure,
)


def stored_ledger(result: Result) -> Ledger:
    """The ledger a result holds, together with the claims that have no test."""
    found = {str(cell.parameters["claim"]): cell for cell in result.cells}
    chosen = find(result.config["ids"]) if result.config["ids"] else all_claims()
    entries = []
    for claim in chosen:
        if claim.test is None:
            entries.append(Entry(claim))
        elif claim.id in found:
            cell = found[claim.id]
            finding = _finding(json.loads(str(cell.measurement.rows[0]["finding"])))
            entries.append(Entry(claim, finding, seconds=cell.seconds))
    return Ledger(tuple(entries))


def _finding(told: Mapping[str, Any]) -> Finding:
    checks = {name: tuple(Check(**check) for check in told[name]) for name in _PARTS}
    curves = _curves(told["curves"]) if told["curves"] else None
    return Finding(**{**told, **checks, "curves": curves})


def _curves(told: Mapping[str, Any]) -> Curves:
    curves = {name: (tuple(x), tuple(y)) for name, (x, y) in told["curves"].items()}
    return Curves(**{**told, "curves": curves})
