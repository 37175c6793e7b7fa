"""Problems whose data several processes share: one run of three processes, and what each of them says of every case."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.cases import CASES

pytestmark = pytest.mark.long

_LAST = "a_process_that_ends_is_named"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("ranks")
    done = subprocess.run(
        [sys.executable, "-m", "tests.distributed.driver", str(found)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    (found / "driver.txt").write_text(done.stdout + done.stderr)
    return found


@pytest.mark.parametrize("name", CASES)
def test_processes(folder: Path, name: str) -> None:
    for rank in range(3):
        told = folder / f"rank{rank}.json"
        assert told.exists(), (folder / "driver.txt").read_text()[-3000:]
        outcomes = json.loads(told.read_text())
        if rank == 2 and name == _LAST:  # it was killed
            assert name not in outcomes
            continue
        assert name in outcomes, f"rank {rank} did not end it:\n{(folder / 'driver.txt').read_text()[-3000:]}"
        assert not outcomes[name], f"rank {rank}: {outcomes[name]}"


def _read(folder: Path, name: str, rank: int) -> tuple[str, str, str]:
    out, err, code = ((folder / f"{name}{rank}.{kind}").read_text() for kind in ("out", "err", "code"))
    return out, err, code


def test_command_line_of_two_processes_prints_once_what_one_process_prints(folder: Path) -> None:
    alone, shared = (json.loads(_read(folder, name, 0)[0]) for name in ("alone", "shared"))
    assert _read(folder, "shared", 0)[1:] == ("", "0") and _read(folder, "shared", 1) == ("", "", "0")
    assert "5 sequences on 2 ranks: 3, 2" in shared["notes"]
    assert shared["loss_value"] == pytest.approx(alone["loss_value"], rel=1e-12)
    for one, other in zip(alone["blocks"], shared["blocks"], strict=True):
        assert one["block"] == other["block"]
        for part in ("full", "ggn", "functional"):
            assert other["norms"][part]["value"] == pytest.approx(one["norms"][part]["value"], rel=1e-9), one["block"]
    assert (folder / "table.csv").read_text().count("layer0.attn.q") == 1


def test_bad_input_is_told_once(folder: Path) -> None:
    out, err, code = _read(folder, "refused", 0)
    assert out == "" and code == "2" and "nothing.pt" in err and err.count("\n") == 1
    assert _read(folder, "refused", 1) == ("", "", "2")


def test_the_documented_script_prints_once(folder: Path) -> None:
    first, second = ((folder / f"documented{rank}.out").read_text() for rank in (0, 1))
    assert "layer1.attn.o" in first and "(exact)" in first and second == ""


def test_other_commands_refuse_several_processes(folder: Path) -> None:
    out, err, code = _read(folder, "softmax", 0)
    assert out == "" and code == "2" and "got 2 processes from torchrun, expected one" in err
    assert _read(folder, "softmax", 1) == ("", "", "2")
