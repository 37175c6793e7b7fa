"""The ledger: verdicts, errors, records, selections and counts."""

import dataclasses
import json

import pytest

from hessianlab.claims import ledger
from hessianlab.claims.catalogue import find
from hessianlab.claims.definition import Claim, seeds
from hessianlab.claims.finding import Curves, Finding, Verdict, at_most, true
from hessianlab.claims.ledger import (
    Entry,
    counts,
    distinct,
    most_surprising_first,
    run,
    selected_ids,
    surprise,
    with_verdict,
)
from hessianlab.store.code import LABORATORY
from hessianlens.errors import InputError


def made(id, finding, **words):
    return Claim(id, "made up", "here", "Something.", "somehow", test=lambda: finding, **words)


HOLDS = made("P1", Finding((at_most("gap", 0.0, 1.0),)))
FAILS = made("P25", Finding((at_most("gap", 2.0, 1.0),), example="2 > 1"), correction="It is 2. Not 1.", central=True)
CONDITIONAL = made("A2", Finding((true("all", False),), (true("some", True),), example="one"), condition="few")
BARE = made("B3", Finding((true("all", False),)))
SKIPPED = Claim("C4", "training", "here", "Trained.", unmeasured=Verdict.OPEN, reason="It is. So it goes.")


def broken():
    raise ZeroDivisionError("on purpose")


BROKEN = Claim("C5", "made up", "here", "Something.", "somehow", test=broken)


def test_verdicts_follow_the_checks():
    ledger = run([HOLDS, FAILS, CONDITIONAL, BARE, SKIPPED])
    found = [entry.verdict for entry in ledger]
    assert found == [Verdict.HOLDS, Verdict.FAILS, Verdict.HOLDS_IF, Verdict.FAILS, Verdict.OPEN]
    assert [entry.claim.id for entry in ledger.unsupported] == ["B3"] and not ledger.errors
    assert ledger["A2"].finding == CONDITIONAL.examine() and len(ledger) == 5


def test_a_test_that_raises_becomes_an_error_and_stops_nothing():
    ledger = run([BROKEN, HOLDS])
    (entry,) = ledger.errors
    assert entry.verdict is None and not entry.sound
    assert "ZeroDivisionError: on purpose" in entry.error and "test_ledger.py" in entry.error
    assert ledger["P1"].verdict is Verdict.HOLDS


def test_draws_begin_where_they_are_told_to():
    drawn = []
    one = dataclasses.replace(HOLDS, test=lambda: drawn.append(list(seeds(2))) or HOLDS.test())
    run([one], first_seed=5)
    run([one])
    assert drawn == [[5, 6], [0, 1]]


def test_locations_lead_to_the_claim():
    for id, folder, line_of in (("C10", "topics", '@claim("C10")'), ("C46", "texts", "[C46]")):
        path, line = Entry(*find([id])).location.rsplit(":", 1)
        assert path.startswith(f"hessianlab/claims/{folder}/")
        lines = (LABORATORY.parent / path).read_text(encoding="utf-8").splitlines()
        assert lines[int(line) - 1] == line_of


def test_the_gist_is_the_first_sentence():
    assert [entry.gist for entry in run([FAILS, SKIPPED, HOLDS])] == ["It is 2.", "It is.", ""]
    told = dataclasses.replace(SKIPPED, reason="As in Eq. (5) of Noci et al. Theorem 2 is 0.5 off. It is not.")
    assert Entry(told).gist.endswith("0.5 off.")


def test_unknown_names_are_answered_with_near_ones():
    with pytest.raises(InputError, match=r"got 'C99'.*C9.*C1-C51"):
        find(["C99"])
    with pytest.raises(InputError, match=r"topic: got 'softmax maskin'.*'softmax masking'"):
        selected_ids(topic="softmax_maskin")
    with pytest.raises(InputError, match="document: got 'Z'"):
        selected_ids(document="z")
    with pytest.raises(InputError, match=r"verdict: got 'wrong'.*'fails'"):
        with_verdict((), "wrong")
    with pytest.raises(InputError, match="leave none"):
        selected_ids(["C1"], topic="training")


def test_selection():
    assert selected_ids(["c9", "C8", "c9"]) == ["C9", "C8"]
    assert {id[0] for id in selected_ids(document="C")} == {"C"}
    ledger = run([HOLDS, FAILS, CONDITIONAL])
    assert [entry.claim.id for entry in with_verdict(ledger, "holds_if")] == ["A2"]
    assert len(with_verdict(ledger, None)) == 3


def test_record_keeps_verdicts_and_names_what_changed(tmp_path):
    path = tmp_path / "recorded.json"
    assert ledger.read_verdicts(path) == {}
    ledger.write_verdicts(run([HOLDS, FAILS, SKIPPED]), ["P1", "P25", "C4"], path)
    kept = ledger.read_verdicts(path)
    assert kept["P25"] == {"verdict": "fails", "figures": ["gap: 2 (wanted at most 1: no)"]}
    assert list(kept) == ["P1", "P25", "C4"] and ledger.changed_verdicts(run([HOLDS, FAILS, SKIPPED]), kept) == ()
    turned = made("P25", HOLDS.test())
    (difference,) = ledger.changed_verdicts(run([HOLDS, turned]), kept)
    assert str(difference) == "P25: recorded as 'fails', now 'holds'"
    (new,) = ledger.changed_verdicts(run([CONDITIONAL]), kept)
    assert str(new) == "A2: holds if, not recorded yet"
    (gone,) = ledger.changed_verdicts(run([dataclasses.replace(BROKEN, id="C4")]), kept)
    assert gone.found is None and "now 'an error'" in str(gone)
    ledger.write_verdicts(run([CONDITIONAL]), ["P1", "A2"], path)
    assert list(ledger.read_verdicts(path)) == ["P1", "A2"]


def test_a_broken_record_or_entry_is_refused(tmp_path):
    path = tmp_path / "recorded.json"
    with pytest.raises(InputError, match="C5: got an error"):
        ledger.write_verdicts(run([BROKEN]), ["C5"], path)
    assert not path.exists()
    for content in ("{", "[]"):
        path.write_text(content)
        with pytest.raises(InputError, match="--record"):
            ledger.read_verdicts(path)
    with pytest.raises(InputError, match="cannot be written"):
        ledger.write_verdicts(run([HOLDS]), ["P1"], tmp_path / "nowhere" / "recorded.json")


def test_counts_and_order_of_surprise():
    entries = run([HOLDS, FAILS, CONDITIONAL, BARE, SKIPPED, BROKEN]).entries
    found = counts(entries)
    assert found["P"] == {Verdict.HOLDS: 1, Verdict.FAILS: 1} and found["C"] == {Verdict.OPEN: 1, None: 1}
    assert [entry.claim.id for entry in most_surprising_first(entries)] == ["C5", "P25", "B3", "A2", "P1", "C4"]
    assert surprise(entries[1]) > surprise(entries[3])


def test_a_repeat_counts_only_where_its_fact_is_missing():
    again = dataclasses.replace(CONDITIONAL, repeats="P1")
    assert [entry.claim.id for entry in distinct(run([again, HOLDS, FAILS]))] == ["P1", "P25"]
    (alone,) = distinct(run([again]))
    assert alone.to_dict()["repeats"] == "P1"


def test_json_holds_every_part():
    told = run([FAILS])["P25"].to_dict()
    assert json.loads(json.dumps(told)) == told
    assert told["verdict"] == "fails" and told["confirmed"] is True
    assert told["correction"] == "It is 2. Not 1." and told["gist"] == "It is 2."
    assert told["checks"] == [{"what": "gap", "measured": "2", "wanted": "at most 1", "passed": False}]
    assert "checks" not in run([SKIPPED])["C4"].to_dict()


def test_json_holds_the_curves():
    curves = Curves("x", "y", {"line": ((1.0, 2.0), (3.0, 4.0))}, log_x=True)
    told = json.loads(json.dumps(run([made("P1", dataclasses.replace(HOLDS.test(), curves=curves))])["P1"].to_dict()))
    assert told["curves"] == {
        **{"x_label": "x", "y_label": "y", "log_x": True, "log_y": False},
        "curves": {"line": [[1.0, 2.0], [3.0, 4.0]]},
    }
