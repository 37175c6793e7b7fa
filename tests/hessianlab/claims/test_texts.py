"""The texts of the claims: complete, in step with the tests, and read one topic at a time."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from hessianlab.claims import definition
from hessianlab.claims.catalogue import TEXTS, all_claims, check_repeats, claim_topics, find, topic_claims
from hessianlab.claims.definition import Claim, TopicTest, claim, claim_files
from hessianlab.claims.finding import Finding, Verdict
from hessianlab.claims.ledger import RECORDED_VERDICTS, read_verdicts
from hessianlab.experiments.registry import EXPERIMENTS
from hessianlens.errors import InputError

TOPICS = TEXTS.parent / "topics"
NUMBERS = {"P": 78, "A": 40, "B": 27, "C": 51, "D": 14}
TRAINED = {
    "P75",
    "P76",
    "A26",
    "A27",
    "A35",
    "B23",
    "B27",
    "C13",
    "C19",
    "C20",
    "C21",
    "C25",
    "C31",
    "C32",
    "C42",
    "C49",
    "C50",
    "C51",
}
"""Decided by recorded studies."""

NOTHING_TO_MEASURE = {"P66", "P67", "A34", "B25", "C47"}


def test_every_claim_of_a_document_is_there_once_and_in_order():
    ids = [found.id for found in all_claims()]
    assert ids == [f"{letter}{n + 1}" for letter, last in NUMBERS.items() for n in range(last)]
    assert len(ids) == 210 and sum(found.test is not None for found in all_claims()) == 203


def test_claims_without_a_test_say_why():
    assert {found.id for found in all_claims() if found.topic == "training"} == TRAINED
    assert {found.id for found in all_claims() if found.unmeasured is Verdict.OPEN} == NOTHING_TO_MEASURE
    read = [found for found in all_claims() if found.unmeasured is Verdict.FAILS]
    assert [found.id for found in read] == ["A32", "C46"]
    assert all(found.reason.startswith("Read, not computed") and found.correction for found in read)


def test_a_repeat_has_the_verdict_of_the_claim_it_repeats():
    recorded = read_verdicts(RECORDED_VERDICTS)
    repeats = {found.id: found.repeats for found in all_claims() if found.repeats}
    assert len(repeats) == 9
    for id, first in repeats.items():
        assert recorded[id]["verdict"] == recorded[first]["verdict"], id


def test_repeats_of_unknown_claims_and_of_repeats_are_refused():
    first, second, third = (Claim(id, "made up", "here", "S.", repeats=of) for id, of in MADE_REPEATS)
    check_repeats([first, second])
    for claims in ([second], [first, second, third]):
        with pytest.raises(InputError, match="expected a claim of the ledger that repeats none itself"):
            check_repeats(claims)


MADE_REPEATS = (("P1", ""), ("A1", "P1"), ("B1", "A1"))


def test_every_claim_says_where_what_and_how():
    for found in all_claims():
        assert found.source and found.statement.endswith("."), found.id
        assert bool(found.test) == bool(found.method) == (not found.reason) == (found.unmeasured is None), found.id
        assert not found.chapter or found.chapter in EXPERIMENTS, found.id
        assert not re.search(r"\$\{|\s{2}", found.method + found.correction + found.condition), found.id


def test_texts_and_tests_are_in_step():
    modules = {file.stem for file in TOPICS.glob("*.py")} - {"__init__"}
    for stem in modules:
        import_module(f"hessianlab.claims.topics.{stem}")
    topics = {found.id: found.topic for found in all_claims() if found.test is not None}
    given = {id: test.__module__ for id, test in definition._TESTS.items() if ".claims.topics." in test.__module__}
    assert given.keys() == topics.keys() == claim_files().keys()
    assert {id: module.rsplit(".", 1)[-1] for id, module in given.items()} == {
        id: file.stem for id, file in claim_files().items()
    }
    homes = {topic: {given[id] for id, of in topics.items() if of == topic} for topic in topics.values()}
    assert all(len(found) == 1 for found in homes.values()), "the claims of a topic are tested in one module"
    assert {module.rsplit(".", 1)[-1] for module in given.values()} == modules


@pytest.mark.long
def test_a_claim_reads_and_imports_its_own_topic_alone():
    code = """
import sys
from hessianlab.claims.catalogue import find
(one,) = find(["C8"])
assert "torch" not in sys.modules and not any(".claims.topics" in name for name in sys.modules)
one.examine()
print(*(name.rsplit(".", 1)[-1] for name in sys.modules if ".claims.topics." in name))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["softmax_masking"]


def written(folder: Path, **texts: str) -> Path:
    for stem, text in texts.items():
        (folder / f"{stem}.ini").write_text(text, encoding="utf-8")
    return folder


WHOLE = "[P1]\nsource = here\nstatement = Something\n    longer.\nmethod = ${shared}; at most 80 % of it\n"


def test_fields_go_over_lines_and_share_words(tmp_path):
    folder = written(tmp_path, one_topic="[DEFAULT]\nshared = 3 seeds\n\n" + WHOLE)
    assert claim_topics(folder) == {"P1": "one topic"}
    found = topic_claims("one topic", folder)["P1"]
    assert found.statement == "Something longer." and found.method == "3 seeds; at most 80 % of it"
    assert found.test == TopicTest("one topic", "P1") and not found.central


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (WHOLE.replace("method = ${shared}; at most", "corection ="), "unknown field corection"),
        (WHOLE.replace("source = here\n", ""), r"claim P1: got (no source|the)"),
        ("[P1]\nsource = here\nstatement = S.\n", "got no method"),
        ("[P1]\nsource = here\nstatement = S.\nverdict = fails\n", "got no reason"),
        (WHOLE + "repeats = P1\n", "claim P1: repeats 'P1'"),
        (WHOLE + "repeats = there\n", "claim P1: repeats 'there'"),
        (WHOLE, "shared"),
        ("source = here\n", "expected sections"),
        ("[P1]\nsource = a\nsource = b\n", "expected sections"),
    ],
)
def test_a_broken_text_is_refused(tmp_path, text, message):
    text = text if "shared" in message else text.replace("${shared}", "s")
    with pytest.raises(InputError, match=message):
        topic_claims("broken", written(tmp_path, broken=text))


def test_a_claim_in_two_texts_is_refused(tmp_path):
    with pytest.raises(InputError, match="claim P1: given by the topics 'a' and 'b'"):
        claim_topics(written(tmp_path, a=WHOLE, b=WHOLE))


def test_two_tests_of_one_claim_are_refused(monkeypatch):
    monkeypatch.setattr(definition, "_TESTS", {})

    @claim("P1")
    def one() -> Finding:
        return Finding(())

    with pytest.raises(InputError, match=r"claim P1: tested by .*one and by .*other"):

        @claim("P1")
        def other() -> Finding:
            return Finding(())

    assert {"P1": one} == definition._TESTS


def test_a_missing_test_says_what_is_expected(monkeypatch):
    with pytest.raises(InputError, match=r'expected @claim\("P999"\)'):
        TopicTest("softmax division", "P999")()
    with pytest.raises(InputError, match="without a test"):
        find(["P66"])[0].examine()


def test_numbers_in_the_words_are_those_the_test_tells():
    finding = Finding((), numbers={"share": 0.347, "row": "[1, 2]"})
    made = Claim("P1", "made up", "here", "Something.", condition="{row}", correction="It is {share:.0%}.")
    worded = made.worded(finding)
    assert worded.condition == "[1, 2]" and worded.correction == "It is 35%."
    for condition in ("", "{row} {more}"):
        with pytest.raises(InputError, match="names the numbers"):
            finding.worded(condition, "It is {share:.0%}.")
