"""A copy of the package in which one mutant at a time lives, and the tests that are run against it."""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mutants.mutants import Mutant

PACKAGE, KEPT = "hessianlens", ("tests", "conftest.py", "pyproject.toml")
HEAVY = (
    "torch",
    "torch._dynamo",
    "torch.onnx",
    "numpy",
    "scipy.special",
    "scipy.sparse.linalg",
    "curvlinops",
    "opt_einsum",
)
"""Imported once, before the first mutant: every mutant is a fork of this process."""


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant.

    Attributes:
        killer: The file of the first test that failed, "time limit", or None if the mutant survived.
        seconds: Time of one core that it took.
    """

    killer: str | None
    seconds: float


class Copy:
    """A copy of the package and its tests.

    Args:
        root: The repository.
        folder: An empty folder.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        without = shutil.ignore_patterns("__pycache__")
        for name in (PACKAGE, *KEPT):
            if (root / name).is_dir():
                shutil.copytree(root / name, folder / name, ignore=without)
            else:
                shutil.copy(root / name, folder / name)

    def places(self, code: str) -> list[Path]:
        """The files in which a snippet occurs, one entry for every time."""
        found = []
        for path in sorted((self.folder / PACKAGE).rglob("*.py")):
            found += [path.relative_to(self.folder)] * path.read_text(encoding="utf-8").count(code)
        return found

    def run(self, mutant: Mutant, tests: Sequence[str], seconds: int) -> Outcome:
        """Run tests against a mutant, up to the first that fails.

        Args:
            mutant: The edit.
            tests: Files or folders of tests.
            seconds: The most time of one core that they may take.
        """
        (place,) = self.places(mutant.code)
        path, start = self.folder / place, time.process_time()
        before = path.read_text(encoding="utf-8")
        path.write_text(before.replace(mutant.code, mutant.wrong), encoding="utf-8")
        compile(path.read_text(encoding="utf-8"), str(path), "exec")
        for module in HEAVY:
            __import__(module)
        report = self.folder / "outcome.json"
        report.unlink(missing_ok=True)
        try:
            child = os.fork()
            if not child:
                self._run_tests(tests, seconds, report)
            _, status, used = os.wait4(child, 0)
        finally:
            path.write_text(before, encoding="utf-8")
        spent = used.ru_utime + used.ru_stime + time.process_time() - start
        if report.exists():
            return Outcome(json.loads(report.read_text(encoding="utf-8"))["killer"], spent)
        if os.WIFSIGNALED(status):
            return Outcome("time limit", spent)
        raise RuntimeError(f"tests did not run:\n{(self.folder / 'output.txt').read_text(encoding='utf-8')[-3000:]}")

    def _run_tests(self, tests: Sequence[str], seconds: int, report: Path) -> None:
        """In a process of its own: leaves the killer in a file, and never returns."""
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            os.chdir(self.folder)
            os.environ["PYTHONPATH"] = str(self.folder)
            sys.path[:] = [str(self.folder), *(place for place in sys.path if place)]
            for name in [name for name in sys.modules if name.split(".")[0] in (PACKAGE, "tests", "conftest")]:
                del sys.modules[name]
            output = os.open(self.folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            import pytest

            witness = _Witness()
            options = ["-x", "-q", "-m", "not slow and not browser", "-p", "no:cacheprovider", "-p", "no:xdist"]
            code = pytest.main([*options, *tests], plugins=[witness])
            killer = witness.killer or (None if code == 0 else f"pytest's exit code {int(code)}")
            report.write_text(json.dumps({"killer": killer}), encoding="utf-8")
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)


class _Witness:
    """Sees the first failure: of a test, or of a file that could not be collected."""

    def __init__(self) -> None:
        self.killer: str | None = None

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._see(report)

    def pytest_collectreport(self, report: Any) -> None:
        self._see(report)

    def _see(self, report: Any) -> None:
        if report.failed and self.killer is None:
            self.killer = report.nodeid.split("::")[0]
