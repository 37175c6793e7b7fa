"""`hessianlens inspect`: the table it prints, the files it writes, how it ends."""

from __future__ import annotations

import csv
import json
import re
import signal
from contextlib import nullcontext
from inspect import signature
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import hessianlens as hl
from hessianlens.cli import app
from hessianlens.cli.inspect import compare_models, inspect_model
from hessianlens.cli.inspect_view import _print_rows
from hessianlens.inspect.inspection import Inspection, cell
from hessianlens.inspect.preparation import open_model
from hessianlens.inspect.settings import Settings
from tests.inspect.saved_models import BERT, GPT2, LLAMA, T5, VIT, saved
from tests.network.watches import Interrupting

TOY = "toy:layers=2,d_model=4,d_mlp=3,digits=1"
QUICK = ["--probes", "2", "--sequences", "2"]


def call(*arguments: object):
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)])


def test_help_has_examples() -> None:
    answer = call("--help")
    assert answer.exit_code == 0 and "Examples" in answer.output
    for words in ("toy:layers=2,d_model=64", "config:gpt2", "--max-memory", "--also", "--out", "--dry-run"):
        assert words in answer.output


def test_two_models_are_compared_with_the_options_of_one() -> None:
    """Typer reads options from signatures, so both commands have them written out: with the same defaults and help."""
    one, two = (dict(signature(command).parameters) for command in (inspect_model, compare_models))
    del one["model"], one["dry_run"], two["before"], two["after"]
    assert one == two


def test_a_table() -> None:
    answer = call(TOY, *QUICK, "--blocks", "layer*.attn.[qv]", "--blocks", "layer0.mlp.in")
    assert answer.exit_code == 0, answer.output
    for words in ("the addition task, 2 sequences", "|H|", "|G|", "|H-G|", "functional/outer", "scale", "What to do:"):
        assert words in answer.stdout
    rows = [line.split() for line in answer.stdout.splitlines() if line.strip().startswith("layer")]
    assert [row[0] for row in rows] == [
        "layer0.attn.q",
        "layer0.attn.v",
        "layer0.mlp.in",
        "layer1.attn.q",
        "layer1.attn.v",
    ]
    assert rows[0].count("few") == 3 and "few" not in rows[3]  # the last attention layer is exact
    assert rows[0][3].startswith("-") and rows[0][4].startswith("+")
    assert "-2% +4%: 95 % interval" in answer.stdout
    assert answer.stderr == ""


@pytest.mark.parametrize(("columns", "stacked"), [(80, True), (40, True), (160, False)])
def test_no_number_is_cut_short_in_a_narrow_terminal(
    columns: int, stacked: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.console import Console

    blocks = ("layer0.attn.q", "layer0.attn.q.bias")
    measurement = Inspection(open_model(Settings(TOY + ",attention_bias=true", blocks=blocks, probes=2, sequences=2)))
    measurement.run()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    _print_rows(measurement, Console(width=columns, color_system=None))
    shown = capsys.readouterr().out
    assert "…" not in shown
    for row in measurement.table.rows:
        for norm in row.norms.values():
            words = cell(norm).removesuffix(" few").split(" ", 1)
            assert all(word in shown for word in words) and (cell(norm) in shown) != stacked
    assert stacked != ("functional/outer" in shown)
    assert columns < 80 or max(map(len, shown.splitlines())) <= columns


def test_the_table_is_shown_where_its_file_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hessianlens.files.check_writable", lambda path, option: path)
    answer = call(TOY, *QUICK, "--blocks", "layer1.attn.q", "--out", tmp_path / "missing" / "table.csv")
    assert answer.exit_code == 2 and "out: cannot write" in answer.stderr and "layer1.attn.q" in answer.stdout


@pytest.mark.long
def test_json_holds_the_numbers_of_a_direct_computation() -> None:
    arguments = ["--sequences", 3, "--probes", 3, "--seed", 2, "--blocks", "layer*", "--json"]
    answer = call(TOY, *arguments, "--also", "pairs,spectrum=layer0.attn.v")
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)
    task = hl.tasks.Addition(1)
    model = hl.models.Transformer(2, 4, d_mlp=3, context=task.context, seed=2, dtype=torch.float64)
    problem = hl.problem(model, task.batch(3, seed=2), task.cross_entropy)
    names = [block.name for block in problem.select("layer*")]
    norms = hl.block_norms(problem, names, probes=3, seed=2)
    assert [row["block"] for row in found["blocks"]] == names and found["complete"] is True
    assert found["loss_value"] == pytest.approx(float(problem.total_loss()))
    for row in found["blocks"]:
        for part, norm in row["norms"].items():
            assert norm["value"] == pytest.approx(norms[row["block"], part].value, rel=1e-9, abs=1e-15)
            assert norm["stderr"] == pytest.approx(norms[row["block"], part].stderr, rel=1e-6, abs=1e-15)
            ends = norms[row["block"], part].interval()
            assert (norm["low"], norm["high"]) == pytest.approx(ends, rel=1e-6, abs=1e-15)
    pairs = hl.block_pair_norms(problem, names, probes=3, seed=2)
    assert torch.allclose(torch.tensor(found["pairs"]["norms"], dtype=torch.float64), pairs.values())
    assert torch.allclose(torch.tensor(found["pairs"]["high"], dtype=torch.float64), pairs.intervals()[1])
    ends = hl.eigenvalues(hl.hessian(problem, "layer0.attn.v"), 3, "both")
    assert found["spectra"]["layer0.attn.v"]["eigenvalues"] == pytest.approx(ends.values.tolist(), abs=1e-12)


@pytest.mark.expensive
@pytest.mark.parametrize("name", [GPT2, BERT, LLAMA, VIT], ids=["gpt2", "bert", "llama", "vit"])
def test_random_data_is_said_to_be_random(name: str) -> None:
    answer = call(name, *QUICK, "--blocks", "layer0.attn.v", "--length", 6)
    assert answer.exit_code == 0, answer.output
    assert "RANDOM" in answer.stdout and "random weights" in answer.stdout and "layer0.attn.v" in answer.stdout


AT_INITIALISATION = "this says how the architecture scales at initialisation, not how a trained model does"
ADVICE = {
    TOY: f"From random weights: {AT_INITIALISATION}. ",
    GPT2: f"From random weights and random token ids: {AT_INITIALISATION}. ",
    VIT: f"From random weights, random pixels and random labels: {AT_INITIALISATION}. ",
    T5: f"From random weights, random token ids and random labels: {AT_INITIALISATION}. ",
}


@pytest.mark.expensive
@pytest.mark.parametrize("name", ADVICE, ids=["toy", "gpt2", "vit", "t5"])
def test_advice_says_what_it_is_made_from(name: str) -> None:
    options = [*QUICK, "--blocks", "*layer0.attn.[qv]", *([] if name == TOY else ["--length", 6])]
    shown, found = call(name, *options), json.loads(call(name, *options, "--json").stdout)
    assert f"What to do: {ADVICE[name]}" in shown.stdout
    assert found["advice"].startswith(ADVICE[name]) and len(found["advice"]) > len(ADVICE[name])
    assert found["random_weights"] is True and found["caveats"][0] == "random weights"


def test_there_is_no_advice_from_a_made_up_loss(tmp_path: Path) -> None:
    options = [BERT, "--head", "encoder", *QUICK, "--length", 4, "--blocks", "layer0.attn.[qv]"]
    shown = call(*options)
    assert "What to do: Nothing can be concluded: the loss is made up (random targets)." in shown.stdout
    assert "learning rate" not in shown.stdout
    found = json.loads(call(*options, "--json").stdout)
    assert found["advice"].startswith("Nothing can be concluded") and "random targets" in found["caveats"]
    batch = {"input_ids": torch.ones(2, 4, dtype=torch.int64), "labels": torch.ones(2, 4, 8)}
    torch.save(batch, tmp_path / "batch.pt")
    own = json.loads(call(*options, "--data", tmp_path / "batch.pt", "--json").stdout)
    assert own["caveats"] == ["random weights"] and own["advice"].startswith("From random weights: ")


def test_a_trained_model_on_random_and_on_real_data(tmp_path: Path) -> None:
    from hessianlens.inspect.loading import load_model

    folder = saved(tmp_path / "model", load_model(GPT2).model)
    (tmp_path / "a.txt").write_text("the cat sat on the mat and the dog ran away")
    options = [folder, *QUICK, "--length", 5, "--blocks", "layer0.attn.[qv]", "--json"]
    drawn, real = (json.loads(call(*options, *more).stdout) for more in ([], ["--data", tmp_path / "a.txt"]))
    assert drawn["advice"].startswith("From random token ids: scales may differ on real data; give it with")
    assert real["caveats"] == [] and real["advice"].startswith(("Comparable scales", "Scales differ"))


def test_a_saved_model_on_a_text(tmp_path: Path) -> None:
    from hessianlens.inspect.loading import load_model

    folder = saved(tmp_path / "model", load_model(GPT2).model)
    (tmp_path / "a.txt").write_text("the cat sat on the mat and the dog ran away")
    answer = call(folder, "--data", tmp_path / "a.txt", "--length", 5, *QUICK, "--blocks", "layer0.attn.q")
    assert answer.exit_code == 0, answer.output
    assert "2 sequences of" in answer.stdout and "RANDOM" not in answer.stdout
    assert "next-token cross_entropy, mean over 8 targets" in answer.stdout


def test_heads_parts_and_precision(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    options = ["--also", "heads", "--parts", "full", "--dtype", "float32", "--blocks", "layer0.attn.[qk]*"]
    answer = call("toy:d_model=4,heads=2,digits=1", *QUICK, *options, "--out", path)
    assert answer.exit_code == 0, answer.output
    assert "float32" in answer.stdout and "|G|" not in answer.stdout
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["block"] for row in rows][:2] == ["layer0.attn.q.head0", "layer0.attn.q.head1"]
    assert {"full", "full_stderr", "full_low", "full_high", "full_method"} < set(rows[0]) and "ggn" not in rows[0]


def test_exact_norms_are_kept_and_taken_up_again(tmp_path: Path) -> None:
    asked = (
        TOY,
        "--sequences",
        2,
        "--blocks",
        "layer*.mlp.in",
        "--method",
        "exact",
        "--out",
        tmp_path / "norms.jsonl",
    )
    first = call(*asked, "--json")
    assert first.exit_code == 0, first.output
    found = json.loads(first.stdout)["blocks"]
    assert len(found) == 2 and len((tmp_path / "norms.jsonl").read_text().splitlines()) == 3
    assert json.loads(call(*asked, "--json").stdout)["blocks"] == found
    other = call(*asked, "--seed", 1)
    assert other.exit_code == 2 and "belongs to other weights" in other.stderr
    wrong = call(TOY, "--method", "guess")
    assert (
        wrong.exit_code == 2
        and "method: got 'guess', expected one of 'auto', 'exact', 'sketch', 'probes'" in wrong.stderr
    )


def test_the_last_attention_layer_is_sketched_where_that_is_asked_for() -> None:
    answer = call(TOY, *QUICK, "--blocks", "layer1.attn.q", "--method", "sketch", "--rtol", 0.2, "--json")
    assert answer.exit_code == 0, answer.output
    (block,) = json.loads(answer.stdout)["blocks"]
    assert block["norms"]["full"]["method"] in ("sketch", "basis"), block


def test_the_outer_product_is_the_gauss_newton_matrix() -> None:
    options = [TOY, *QUICK, "--blocks", "layer0.attn.q", "--json", "--parts"]
    outer, ggn = (json.loads(call(*options, part).stdout)["blocks"] for part in ("outer", "ggn"))
    assert outer == ggn and list(outer[0]["norms"]) == ["ggn"]


def test_a_forecast_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hessianlens.inspect.inspection.run_until", lambda *a, **k: pytest.fail("measured"))
    answer = call(TOY, *QUICK, "--blocks", "layer0.*", "--dry-run")
    assert answer.exit_code == 0, answer.output
    assert "12 blocks" in answer.stdout and "24 HVPs" in answer.stdout and "free" in answer.stdout
    found = json.loads(call(TOY, *QUICK, "--blocks", "layer0.*", "--dry-run", "--json").stdout)
    assert found["forecast"]["products"] == 24 and found["forecast"]["bytes"] > 0


def test_a_limit_of_memory_cuts_batches_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def inspected(*options: object) -> dict:
        arguments = [TOY, "--sequences", 6, "--probes", 3, "--blocks", "layer0.attn.q", "--json", *options]
        return json.loads(call(*arguments).stdout)

    monkeypatch.setattr("hessianlens.network.forecasting.process_bytes", lambda: 0)
    whole, cut = inspected(), inspected("--max-memory", "50kB")
    assert whole["batches"] == 1 < cut["batches"]
    for part, norm in whole["blocks"][0]["norms"].items():
        assert cut["blocks"][0]["norms"][part]["value"] == pytest.approx(norm["value"], rel=1e-9)


BAD = {
    "model: got '/nosuch', but there is no such folder": ["/nosuch"],
    "toy has no option 'layer'; did you mean layers": ["toy:layer=1"],
    "blocks: nothing matches 'layer9.*'": [TOY, "--blocks", "layer9.*"],
    "blocks: nothing matches 'nosuch'": [TOY, "--blocks", "layer0.attn.q", "--also", "spectrum=nosuch"],
    "parts: got 'hessian', expected one of": [TOY, "--parts", "hessian"],
    "probes: got 0, expected at least 1": [TOY, "--probes", "0"],
    "dtype: got 'half', expected one of": [TOY, "--dtype", "half"],
    "device: got 'abacus'": [TOY, "--device", "abacus"],
    "head: got 'neck', expected one of": [GPT2, "--head", "neck"],
    "data: there is no file": [TOY, "--data", "nosuch.pt"],
    "max_memory: got 'lots', expected a number of bytes or a size": [TOY, "--max-memory", "lots"],
    "max_memory: one sequence at a time needs": [TOY, "--max-memory", "1kB"],
    "out: cannot write": [TOY, "--out", f"{__file__}/table.csv"],
    "out: got 'table.txt'; expected a file that ends in .html, .csv": [TOY, "--out", "table.txt"],
    "also: got 'everything', expected some of heads, pairs": [TOY, "--also", "pairs,everything"],
    "also: got quantise=four, expected a number": [TOY, "--also", "quantise=four"],
    "quantise: got 64, expected a whole number from 1 to 32": [TOY, "--also", "quantise=64"],
}


def test_earlier_spellings_still_work_and_say_the_new_one(tmp_path: Path) -> None:
    table, found = tmp_path / "table.csv", tmp_path / "all.json"
    answer = call(TOY, *QUICK, "--blocks", "layer1.attn.q", f"--csv={table}", "--pairs", "--out", found)
    assert answer.exit_code == 0, answer.output
    assert answer.stderr.splitlines() == [
        f"hessianlens: --csv {table} is now --out {table}",
        "hessianlens: --pairs is now --also pairs",
    ]
    assert table.read_text().startswith("block,") and json.loads(found.read_text())["pairs"]["blocks"]


@pytest.mark.parametrize("said", BAD)
def test_bad_input_is_one_line(said: str) -> None:
    answer = call(*BAD[said])
    assert answer.exit_code == 2 and said in answer.stderr
    assert answer.stderr.strip().count("\n") == 0 and not answer.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("as_json", [False, True])
def test_what_is_done_is_shown_after_a_signal(
    as_json: bool, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real signal, after the products of two blocks."""
    watched = nullcontext(Interrupting(4, number))
    monkeypatch.setattr("hessianlens.cli.progress_lines.shown_progress", lambda title: watched)
    options = ["--out", tmp_path / "table.csv", *(["--json"] if as_json else [])]
    answer = call(TOY, *QUICK, "--blocks", "layer0.mlp.*", "--also", "pairs", *options)
    assert answer.exit_code == 130
    assert answer.stderr == "hessianlens: interrupted; 2 of 4 blocks are measured, and shown.\n"
    assert (tmp_path / "table.csv").read_text().count("\n") == 3
    if as_json:
        found = json.loads(answer.stdout)
        assert found["complete"] is False and len(found["blocks"]) == 2 and "pairs" not in found
    else:
        assert answer.stdout.count("layer0.mlp.") >= 2 and "pair" not in answer.stdout


def test_ctrl_c_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(settings, process_group):
        raise KeyboardInterrupt

    monkeypatch.setattr("hessianlens.inspect.preparation.prepare_model", interrupted)
    answer = call(TOY)
    assert answer.exit_code == 130 and answer.stdout == ""
    assert answer.stderr == "hessianlens: interrupted; nothing had been measured yet.\n"


# --- long work -------------------------------------------------------------------------------------------------------


def test_what_would_take_for_ever_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every vector of the basis of every block: nothing is measured before it is said."""
    monkeypatch.setattr("hessianlens.inspect.preparation.PASSES_PER_PRODUCT", 1e12)
    monkeypatch.setattr(Inspection, "run", lambda *_: pytest.fail("it was begun"))
    arguments = ["--probes", 100_000_000_000, "--blocks", "layer0.mlp.in"]
    answer = call(TOY, *arguments)
    assert answer.exit_code == 2 and answer.exception.__class__ is SystemExit
    told = r"probes: got 100000000000, which are 12 HVPs, about \S+ h; expected at most 168.0 h \(a week\)"
    assert re.match(f"hessianlens: {told}", answer.stderr), answer.stderr
    assert "--budget 5m gives an answer in time" in answer.stderr


@pytest.mark.long
@pytest.mark.parametrize(("passes", "announced"), [(1e7, True), (1e-3, False)])
def test_what_takes_long_is_announced(passes: float, announced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hessianlens.cli.inspect_view.LONGEST_SECONDS", float("inf"))
    monkeypatch.setattr("hessianlens.inspect.preparation.PASSES_PER_PRODUCT", passes)
    answer = call(TOY, "--probes", 2, "--blocks", "layer0.mlp.in", "--json")
    assert answer.exit_code == 0 and json.loads(answer.stdout)["complete"] is True
    assert ("hessianlens: at most 2 HVPs, about" in answer.stderr) is announced
    within = call(TOY, "--probes", 2, "--blocks", "layer0.mlp.in", "--budget", "30s", "--json")
    assert within.exit_code == 0 and "at most" not in within.stderr


@pytest.mark.long
def test_progress_is_told_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from hessianlens.cli import progress_lines

    monkeypatch.setattr(progress_lines, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(progress_lines, "MOST_SECONDS", 0.0)
    answer = call(TOY, "--probes", 2, "--sequences", 2, "--method", "probes", "--json")
    # On a busy machine it may also say beforehand how long it will take.
    lines = [line for line in answer.stderr.splitlines() if not line.startswith("hessianlens: at most ")]
    assert answer.exit_code == 0 and all(line.endswith(" so far.") for line in lines)
    assert lines[0].startswith("hessianlens: Loading the model, ")
    assert any(re.match(r"hessianlens: \S+.*, \d+ of [\d,]+ HVPs, ", line) for line in lines)
