"""`hessianlens claims`: what it prints, draws, records and answers."""

import dataclasses
import io
import json
import subprocess
import sys

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hessianlab.claims import catalogue, definition, ledger
from hessianlab.claims.catalogue import claim_topics, find
from hessianlab.claims.definition import Claim
from hessianlab.claims.finding import Finding, at_most
from hessianlab.claims.ledger import run
from hessianlab.claims.stored import is_whole
from hessianlab.claims.topics import softmax_masking
from hessianlab.cli.claims import _plan
from hessianlab.cli.claims_view import claims_table, counts_table, explanation, repeats_note
from hessianlens.cli import app


def call(*arguments, jobs=1):
    return CliRunner().invoke(app, ["claims", *map(str, arguments), "--jobs", str(jobs)])


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """Where the store is by default."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def own_record(tmp_path, monkeypatch):
    path = tmp_path / "recorded.json"
    monkeypatch.setattr(ledger, "RECORDED_VERDICTS", path)
    return path


def printed(renderable, width=100):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(renderable)
    return console.export_text()


def test_help_has_examples():
    answer = CliRunner().invoke(app, ["claims", "--help"])
    assert answer.exit_code == 0 and "hessianlens claims A12 P25" in answer.output


def test_table_with_counts():
    answer = call("--topic", "softmax_division")
    assert answer.exit_code == 0, answer.stderr
    lines = answer.stdout.splitlines()
    assert any(line.startswith("C10") and " fails " in line for line in lines)
    assert lines[-2].split()[-7:] == ["3", "1", "1", ".", ".", ".", "5"]
    shown = call("--topic", "softmax_division", "--verdict", "fails").stdout
    assert "C10" in shown and "C9" not in shown


def test_explanation_shows_everything():
    answer = call("c10", "C23", "C13")
    assert answer.exit_code == 0, answer.stderr
    text = " ".join(answer.stdout.split())
    for part in (
        "C10 fails",
        "as written no distance under plain division",
        "correction Plain division moves 0.48 of the weight",
        "wanted at least 1.4",
        "example plain: [0.37, 0.33, 0.30]",
        "hessianlab/claims/topics/softmax_masking.py:",
        "C23 holds if",
        "holds if rows see at least about 8 keys",
        "plot hessianlens claims C23 --plot DIR",
        "C13 ",
        "study_activations, on text",
        "on text with weights by row sum: loss over softmax's",
        "protocol Hypothesis: Softmax ends with the lowest loss",
    ):
        assert part in text, part


def test_repeats_are_counted_once():
    answer = call("P5", "A8")
    assert "repeats P5" in " ".join(answer.stdout.split())
    assert repeats_note(run(find(["P5", "A8"])).entries) == "Distinct facts: 1 of 2 entries."
    assert not repeats_note(run(find(["C8", "C9"])).entries)


def test_json_is_the_whole_entry():
    answer = call("C10", "C13", "--json")
    first, second = json.loads(answer.stdout)
    assert answer.exit_code == 0 and first["verdict"] == "fails" and first["confirmed"] and "reason" in second
    assert first["checks"][0]["passed"] is False and first["location"].count(":") == 1
    (drawn,) = json.loads(call("C23", "--json").stdout)
    assert drawn["curves"]["x_label"] and all(len(x) == len(y) > 1 for x, y in drawn["curves"]["curves"].values())


def test_plots_are_written_where_there_are_curves(tmp_path):
    answer = call("C23", "C8", "--plot", tmp_path / "deep" / "pictures")
    assert answer.exit_code == 0, answer.stderr
    assert [path.name for path in (tmp_path / "deep" / "pictures").iterdir()] == ["C23.png"]
    assert (tmp_path / "deep" / "pictures" / "C23.png").read_bytes().startswith(b"\x89PNG")
    assert "none; no claim shown has curves" in call("C8", "--plot", tmp_path).stderr
    (tmp_path / "file").write_text("")
    answer = call("C8", "--plot", tmp_path / "file")
    assert answer.exit_code == 2 and "file is a file; give a directory" in answer.stderr


def test_recording_and_a_changed_verdict(own_record):
    answer = call("C8", "C10")
    assert answer.exit_code == 1 and "2 verdicts are not recorded yet (C8, C10)" in answer.stderr
    assert call("C8", "C10", "--record").exit_code == 0
    assert call("C8", "C10").exit_code == 0
    kept = json.loads(own_record.read_text())
    kept["C10"]["verdict"] = "holds"
    own_record.write_text(json.dumps(kept))
    answer = call("C8", "C10")
    assert (
        answer.exit_code == 1
        and "C10: recorded as 'holds', now 'fails'" in answer.stderr
        and "C8:" not in answer.stderr
    )


def _tested_by(monkeypatch, id, test):
    """Another test of a claim of the topic softmax division."""
    monkeypatch.setitem(definition._TESTS, id, test)
    assert softmax_masking.claim is definition.claim


def test_a_broken_test_is_a_finding_and_never_recorded(own_record, monkeypatch):
    def broken():
        raise RuntimeError("on purpose")

    _tested_by(monkeypatch, "C8", broken)
    answer = call("C8", "C9", "--record")
    assert answer.exit_code == 1 and "C8: its test raised RuntimeError: on purpose" in answer.stderr
    assert "error" in answer.stdout and "C9  holds" in answer.stdout and not own_record.exists()


def test_an_unsupported_correction_is_a_finding(own_record, monkeypatch):
    numbers = {"plain": 1.0, "soft": 2.0}
    finding = Finding((at_most("gap", 2, 1),), support=(at_most("other", 2, 1),), numbers=numbers, example="none")
    _tested_by(monkeypatch, "C10", lambda: finding)
    answer = call("C10", "--record")
    assert answer.exit_code == 1 and "did not pass its own checks" in answer.stderr and not own_record.exists()


def test_what_was_found_is_kept_and_not_tested_again(tmp_path, monkeypatch):
    store = tmp_path / "kept.sqlite"
    first = call("C8", "C9", "--json", "--store", store)
    _tested_by(monkeypatch, "C8", lambda: 1 / 0)
    again = call("C8", "C9", "--json", "--store", store)
    assert first.exit_code == again.exit_code == 0 and first.stdout == again.stdout
    other = call("C8", "--store", store, "--seed", 3)
    assert other.exit_code == 1 and "ZeroDivisionError" in other.stderr


def test_a_broken_claim_is_tested_again_and_the_others_are_not(monkeypatch):
    with monkeypatch.context() as broken:
        _tested_by(broken, "C8", lambda: 1 / 0)
        assert call("C8", "C9").exit_code == 1
    _tested_by(monkeypatch, "C9", lambda: 1 / 0)
    assert call("C8", "C9").exit_code == 0


@pytest.mark.long
def test_processes_find_what_one_process_finds(tmp_path):
    chosen = ("C14", "C8", "C10", "C13", "--json")
    one, two = (json.loads(call(*chosen, "--store", tmp_path / f"{n}.sqlite", jobs=n).stdout) for n in (1, 2))
    for entry in (*one, *two):
        assert entry.pop("seconds") >= 0
    assert one == two


def test_claims_without_a_test_need_no_store():
    answer = call("C46", "C47", "--store", "/nowhere/at/all.sqlite")
    assert answer.exit_code == 0 and "C46" in answer.stdout, answer.stderr


def test_the_whole_ledger_is_one_run_and_a_selection_another():
    ids = list(claim_topics())
    assert is_whole(dataclasses.asdict(_plan(ids, 0).config)) and _plan(ids, 0).preset == "quick"
    for plan in (_plan(ids[:3], 0), _plan(ids, 7)):
        assert not is_whole(dataclasses.asdict(plan.config)) and plan.preset == "custom"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["C99"], "expected an id such as"),
        (["--document", "X"], "expected one of 'P', 'A', 'B', 'C'"),
        (["--topic", "softmax_mask"], "'softmax masking'"),
        (["--verdict", "maybe", "C8"], "'misprint'"),
        (["C8", "--topic", "training"], "leave none"),
        (["C8", "--seed", "-1"], "seed: got -1"),
        (["C8", "--seed", "1", "--record"], "--record: got the draws of --seed 1"),
        (["C8", "--backend", "cloud"], "backend: got 'cloud'"),
        (["C8", "--address", "tcp://host:1"], "address: got 'tcp://host:1'"),
    ],
)
def test_bad_input(arguments, message):
    answer = call(*arguments)
    assert answer.exit_code == 2 and message in answer.stderr and "Traceback" not in answer.output


def test_no_process_at_all_is_bad_input():
    answer = CliRunner().invoke(app, ["claims", "C8", "--jobs", "0"])
    assert answer.exit_code == 2 and "jobs: got 0" in answer.stderr


@pytest.mark.expensive
@pytest.mark.parametrize("width", [40, 69, 70, 100, 160])
def test_nothing_is_cut_off_at_any_width(width):
    entries = run(catalogue.find(["C1", "C13", "C23", "C47"])).entries
    for renderable in (claims_table(entries, width), *map(explanation, entries)):
        text = printed(renderable, width)
        assert "…" not in text and max(map(len, text.splitlines())) <= width
    flat = "".join(printed(claims_table(entries, width), width).split())
    for entry in entries:
        assert "".join(str(entry.verdict).split()) in flat


def test_counts_by_document_and_in_all():
    open_one = Claim(
        "C99", "made up", "here", "Something.", "somehow", test=lambda: Finding((), undecided="Too few seeds.")
    )
    entries = run([*catalogue.find(["C1", "C23", "C47", "C8"]), open_one]).entries
    one, *_ = (line for line in printed(counts_table(entries)).splitlines() if line.startswith(" C  "))
    assert one.split()[-7:] == ["1", "1", ".", "1", ".", "2", "5"]
    other = Claim("P1", "made up", "here", "Something.", "somehow", test=lambda: 1 / 0)
    *_, total = (line for line in printed(counts_table([*entries, *run([other])])).splitlines() if line.strip())
    assert total.split() == ["all", "1", "1", "0", "1", "0", "2", "1", "6"]


def test_ledger_is_not_imported_for_help():
    """Commands stay quick: the laboratory is loaded only when it works."""
    code = "import sys, hessianlens.cli; sys.exit('hessianlab.claims.catalogue' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
