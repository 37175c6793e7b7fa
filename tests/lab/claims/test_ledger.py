"""The ledger: registry, parallel runs, errors, records, selections and counts."""

import dataclasses
import json
import types

import pytest

from hessianlens.errors import InputError
from hessianlens.lab.claims import record
from hessianlens.lab.claims.check import at_most, true
from hessianlens.lab.claims.definition import Claim, claim, unmeasured
from hessianlens.lab.claims.entry import Entry
from hessianlens.lab.claims.finding import Finding, Verdict
from hessianlens.lab.claims.index import order
from hessianlens.lab.claims.ledger import run
from hessianlens.lab.claims.registry import TOPICS, all_claims, find
from hessianlens.lab.claims.selection import select, with_verdict
from hessianlens.lab.claims.summary import CENTRAL, counts, most_surprising_first, surprise


def made(id, finding):
    return Claim(id, "here", "Something.", "somehow", "made up", lambda: finding)


HOLDS = made("P1", Finding((at_most("gap", 0.0, 1.0),)))
FAILS = made("P25", Finding((at_most("gap", 2.0, 1.0),), correction="It is 2.", example="2 > 1"))
CONDITIONAL = made(
    "A2", Finding((true("all", False),), conditional=(true("some", True),), condition="few", example="one")
)
BARE = made("B3", Finding((true("all", False),)))
SKIPPED = unmeasured("C4", "here", "Trained.", Verdict.NEEDS_TRAINING, "no", topic="training")


def broken():
    raise ZeroDivisionError("on purpose")


BROKEN = Claim("C5", "here", "Something.", "somehow", "made up", broken)


def test_verdicts_follow_the_checks():
    ledger = run([HOLDS, FAILS, CONDITIONAL, BARE, SKIPPED])
    found = [entry.verdict for entry in ledger]
    assert found == [Verdict.HOLDS, Verdict.FAILS, Verdict.HOLDS_IF, Verdict.FAILS, Verdict.NEEDS_TRAINING]
    assert [entry.claim.id for entry in ledger.unsupported] == ["B3"] and not ledger.errors
    assert ledger["A2"].finding is CONDITIONAL.test() and len(ledger) == 5


def test_a_test_that_raises_becomes_an_error_and_stops_nothing():
    ledger = run([BROKEN, HOLDS])
    (entry,) = ledger.errors
    assert entry.verdict is None and not entry.sound
    assert "ZeroDivisionError: on purpose" in entry.error and "test_ledger.py" in entry.error
    assert ledger["P1"].verdict is Verdict.HOLDS


def test_processes_find_what_one_process_finds():
    chosen = [*find(["C14", "C8", "C10", "C13"]), BROKEN]
    seen = []
    parallel = run(chosen, jobs=2, on_entry=lambda entry: seen.append(entry.claim.id))
    assert sorted(seen) == sorted(c.id for c in chosen)
    for one, other in zip(run(chosen), parallel, strict=True):
        assert one.claim.id == other.claim.id and one.finding == other.finding and bool(one.error) == bool(other.error)


def test_jobs_are_checked():
    with pytest.raises(InputError, match="jobs: got 0"):
        run([HOLDS], jobs=0)


def test_locations_lead_to_the_claim():
    (measured,), (trained,) = find(["C10"]), find(["C13"])
    for found in (measured, trained):
        path, line = Entry(found).location.rsplit(":", 1)
        assert path.startswith("hessianlens/lab/claims/topics/")
        topic = next(topic for topic in TOPICS if topic.__file__.endswith(path))
        with open(topic.__file__, encoding="utf-8") as file:
            assert f'"{found.id}"' in "".join(file.readlines()[int(line) - 1 : int(line) + 1])


def test_every_claim_of_a_document_is_there_once_and_in_order():
    ids = [found.id for found in all_claims()]
    assert ids == sorted(set(ids), key=order)
    assert [id for id in ids if id[0] == "C"] == [f"C{n}" for n in range(1, 48)]
    twice = types.SimpleNamespace(CLAIMS=(HOLDS, HOLDS))
    with pytest.raises(InputError, match="claim P1"):
        all_claims([twice])


def test_topics_are_the_names_of_their_files():
    for topic in TOPICS:
        for found in topic.CLAIMS:
            assert found.topic == topic.__name__.rsplit(".", 1)[-1].replace("_", " "), found.id


def test_every_claim_says_where_what_and_how():
    for found in all_claims():
        assert found.source and found.statement.endswith("."), found.id
        assert bool(found.test) == bool(found.method) == (not found.reason) == (found.unmeasured is None), found.id


def test_unknown_names_are_answered_with_near_ones():
    with pytest.raises(InputError, match=r"got 'C99'.*C9.*C1-C47"):
        find(["C99"])
    with pytest.raises(InputError, match=r"topic: got 'softmax maskin'.*'softmax masking'"):
        select(topic="softmax_maskin")
    with pytest.raises(InputError, match="document: got 'Z'"):
        select(document="z")
    with pytest.raises(InputError, match=r"verdict: got 'wrong'.*'fails'"):
        with_verdict((), "wrong")
    with pytest.raises(InputError, match="leave none"):
        select(["C1"], topic="training")


def test_selection():
    assert [found.id for found in select(["c9", "C8", "c9"])] == ["C9", "C8"]
    assert {found.document for found in select(document="C")} == {"C"}
    ledger = run([HOLDS, FAILS, CONDITIONAL])
    assert [entry.claim.id for entry in with_verdict(ledger, "holds_if")] == ["A2"]
    assert len(with_verdict(ledger, None)) == 3


def test_record_keeps_verdicts_and_names_what_changed(tmp_path):
    path = tmp_path / "recorded.json"
    assert record.read(path) == {}
    record.write(run([HOLDS, FAILS, SKIPPED]), ["P1", "P25", "C4"], path)
    kept = record.read(path)
    assert kept["P25"] == {"verdict": "fails", "figures": ["gap: 2 (wanted at most 1: no)"]}
    assert list(kept) == ["P1", "P25", "C4"] and record.differences(run([HOLDS, FAILS, SKIPPED]), kept) == ()
    turned = made("P25", HOLDS.test())
    (difference,) = record.differences(run([HOLDS, turned]), kept)
    assert str(difference) == "P25: recorded as 'fails', now 'holds'"
    (new,) = record.differences(run([CONDITIONAL]), kept)
    assert str(new) == "A2: holds if, not recorded yet"
    (gone,) = record.differences(run([dataclasses.replace(BROKEN, id="C4")]), kept)
    assert gone.found is None and "now 'an error'" in str(gone)
    record.write(run([CONDITIONAL]), ["P1", "A2"], path)
    assert list(record.read(path)) == ["P1", "A2"]


def test_a_broken_record_or_entry_is_refused(tmp_path):
    path = tmp_path / "recorded.json"
    with pytest.raises(InputError, match="C5: got an error"):
        record.write(run([BROKEN]), ["C5"], path)
    assert not path.exists()
    for content in ("{", "[]"):
        path.write_text(content)
        with pytest.raises(InputError, match="--record"):
            record.read(path)
    with pytest.raises(InputError, match="cannot be written"):
        record.write(run([HOLDS]), ["P1"], tmp_path / "nowhere" / "recorded.json")


def test_counts_and_order_of_surprise():
    entries = run([HOLDS, FAILS, CONDITIONAL, BARE, SKIPPED, BROKEN]).entries
    found = counts(entries)
    assert found["P"] == {Verdict.HOLDS: 1, Verdict.FAILS: 1} and found["C"] == {Verdict.NEEDS_TRAINING: 1, None: 1}
    assert [entry.claim.id for entry in most_surprising_first(entries)] == ["C5", "P25", "B3", "A2", "P1", "C4"]
    assert "P25" in CENTRAL and surprise(entries[1]) > surprise(entries[3])


def test_central_claims_exist():
    known = {found.id for found in all_claims()}
    documents = {id[0] for id in known}
    assert {id for id in CENTRAL if id[0] in documents} <= known


def test_json_holds_every_part():
    told = run([FAILS])["P25"].to_dict()
    assert json.loads(json.dumps(told)) == told
    assert told["verdict"] == "fails" and told["correction"] == "It is 2." and told["confirmed"] is True
    assert told["checks"] == [{"what": "gap", "measured": "2", "wanted": "at most 1", "passed": False}]
    assert "checks" not in run([SKIPPED])["C4"].to_dict()


def test_the_decorator_names_the_topic_after_the_module():
    @claim("P2", source="here", statement="Something.", method="somehow")
    def found() -> Finding:
        return HOLDS.test()

    assert found.topic == "test ledger" and found.document == "P"
