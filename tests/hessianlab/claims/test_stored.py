"""The ledger kept in a store: nothing is lost on the way, and a changed test is another measurement."""

import dataclasses
import json
from pathlib import Path

import pytest

from hessianlab.claims import stored
from hessianlab.claims.catalogue import all_claims, find
from hessianlab.claims.finding import Finding, Verdict, true
from hessianlab.claims.ledger import run as run_ledger
from hessianlab.claims.stored import EXPERIMENT, ClaimsConfig, cells, ledger_of, stored_ledger
from hessianlab.experiments.registry import EXPERIMENTS
from hessianlab.results import FinishedCell, Measurement, Result, collect
from hessianlab.runner import Plan, run
from hessianlab.store import code_of, open_store
from hessianlab.store.code import _own_files
from hessianlens.errors import InputError

IDS = ("C1", "C9", "C46", "C23")


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


def test_a_changed_topic_is_another_measurement_of_its_claims_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Plan(EXPERIMENT, ClaimsConfig(IDS))
    assert len(before.keys) == 3  # one of them has no test
    assert not [path for path in _own_files(Path(stored.__file__)) if "topics" in path.parts]
    digest = stored.topic_digest
    monkeypatch.setattr(
        stored, "topic_digest", lambda topic: "changed" if topic == "softmax division" else digest(topic)
    )
    after = Plan(EXPERIMENT, ClaimsConfig(IDS))
    differ = [cell["claim"] for cell, a, b in zip(after.cells, before.keys, after.keys, strict=True) if a != b]
    assert differ == ["C9"]
    with pytest.raises(InputError, match="another test of it than the run began with"):
        EXPERIMENT.measure(before.cells[1])


def test_another_wording_measures_nothing_anew(tmp_path: Path) -> None:
    with open_store(tmp_path / "cells.sqlite") as store:
        (result,) = run([Plan(EXPERIMENT, ClaimsConfig(("C10",)))], store)
    (claim,) = find(["C10"])
    (cell,) = result.cells
    said = dataclasses.replace(claim, correction="Only {soft:.1f}, against {plain:.1f}.")
    assert ledger_of([said], [cell])["C10"].correction == "Only 0.3, against 0.5."
    broken = ledger_of([dataclasses.replace(claim, correction="{gone}")], [cell])["C10"]
    assert broken.verdict is None and "its text has changed" in broken.error


def test_an_old_run_shows_what_is_still_known() -> None:
    known, gone = ({"claim": id, "seed": 0, "test": "x"} for id in ("C9", "C999"))
    row = {"verdict": "holds", "finding": json.dumps(dataclasses.asdict(Finding((true("it", True),))))}
    cells_ = tuple(FinishedCell(cell, Measurement((row,)), 0.1) for cell in (known, gone))
    ledger = stored_ledger(Result("claims", "custom", {"ids": ["C9", "C999"]}, cells_, collect()))
    assert [entry.claim.id for entry in ledger] == ["C9"] and ledger["C9"].verdict is Verdict.HOLDS
