"""`hessianlens doctor`: versions, a check that can fail, ratios."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from hessianlens import self_check
from hessianlens.cli import app

ROOT = Path(__file__).resolve().parents[2]


def _run(*words: str):
    return CliRunner().invoke(app, ["doctor", *words])


def test_it_says_what_is_installed_and_that_it_works() -> None:
    found = _run("--json")
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    assert told["versions"]["torch"] == torch.__version__.partition("+")[0] and told["device"] == "cpu"
    assert [row["ok"] for row in told["rows"] if "ok" in row] == [True] * 5
    ratios = {row["what"]: row["gradients"] for row in told["rows"] if "gradients" in row}
    assert set(ratios) == {"HVP through the graph", "HVP by a tape"} and all(ratio > 0 for ratio in ratios.values())


def test_it_says_how_to_get_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(self_check.EXTRAS, "wandb", ("no-such-package",))
    monkeypatch.setattr(self_check, "device_check", lambda device: [])
    printed = _run().stdout
    assert re.search(r"^Weights & Biases +missing: pip install 'hessianlens\[wandb\]'$", printed, re.MULTILINE)
    assert re.search(r"^memory +\S+ \w+ free of ", printed, re.MULTILINE) and "attention kernels" in printed


def test_the_extras_are_those_of_the_project() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(self_check.EXTRAS) == set(self_check.PURPOSES) == set(declared) - {"lab"}


def test_what_differs_from_the_cpu_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_check, "_times", lambda device: [])
    calls = iter(range(10**6))

    def broken(device: torch.device) -> torch.Tensor:
        raise RuntimeError("no kernel\nmore")

    monkeypatch.setitem(self_check._COMPUTED, "HVP by a tape", lambda device: torch.ones(3) * (1 + next(calls)))
    monkeypatch.setitem(self_check._COMPUTED, "closed form of a layer", broken)
    found = _run()
    assert found.exit_code == 1
    assert "HVP by a tape" in found.stdout and "DIFFERS from the CPU, by 1" in found.stdout
    assert "FAILED, RuntimeError: no kernel" in found.stdout and "more" not in found.stdout.split("FAILED")[1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_bad_input() -> None:
    found = _run("--gpu")
    assert found.exit_code == 2 and "PyTorch finds none here" in found.output
