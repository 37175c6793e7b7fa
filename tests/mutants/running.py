"""A copy of the package in which one mutant at a time lives, and the tests that are run against it.

Tests are collected once, from the copy as it is. Every mutant is a fork of that process: the functions that its edit
changes get their new code there, wherever they are referred to, and its file is changed for whatever is imported later.
"""

from __future__ import annotations

import gc
import inspect
import json
import os
import resource
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from tests.mutants.mutants import Mutant

Edit = tuple[CodeType, CodeType]
"""A function's code as it was and as it is."""
PACKAGES, OTHERS = ("hessianlens", "hessianlab"), ("tests", "conftest.py", "pyproject.toml")


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
        for name in (*PACKAGES, *OTHERS):
            if (root / name).is_dir():
                shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(root / name, folder / name)

    def places(self, code: str) -> list[Path]:
        """The files in which a snippet occurs, one entry for every time."""
        found = []
        for path in sorted(path for package in PACKAGES for path in (self.folder / package).rglob("*.py")):
            found += [path] * path.read_text(encoding="utf-8").count(code)
        return found

    def run(
        self,
        mutants: Sequence[Mutant],
        tests: Callable[[Mutant], Sequence[str]],
        seconds: int,
        told: Callable[[Mutant, Outcome], None],
    ) -> None:
        """Run mutants one after the other, each up to the first test that fails. Ends in the folder of the copy.

        Args:
            mutants: The mutants.
            tests: From a mutant to the files or folders of its tests, in the order in which they are run.
            seconds: The most time of one core for one of them.
            told: Is called with every outcome.
        """
        os.chdir(self.folder)
        os.environ["PYTHONPATH"] = str(self.folder)
        sys.path[:] = [str(self.folder), *(place for place in sys.path if place)]
        for name in [name for name in sys.modules if name.split(".")[0] in (*PACKAGES, "tests", "conftest")]:
            del sys.modules[name]
        every = dict.fromkeys(test for mutant in mutants for test in tests(mutant))
        marked = "not long and not browser"
        # Without those of pyproject.toml, of which some are the terminal's.
        options = ["-o", "addopts=", "-x", "-s", "-m", marked, "-p", "no:cacheprovider", "-p", "no:terminal"]
        code = pytest.main([*options, *every], plugins=[_Forks(self, mutants, tests, seconds, told)])
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            raise RuntimeError(f"the tests could not be collected: pytest's exit code {int(code)}")


class _Forks:
    """A plugin of pytest that runs the collected tests in one process per mutant."""

    def __init__(self, copy: Copy, mutants: Sequence[Mutant], tests: Any, seconds: int, told: Any) -> None:
        self.copy, self.mutants, self.tests, self.seconds, self.told = copy, mutants, tests, seconds, told
        self.killer: str | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for mutant in self.mutants:
            self.told(mutant, self._outcome(session, mutant))
        return True

    def _outcome(self, session: pytest.Session, mutant: Mutant) -> Outcome:
        (path,) = self.copy.places(mutant.code)
        report, output = (self.copy.folder / name for name in ("outcome.json", "output.txt"))
        report.unlink(missing_ok=True)
        before = path.read_text(encoding="utf-8")
        after = before.replace(mutant.code, mutant.wrong)
        edits = list(_edits(*(compile(text, str(path), "exec", dont_inherit=True) for text in (before, after))))
        if not edits:
            raise RuntimeError(f"{mutant.name}: its edit changes no function")
        path.write_text(after, encoding="utf-8")
        try:
            child = os.fork()
            if not child:
                self._run(session, mutant, edits, report, output)
            _, status, used = os.wait4(child, 0)
        finally:
            path.write_text(before, encoding="utf-8")
        spent = used.ru_utime + used.ru_stime
        if report.exists():
            return Outcome(json.loads(report.read_text(encoding="utf-8"))["killer"], spent)
        if os.WIFSIGNALED(status):
            return Outcome("time limit", spent)
        raise RuntimeError(f"{mutant.name}: its tests did not run:\n{output.read_text(encoding='utf-8')[-3000:]}")

    def _run(
        self,
        session: pytest.Session,
        mutant: Mutant,
        edits: list[Edit],
        report: Path,
        output: Path,
    ) -> None:
        """In a process of its own: leaves the killer in a file, and never returns."""
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (self.seconds, self.seconds))
            written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(written, 1)
            os.dup2(written, 2)
            _implant(edits)
            files = self.tests(mutant)
            session.items = [item for file in files for item in session.items if item.nodeid.startswith(file)]
            assert session.items, f"no tests in {files}"
            for place, item in enumerate(session.items):
                following = session.items[place + 1] if place + 1 < len(session.items) else None
                session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if self.killer is not None:
                    break
            report.write_text(json.dumps({"killer": self.killer}), encoding="utf-8")
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and self.killer is None:
            self.killer = report.nodeid.split("::")[0]


def _edits(old: CodeType, new: CodeType) -> Iterator[Edit]:
    """The functions that differ, as they were and as they are; what is inside of a function goes with it."""
    if old == new:
        return
    if old.co_flags & inspect.CO_OPTIMIZED:
        yield old, new
        return
    pairs = ([one for one in code.co_consts if isinstance(one, CodeType)] for code in (old, new))
    for before, after in zip(*pairs, strict=True):
        yield from _edits(before, after)


def _implant(edits: list[Edit]) -> None:
    """Give every function that is edited its new code, wherever it is referred to."""
    by_name = {old.co_name: [pair for pair in edits if pair[0].co_name == old.co_name] for old, _ in edits}
    for function in [one for one in gc.get_objects() if type(one) is FunctionType]:
        for old, new in by_name.get(function.__code__.co_name, ()):
            if function.__code__ == old:
                function.__code__ = new
