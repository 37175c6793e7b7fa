"""The ledger as an experiment: one cell per claim, so that runner and store do with it what they do with a figure."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hessianlab.claims.catalogue import all_claims, claim_topics, find
from hessianlab.claims.definition import Claim, claim_files
from hessianlab.claims.finding import Check, Curves, Finding
from hessianlab.claims.ledger import Entry, Ledger
from hessianlab.experiments.experiment import Experiment
from hessianlab.results import FinishedCell, Measurement, Parameters, Result
from hessianlens.errors import InputError, expect

_PARTS = ("checks", "conditional", "support")
_WORDS = ("condition", "correction")
"""Come from the claim's text, today's."""


@dataclass(frozen=True)
class ClaimsConfig:
    """Which claims to test, and where their draws begin.

    Attributes:
        ids: None named means all.
        seed: The first seed; recorded verdicts are those of 0.
    """

    ids: tuple[str, ...] = ()
    seed: int = 0


def cells(config: ClaimsConfig) -> list[Parameters]:
    """One cell for each claim that has a test."""
    return [
        {"claim": claim.id, "seed": config.seed, "test": topic_digest(claim.topic)}
        for claim in _chosen(config.ids)
        if claim.test is not None
    ]


@functools.cache
def topic_digest(topic: str) -> str:
    """Of the module that tests a topic's claims and what is recorded beside it: they decide what these claims find.

    The store's digest covers what all topics share. Texts are in neither: another wording measures nothing anew.
    """
    tested = {claim_files()[id] for id, of in claim_topics().items() if of == topic and id in claim_files()}
    # a module may read what was recorded beside it
    files = [path for file in sorted(tested) for path in (file, file.with_suffix(".json")) if path.exists()]
    if not files:
        return "none"
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def measure(parameters: Parameters) -> Measurement:
    """Test one claim; a test that raises is a failed cell."""
    (claim,) = find([str(parameters["claim"])])
    expect(
        parameters["test"] == topic_digest(claim.topic),
        f"claim {claim.id}: a worker has another test of it than the run began with; install the same version "
        "everywhere and run again.",
    )
    finding = claim.examine(int(str(parameters["seed"])))
    kept = {
        name: value for name, value in dataclasses.asdict(finding).items() if name not in ("condition", "correction")
    }
    return Measurement(({"verdict": str(finding.verdict), "finding": json.dumps(kept)},))


EXPERIMENT = Experiment(
    name="claims",
    title="The claims ledger",
    source="All four documents",
    question="Which statements of the documents are true as written?",
    presets={"quick": ClaimsConfig(), "paper": ClaimsConfig()},
    cells=cells,
    measure=measure,
)


def is_whole(config: Mapping[str, Any]) -> bool:
    """Whether a kept run was one of the whole ledger, on the draws of the recorded verdicts."""
    return not config.get("ids") and not config.get("seed")


def stored_ledger(result: Result) -> Ledger:
    """The ledger a result holds, together with the claims that have no test."""
    known = claim_topics()
    chosen = _chosen([id for id in result.config["ids"] if id in known])
    found = {str(cell.parameters["claim"]) for cell in result.cells}
    return ledger_of([claim for claim in chosen if claim.test is None or claim.id in found], result.cells)


def ledger_of(
    claims: Iterable[Claim], cells: Iterable[FinishedCell], errors: Mapping[str, str] | None = None
) -> Ledger:
    """The ledger of these claims from finished cells, and from the messages of those that failed, by id."""
    found = {str(cell.parameters["claim"]): cell for cell in cells}
    return Ledger(tuple(_entry(claim, found.get(claim.id), (errors or {}).get(claim.id, "")) for claim in claims))


def _chosen(ids: Sequence[str]) -> tuple[Claim, ...]:
    return find(ids) if ids else all_claims()


def _entry(claim: Claim, cell: FinishedCell | None, error: str) -> Entry:
    if cell is None:
        return Entry(claim, error=error)
    try:
        finding = claim.worded(_finding(json.loads(str(cell.measurement.rows[0]["finding"]))))
    except (InputError, TypeError, KeyError) as other:
        return Entry(claim, error=f"kept by other code, and its text has changed since ({other})", seconds=cell.seconds)
    return Entry(claim, finding, seconds=cell.seconds)


def _finding(kept: Mapping[str, Any]) -> Finding:
    checks = {name: tuple(Check(**check) for check in kept[name]) for name in _PARTS}
    curves = _curves(kept["curves"]) if kept["curves"] else None
    return Finding(**{**kept, **checks, "curves": curves})


def _curves(kept: Mapping[str, Any]) -> Curves:
    curves = {name: (tuple(x), tuple(y)) for name, (x, y) in kept["curves"].items()}
    return Curves(**{**kept, "curves": curves})
