"""Answers of the command line from a fresh interpreter in which some packages cannot be imported."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HEAVY = ("torch", "numpy", "scipy", "matplotlib", "curvlinops", "transformers", "joblib", "jinja2")

_SCRIPT = """
import contextlib, io, json, os, sys, traceback

asked = json.load(sys.stdin)
sys.modules.update(dict.fromkeys(asked["refused"]))
from hessianlens.cli import app

answers = []
for case in asked["cases"]:
    os.environ.update(case["environment"])
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            app(case["arguments"], prog_name="hessianlens")
        except SystemExit as exit:
            code = exit.code
        except BaseException:
            traceback.print_exc()
            code = 1
    for name in case["environment"]:
        del os.environ[name]
    found = [name for name in asked["looked_for"] if name in sys.modules]
    answers.append({"code": code or 0, "out": out.getvalue(), "err": err.getvalue(), "imported": found})
print(json.dumps(answers))
"""


@dataclass(frozen=True)
class Call:
    """What is asked of the command line."""

    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """What it says, and which of the packages looked for have been imported so far."""

    code: int
    out: str
    err: str
    imported: list[str]


def answers(
    calls: Sequence[Call], folder: Path, refused: Sequence[str] = HEAVY, looked_for: Sequence[str] = ()
) -> list[Answer]:
    """One answer per call, all in one interpreter started in `folder`."""
    asked: dict[str, Any] = {
        "cases": [{"arguments": list(call.arguments), "environment": dict(call.environment)} for call in calls],
        "refused": list(refused),
        "looked_for": list(looked_for),
    }
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return [Answer(**answer) for answer in json.loads(done.stdout)]
