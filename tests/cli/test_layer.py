"""The command line: what it writes, prints and answers."""

import dataclasses
import json

import pytest
import torch
from typer.testing import CliRunner

import hessianlab.layer_page as layer_page
import hessianlens as hl
from hessianlens.cli import app
from tests.variants import self_attention

SMALL = ["--length", "5", "--d-model", "4", "--d-k", "3"]
TINY = ["--length", "2", "--d-model", "2", "--d-k", "1"]


def call(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    return call("layer", *SMALL, "--seed", 2, "--out", out, "--json"), out


@pytest.fixture(scope="module")
def tiny_facts():
    return layer_page.measure_layer(layer_page.LayerConfig(length=2, d_model=2, d_k=1))


def test_help_and_version():
    for arguments, example in (
        (["--help"], "hessianlens layer"),
        (["layer", "--help"], "hessianlens layer --activation"),
    ):
        answer = call(*arguments)
        assert answer.exit_code == 0 and "Examples" in answer.output and example in answer.output
    assert call("--version").output.strip() == f"hessianlens {hl.__version__}"


def test_report_is_written_and_summarised(tiny_facts, tmp_path, monkeypatch):
    monkeypatch.setattr(layer_page, "measure_layer", lambda config, on_step: tiny_facts)
    answer = call("layer", *TINY, "--out", tmp_path / "deep" / "report")
    assert answer.exit_code == 0, answer.output
    page = (tmp_path / "deep" / "report" / "index.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>") and page.rstrip().endswith("</html>")
    assert "Three witnesses" in answer.stdout and "agree" in answer.stdout
    assert "index.html" in answer.stdout.replace("\n", "")


def test_json_holds_the_numbers_of_a_direct_computation(reported):
    answer, out = reported
    assert answer.exit_code == 0 and (out / "index.html").exists()
    figures = json.loads(answer.stdout)
    layer = self_attention(3, 2, output=None)
    X, Y = torch.randn(2, 1, 5, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    H = hl.attention_hessian(layer, X, hl.SquareLoss(Y))
    assert figures["loss"] == pytest.approx(float(torch.nn.functional.mse_loss(layer(X), Y)))
    for block in figures["blocks"]:
        for part in ("outer", "functional", "full"):
            dense = H.part(part)[block["row"], block["column"]].to_dense()
            assert block[part] == pytest.approx(float(dense.norm()), abs=1e-14)
    values = torch.linalg.eigvalsh(H.full["K", "K"].to_dense())
    (keys,) = [c for c in figures["curvatures"] if (c["name"], c["part"]) == ("K", "full")]
    assert [keys["smallest"], keys["largest"]] == pytest.approx([float(values[0]), float(values[-1])])
    assert keys["trace"] == pytest.approx(float(values.sum()))
    assert figures["config"]["seed"] == 2 and figures["provenance"]["version"] == hl.__version__


def test_another_seed_gives_other_numbers(reported, tmp_path, monkeypatch):
    monkeypatch.setattr(layer_page, "render", lambda facts: "")
    first = json.loads(reported[0].stdout)
    other = json.loads(call("layer", *SMALL, "--seed", 3, "--out", tmp_path, "--json").stdout)
    for now, then in zip(other["blocks"], first["blocks"], strict=True):
        assert now["outer"] != then["outer"]


def test_options_reach_the_layer(tmp_path):
    options = ["--activation", "sigmoid", "--causal", "--temperature", "2.5", "--batch", "2"]
    answer = call("layer", "--length", 3, "--d-model", 2, "--d-k", 1, *options, "--out", tmp_path, "--json")
    config = json.loads(answer.stdout)["config"]
    assert config == {
        "seed": 0,
        "length": 3,
        "d_model": 2,
        "d_k": 1,
        "batch": 2,
        "activation": "sigmoid",
        "causal": True,
        "temperature": 2.5,
    }
    assert "sigmoid, causal" in (tmp_path / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--activation", "softplus"], "activation: got 'softplus', expected one of"),
        (["--length", "-3"], "length: got -3"),
        (["--d-model", "-1"], "d_model: got -1"),
        (["--d-k", "0"], "d_k: got 0"),
        (["--batch", "0"], "batch: got 0"),
        (["--temperature", "0"], "temperature: got 0"),
        (["--seed", "-7"], "seed: got -7"),
        (["--d-model", "200"], "expected at most"),
        (["--length", "three"], "--length"),
        (["--colour", "red"], "--colour"),
    ],
)
def test_bad_input_is_explained_in_one_paragraph(tmp_path, options, said):
    answer = call("layer", "--out", tmp_path / "none", *options)
    assert answer.exit_code == 2
    assert said in answer.stderr and "Traceback" not in answer.output
    assert not answer.stdout and not (tmp_path / "none").exists()


def test_unwritable_place_is_refused_before_the_work(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("mine")
    monkeypatch.setattr(layer_page, "measure_layer", lambda *a: pytest.fail("measured first"))
    answer = call("layer", *SMALL, "--out", file)
    assert answer.exit_code == 2 and "cannot write" in answer.stderr
    assert answer.stderr.strip().count("\n") == 0 and file.read_text() == "mine"


def test_interruption_keeps_the_earlier_page(tmp_path, monkeypatch):
    (tmp_path / "index.html").write_text("earlier")

    def interrupted(config, on_step):
        on_step("Three witnesses")
        raise KeyboardInterrupt

    monkeypatch.setattr(layer_page, "measure_layer", interrupted)
    answer = call("layer", *SMALL, "--out", tmp_path)
    assert answer.exit_code == 130
    assert "interrupted" in answer.stderr and "Traceback" not in answer.output
    assert [p.name for p in tmp_path.iterdir()] == ["index.html"]
    assert (tmp_path / "index.html").read_text() == "earlier"


def test_interruption_while_writing_leaves_no_part_of_a_page(tmp_path, monkeypatch):
    def interrupted(unfinished, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(layer_page, "measure_layer", lambda config, on_step: None)
    monkeypatch.setattr(layer_page, "render", lambda facts: "<!DOCTYPE html>")
    monkeypatch.setattr("hessianlens.files.os.replace", interrupted)
    answer = call("layer", *TINY, "--out", tmp_path)
    assert answer.exit_code == 130
    assert not list(tmp_path.iterdir())


def test_disagreeing_witnesses_end_with_exit_code_one(tiny_facts, tmp_path, monkeypatch):
    wrong = tuple(dataclasses.replace(a, closed_dense=0.1, verdict="differ") for a in tiny_facts.agreements)
    disturbed = dataclasses.replace(tiny_facts, agreements=wrong)
    monkeypatch.setattr(layer_page, "measure_layer", lambda config, on_step: disturbed)
    answer = call("layer", *TINY, "--out", tmp_path)
    assert answer.exit_code == 1 and "do not agree" in answer.stderr
    assert "differ" in (tmp_path / "index.html").read_text(encoding="utf-8")
