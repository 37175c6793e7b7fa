"""What an odd folder, name, path, disk or signal must not do to the program."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from hessianlab.results import FinishedCell, Measurement
from hessianlab.store import finish_run, open_store, start_run
from hessianlens.cli import app
from hessianlens.errors import InputError
from hessianlens.files import write_whole
from hessianlens.inspect.hugging_face import saved_model
from tests.hessianlab.runner.toys import ToyConfig
from tests.hessianlab.store.cells import CODE, PROVENANCE
from tests.inspect.saved_models import GPT2

SMALL = ("--set", "d_model=4", "--set", "d_ks=1,2", "--set", "lengths=5", "--set", "repeats=2")
IMPOSTORS = (
    "psutil",
    "joblib",
    "lazy_loader",
    "typer",
    "torch",
    "numpy",
    "multiprocessing",
    "pickle",
    "rich",
    "sitecustomize",
)


def call(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments)


def program(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hessianlens", *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


# --- modules in the current folder -----------------------------------------------------------------------------------


@pytest.mark.long
def test_nothing_is_imported_from_the_current_folder(tmp_path: Path) -> None:
    """Neither by the program nor by the processes it starts."""
    for name in IMPOSTORS:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'taken')!r}, 'a').write({name!r} + '\\n')\n")
    done = program(tmp_path, "reproduce", "rank_fraction", *SMALL, "--jobs", "2")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "taken").exists(), (tmp_path / "taken").read_text()


def test_the_path_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hessianlens.safe_path import forget_current_folder

    link = tmp_path / "link"
    (tmp_path / "here").mkdir()
    link.symlink_to(tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", ["", str(tmp_path / "here"), str(link), ".", str(tmp_path), *sys.path])
    forget_current_folder()
    assert sys.path[0] == str(tmp_path) and "" not in sys.path
    monkeypatch.chdir(Path(os.__file__).parent)
    before = list(sys.path)
    forget_current_folder()
    assert sys.path == before  # Python's own modules are no strangers there


# --- what is missing -------------------------------------------------------------------------------------------------

_WITHOUT = """
import runpy, sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Without())
{program}
"""
LAB = ("joblib", "threadpoolctl", "typer", "rich", "matplotlib", "jinja2")


def without(missing: tuple[str, ...], code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    source = _WITHOUT.format(missing=missing, program=code)
    return subprocess.run([sys.executable, "-c", source], cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.mark.long
def test_the_library_needs_nothing_of_the_laboratory(tmp_path: Path) -> None:
    code = """
import torch, hessianlens as hl
for name in hl.__all__:
    getattr(hl, name)
model, task = hl.models.Transformer(d_model=4, d_mlp=4, dtype=torch.float64), hl.tasks.Addition(2)
problem = hl.problem(model, task.batch(2, seed=0), task.cross_entropy)
print(hl.measure(problem, ["layer0.attn.q"], probes=2, budget=None).table.rows[0].name)
"""
    done = without((*LAB, "click", "pygments"), code, tmp_path)
    assert done.returncode == 0 and done.stdout == "layer0.attn.q\n", done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("missing", "arguments"),
    [("typer", ["--version"]), ("matplotlib", ["report"]), ("jinja2", ["report"])],
)
def test_the_command_says_what_is_missing(missing: str, arguments: list[str], tmp_path: Path) -> None:
    code = f"sys.argv[1:] = {arguments!r}\nfrom hessianlens.__main__ import main\nmain()"
    done = without((missing,), code, tmp_path)
    assert done.returncode == 2, done.stderr
    message = f"needs {missing}, which is not installed; install it with: pip install {missing}."
    assert done.stderr.strip().splitlines()[-1].endswith(message) and "Traceback" not in done.stderr


# --- names, paths and cells ------------------------------------------------------------------------------------------


def stored(path: Path, experiment: str, text: str = "text") -> None:
    rows = ({"name": text, "value": -0.5, "=head": 1},)
    with open_store(path) as store:
        number = start_run(store, experiment, "quick", ToyConfig(), CODE, PROVENANCE)
        store.put(experiment, FinishedCell({"a": 1}, Measurement(rows), 0.5), CODE, PROVENANCE)
        finish_run(store, number, experiment, [{"a": 1}], CODE)


@pytest.mark.parametrize("name", ["../escaped", "/tmp/escaped", "a/../../escaped", "..", "", "a\\b", "c:b"])
def test_an_experiment_is_no_path(name: str, tmp_path: Path) -> None:
    stored(tmp_path / "cells.sqlite", name)
    done = call("export", "--store", str(tmp_path / "cells.sqlite"), "--out", str(tmp_path / "out" / "deep"))
    assert done.exit_code == 2 and "which is no name for a file" in done.stderr
    assert [file.name for file in tmp_path.rglob("*")] == ["cells.sqlite"]


@pytest.mark.parametrize("text", ['=HYPERLINK("http://x","y")', "+1+cmd|'/c calc'!A0", "-2+3", "@SUM(A1)", "\t=1"])
def test_no_text_is_a_formula(text: str, tmp_path: Path) -> None:
    stored(tmp_path / "cells.sqlite", "toy", text)
    assert call("export", "--store", str(tmp_path / "cells.sqlite"), "--out", str(tmp_path)).exit_code == 0
    with (tmp_path / "toy.csv").open(newline="") as lines:
        (row,) = csv.DictReader(lines)
    assert row["name"] == f"'{text}" and row["value"] == "-0.5" and row["'=head"] == "1"


@pytest.mark.parametrize("folder", ["[/red]", "[bold]x", "[/]"])
def test_square_brackets_are_shown_as_they_are(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = call("layer", "--length", "2", "--d-model", "2", "--d-k", "1", "--out", f"{folder} out")
    assert done.exit_code == 0, done.output
    assert f"Page: {folder} out/index.html" in done.stdout
    Path(folder.replace("/", "") + ".txt").write_text("")
    done = call("inspect", "toy:d_model=4,d_mlp=4", "--data", f"{folder}.txt", "--probes", "1")
    assert done.exit_code == 2 and done.exception.__class__ is SystemExit


def test_far_too_many_cells_are_refused_at_once() -> None:
    done = call("reproduce", "fig3a", "--set", "repeats=2147483648", "--dry-run")
    assert done.exit_code == 2 and "cells of fig3a, expected at most 200,000" in done.stderr


# --- disks and signals -----------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits on the size of a file")
def test_a_full_disk_leaves_nothing_behind_and_what_was_there(tmp_path: Path) -> None:
    import resource

    (tmp_path / "page.html").write_text("before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError):
            write_whole(tmp_path / "page.html", b"x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"page.html": "before"}
    (tmp_path / "link").symlink_to(tmp_path / "page.html")
    write_whole(tmp_path / "link", "after")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "page.html").read_text() == "after"
    write_whole(Path(os.devnull), "anything")
    assert Path(os.devnull).is_char_device()


MODEL = ("inspect", "toy:d_model=2,d_mlp=2,digits=1", "--sequences", "1", "--probes", "1", "--blocks", "layer0.mlp.in")


@pytest.mark.skipif(sys.platform == "win32", reason="needs /dev/full")
@pytest.mark.parametrize(
    "arguments",
    [
        (*MODEL, "--data", "x" * 5000 + ".txt"),
        (*MODEL, "--out", "x" * 5000 + ".csv"),
        (*MODEL, "--out", "jsonl:/dev/full"),
        ("inspect", "./" + "x" * 5000),
        ("watch", "x" * 5000),
        ("claims", "A1", "--store", "x" * 5000),
    ],
    ids=lambda arguments: " ".join(word[:20] for word in arguments),
)
def test_what_the_system_says_of_a_file_is_one_line(arguments: tuple[str, ...]) -> None:
    done = call(*arguments)
    assert done.exit_code == 2 and done.exception.__class__ is SystemExit
    assert done.stderr.startswith("hessianlens: ") and done.stderr.count("\n") == 1


def test_a_page_under_a_name_that_is_no_text(tmp_path: Path) -> None:
    page = tmp_path / os.fsdecode(b"\xff.html")
    write_whole(page, f"repeat with --html {page}")
    assert page.read_text().endswith("?.html")


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="needs process groups")
def test_ctrl_c_while_processes_start_shows_no_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hessianlens", "reproduce", "fig3a", "--jobs", "2"]
    for wait in (0.05, 1.5):
        child = subprocess.Popen(
            command, cwd=tmp_path, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            end = time.monotonic() + 120
            while not (tmp_path / "hessianlens.sqlite").exists() and time.monotonic() < end and child.poll() is None:
                time.sleep(0.02)
            time.sleep(wait)
            os.killpg(child.pid, signal.SIGINT)
            _, told = child.communicate(timeout=60)
        finally:
            child.kill()
            child.communicate()
        assert child.returncode == 130 and "Traceback" not in told, told


IMPORTED = """
import os, signal, sys, threading
from hessianlens.program import import_torch_uninterrupted
import_torch_uninterrupted()
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    import torch
except KeyboardInterrupt:
    print("torch._C" in sys.modules, "torch.library" in sys.modules)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_ctrl_c_while_torch_is_imported_waits_for_it() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True True\n", "")


# --- models ----------------------------------------------------------------------------------------------------------


def test_a_name_on_the_hub_without_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    began = time.monotonic()
    with pytest.raises(InputError, match=r"the hub cannot be reached, and the cache .* or config:TYPE"):
        saved_model("nobody/nosuch-model-of-this-name", "auto")
    assert time.monotonic() - began < 20


def test_advice_to_trust_a_pickle_is_not_repeated(tmp_path: Path) -> None:
    from hessianlens.inspect.loading import load_model

    load_model(GPT2).model.config.save_pretrained(tmp_path)
    torch.save({"weight": subprocess.Popen}, tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match="its weights are a pickle with more than tensors in it") as caught:
        load_model(str(tmp_path))
    assert "weights_only" not in str(caught.value)
