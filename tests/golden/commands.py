"""The command line, called as ``python -m hessianlens`` is, and the titles of the pages that are written."""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import hessianlens as hl
from tests.golden.inputs import labelled, losses, randn, self_attention, toy

TINY_REPORT = ["--set", "d_model=4", "--set", "repeats=2", "--set", "points=4", "--set", "layers=1", "--jobs", "1"]
TINY_TOY = "toy:layers=1,d_model=4"

CALLS = {
    "--version": ["--version"],
    "--help": ["--help"],
    "an unknown command": ["integrate"],
    "softmax": ["softmax", "2.8", "1.2", "0.5"],
    "softmax of a word": ["softmax", "high"],
    "reproduce --list": ["reproduce", "--list"],
    "an unknown figure": ["reproduce", "fig99"],
    "an unknown setting": ["reproduce", "fig8", "--set", "colour=red"],
    "reproduce --dry-run": ["reproduce", "fig8", "--dry-run", *TINY_REPORT],
    "study --list": ["study", "--list"],
    "an unknown study": ["study", "weather"],
    "an unknown claim": ["claims", "Z99"],
    "inspect": ["inspect", TINY_TOY, "--probes", "2", "--blocks", "*.attn.q"],
    "inspect --dry-run": ["inspect", TINY_TOY, "--dry-run"],
    "inspect a toy with an unknown option": ["inspect", "toy:colour=red"],
    "inspect what is not there": ["inspect", "./nowhere"],
    "inspect unknown blocks": ["inspect", TINY_TOY, "--blocks", "layer7.*"],
    "watch what is not there": ["watch", "./nowhere"],
    "an unknown activation": ["layer", "--activation", "square", "--length", "2", "--d-model", "2", "--d-k", "1"],
    "a report of an unknown store": ["report", "--no-run", "--store", "missing.sqlite"],
}
"""By name, the arguments of a call."""


def call(*arguments: str) -> int:
    """The exit code of ``python -m hessianlens`` with some arguments, in this process."""
    before = sys.argv, list(sys.path)
    sys.argv = ["hessianlens", *arguments]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            runpy.run_module("hessianlens", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        sys.argv, sys.path[:] = before
    return 0


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """An empty folder, in which the calls are made."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


def exit_codes() -> dict[str, Any]:
    with temporary_folder():
        return {name: call(*arguments) for name, arguments in CALLS.items()}


def page_titles() -> dict[str, Any]:
    """Titles of a layer's page, a model's, a run's and the report's."""
    X = randn(5, 4, seed=5)
    model = toy()
    problem = hl.problem(model, labelled(2), "cross_entropy")
    with temporary_folder():
        pages = {"Hessian of a layer": hl.attention_hessian(self_attention(), X, **losses(X)["square"]).page("h.html")}
        measured = hl.measure(problem, "*.attn.q", budget=None, probes=2, progress=False)
        pages["model"] = measured.page("model.html", budget=0.5, progress=False)
        monitor = hl.Monitor(problem, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), overhead=None, every=1)
        for _ in range(2):
            monitor.step()
        pages["run"] = monitor.page("run.html")
        code = call("report", "fig8", *TINY_REPORT, "--no-claims", "--out", "report")
        pages |= {"story": Path("report") / "index.html", "lab book": Path("report") / "labbook.html"}
        return {"exit code of the report": code, "titles": {name: title(page) for name, page in pages.items()}}


def title(page: Path) -> str:
    found = re.search(r"<title>(.*?)</title>", page.read_text(encoding="utf-8"), re.S)
    assert found, page
    return " ".join(found[1].split())
