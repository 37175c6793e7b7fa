"""The program with streams, variables and folders that it cannot count on: one line and an exit code, or it works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hessianlens.program import BROKEN_PIPE, UNWRITABLE

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs /dev/full and file descriptors")
LIGHT = (["--version"], ["--help"], ["softmax", "--help"], ["reproduce", "--list"])
"""Commands that answer without torch: by typer's echo and by rich."""
SOFTMAX = ["softmax", "2.5", "-1"]
TORCHRUN = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


def program(arguments: list[str], folder: Path, *, options: tuple[str, ...] = (), **more: Any) -> Any:
    """The program in a process of its own."""
    environment = {**os.environ, **more.pop("environment", {})}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, **more}
    command = [sys.executable, *options, "-m", "hessianlens", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, text=True, timeout=300, **streams)


# --- streams ---------------------------------------------------------------------------------------------------------


@pytest.mark.expensive
@pytest.mark.parametrize("arguments", [*LIGHT, SOFTMAX], ids=" ".join)
def test_a_full_disk_is_one_line(arguments: list[str], tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = program(arguments, tmp_path, stdout=full)
    assert done.returncode == UNWRITABLE
    assert done.stderr == (
        "hessianlens: standard output cannot be written (No space left on device); write to another disk or file.\n"
    )


@pytest.mark.expensive
@pytest.mark.parametrize("arguments", [*LIGHT, SOFTMAX], ids=" ".join)
def test_a_broken_pipe_ends_quietly(arguments: list[str], tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = program(arguments, tmp_path, stdout=writer)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (BROKEN_PIPE, "")


def test_messages_that_cannot_be_written_are_dropped(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        assert program(["softmax", "nan"], tmp_path, stderr=full).returncode == 2
        assert program(["--version"], tmp_path, stderr=full).stdout.startswith("hessianlens")


@pytest.mark.long
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_what_cannot_be_encoded_is_replaced(encoding: str, tmp_path: Path) -> None:
    done = program(SOFTMAX, tmp_path, environment={"PYTHONIOENCODING": encoding}, encoding=encoding)
    assert done.returncode == 0 and "weight" in done.stdout, done.stderr


def test_names_that_are_no_text_are_shown(tmp_path: Path) -> None:
    done = program(["export", "--store", os.fsdecode(b"\xff.sqlite")], tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr and done.stderr.startswith("hessianlens: ")


@pytest.mark.long
def test_closed_streams(tmp_path: Path) -> None:
    """A file must not get the number of a stream that the shell has closed: what is printed would go into it."""
    script = f"exec {sys.executable} -m hessianlens softmax 1 2 <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", script], cwd=tmp_path, timeout=300).returncode == 0


# --- variables and folders -------------------------------------------------------------------------------------------


def test_a_directory_that_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f"rmdir {gone}; exec {sys.executable} -m hessianlens"
    for arguments, code in (("softmax 1 2", 2), ("--version", 0)):
        gone.mkdir(exist_ok=True)
        done = subprocess.run(
            ["sh", "-c", f"{script} {arguments}"], cwd=gone, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == code and "Traceback" not in done.stderr
        assert code == 0 or done.stderr.startswith("hessianlens: the current directory cannot be found")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("WORLD_SIZE", value) for value in ("0", "-1", "two", "", "1e3", "9" * 30, "\u0662")),
        *(("RANK", value) for value in ("1", "-1", "", "x")),
        *(("MASTER_PORT", value) for value in ("0", "65536", "http")),
        ("LOCAL_RANK", "first"),
    ],
)
def test_variables_of_torchrun_that_cannot_be_true(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from typer.testing import CliRunner

    from hessianlens.cli import app

    for variable, given in {**TORCHRUN, name: value}.items():
        monkeypatch.setenv(variable, given)
    for command in (["inspect", "toy:d_model=4"], SOFTMAX):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 2 and done.exception.__class__ is SystemExit
        assert done.stderr.startswith(f"hessianlens: {name}: got {value!r}, expected a whole number from ")


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "environment"),
    [
        (("-W", "error"), {}),
        ((), {"PYTHONWARNINGS": "error"}),
        ((), {"MPLBACKEND": "nosuch"}),
        ((), {"HOME": "/nonexistent", "TMPDIR": "/nonexistent", "MPLCONFIGDIR": "/nonexistent/matplotlib"}),
        ((), {"COLUMNS": "abc", "LINES": "-1", "LC_ALL": "nosuch.encoding"}),
    ],
    ids=str,
)
def test_a_page_is_written_all_the_same(options: tuple[str, ...], environment: dict[str, str], tmp_path: Path) -> None:
    """It takes torch and matplotlib, which warn, and look for folders of their own."""
    small = ["layer", "--length", "2", "--d-model", "2", "--d-k", "1", "--out", "page"]
    done = program(small, tmp_path, options=options, environment=environment)
    assert done.returncode == 0 and (tmp_path / "page" / "index.html").exists(), done.stderr
