"""The command line: what it writes, prints and answers."""

import json

import pytest
import torch
from typer.testing import CliRunner

import hessianlens as hl
from hessianlens.cli import app
from hessianlens.layer.layer_check import LayerCheck, PartAgreement
from tests.variants import self_attention

SMALL = ["--length", "5", "--d-model", "4", "--d-k", "3"]
TINY = ["--length", "2", "--d-model", "2", "--d-k", "1"]


def call(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    return call("layer", *SMALL, "--seed", 2, "--out", out, "--json"), out


def test_help_and_version():
    for arguments, example in (
        (["--help"], "hessianlens layer"),
        (["layer", "--help"], "hessianlens layer --activation"),
    ):
        answer = call(*arguments)
        assert answer.exit_code == 0 and "Examples" in answer.output and example in answer.output
    assert call("--version").output.strip() == f"hessianlens {hl.__version__}"


def test_page_is_written_and_summarised(tmp_path):
    answer = call("layer", *TINY, "--out", tmp_path / "deep" / "report")
    assert answer.exit_code == 0, answer.output
    page = (tmp_path / "deep" / "report" / "index.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>") and page.rstrip().endswith("</html>")
    assert "Agreement with autograd" in page and "Growth with the tokens" in page and "Spectrum" in page
    assert "agree on every part" in answer.stdout and "index.html" in answer.stdout


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
    (keys,) = [c for c in figures["curvatures"] if (c["name"], c["part"]) == ("block K", "full")]
    assert [keys["smallest"], keys["largest"]] == pytest.approx([float(values[0]), float(values[-1])])
    assert keys["trace"] == pytest.approx(float(values.sum()))
    assert figures["config"]["seed"] == 2
    assert {found["verdict"] for found in figures["agreements"]} == {"agree"}
    assert {found["verdict"] for found in figures["growth"]} == {"agree"}


def test_another_seed_gives_other_numbers(reported, tmp_path):
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
    monkeypatch.setattr("hessianlens.cli.layer._random_check", lambda *a: pytest.fail("measured first"))
    answer = call("layer", *SMALL, "--out", file)
    assert answer.exit_code == 2 and "cannot write" in answer.stderr
    assert answer.stderr.strip().count("\n") == 0 and file.read_text() == "mine"


def test_overflow_and_all_zero_attention_are_named(tmp_path):
    for options, said in (
        (["--length", 4, "--d-model", 3, "--d-k", 1, "--activation", "exp", "--temperature", 1e-3], "not finite"),
        ([*TINY, "--seed", 4, "--causal", "--activation", "relu_normalised"], "is zero on these tokens"),
    ):
        answer = call("layer", *options, "--out", tmp_path / "none")
        assert answer.exit_code == 2 and said in answer.stderr, answer.output
        assert not (tmp_path / "none").exists()


def test_a_hessian_whose_squares_overflow_has_a_page(tmp_path):
    options = ["--length", 4, "--d-model", 3, "--d-k", 2, "--activation", "exp", "--temperature", 1e-3]
    answer = call("layer", *options, "--out", tmp_path, "--json")
    assert answer.exit_code in (0, 1) and isinstance(answer.exception, SystemExit | None)
    assert max(block["full"] for block in json.loads(answer.stdout)["blocks"]) > 1e154


def test_interruption_keeps_the_earlier_page(tmp_path, monkeypatch):
    (tmp_path / "index.html").write_text("earlier")

    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(LayerCheck, "agreements", interrupted)
    answer = call("layer", *SMALL, "--out", tmp_path)
    assert answer.exit_code == 130
    assert "interrupted" in answer.stderr and "Traceback" not in answer.output
    assert [p.name for p in tmp_path.iterdir()] == ["index.html"]
    assert (tmp_path / "index.html").read_text() == "earlier"


def test_interruption_while_writing_leaves_no_part_of_a_page(tmp_path, monkeypatch):
    def interrupted(unfinished, target):
        raise KeyboardInterrupt

    monkeypatch.setattr("hessianlens.files.os.replace", interrupted)
    answer = call("layer", *TINY, "--out", tmp_path)
    assert answer.exit_code == 130
    assert not list(tmp_path.iterdir())


def test_disagreement_with_autograd_ends_with_exit_code_one(tmp_path, monkeypatch):
    wrong = [PartAgreement("full", 1.0, 0.1, 0.1, 0.0, "differ")]
    monkeypatch.setattr(LayerCheck, "agreements", lambda self: wrong)
    answer = call("layer", *TINY, "--out", tmp_path)
    assert answer.exit_code == 1 and "do not agree" in answer.stderr
    assert "differ" in (tmp_path / "index.html").read_text(encoding="utf-8")
