"""The ledger kept in a store: nothing is lost on the way, and a changed test is another measurement."""

from pathlib import Path

from hessianlens.lab.claims.ledger import run as run_ledger
from hessianlens.lab.claims.registry import all_claims, find
from hessianlens.lab.claims.stored import EXPERIMENT, ClaimsConfig, cells, stored_ledger
from hessianlens.lab.experiments.registry import EXPERIMENTS
from hessianlens.lab.runner import Plan, run
from hessianlens.lab.store import code_of, open_store

IDS = ("C1", "C9", "C19", "C23")


def test_a_stored_ledger_is_the_ledger(tmp_path: Path) -> None:
    with open_store(tmp_path / "cells.sqlite") as store:
        (result,) = run([Plan(EXPERIMENT, ClaimsConfig(IDS))], store)
    found = stored_ledger(result)
    direct = run_ledger(find(IDS))
    assert [entry.claim.id for entry in found] == list(IDS)
    for ours, theirs in zip(found, direct, strict=True):
        assert ours.finding == theirs.finding and ours.verdict is theirs.verdict
        assert (ours.finding and ours.finding.curves) == (theirs.finding and theirs.finding.curves)
    assert any(entry.finding and entry.finding.curves for entry in found)


def test_every_claim_with_a_test_is_a_cell() -> None:
    assert [cell["claim"] for cell in cells(ClaimsConfig())] == [c.id for c in all_claims() if c.test is not None]


def test_the_code_of_the_tests_is_part_of_a_cells_identity() -> None:
    assert code_of(EXPERIMENT.measure) != code_of(EXPERIMENTS["fig8"].measure)
