"""Which code measures: a digest of every source file that can change a number, and the versions it runs on."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hessianlens

LABORATORY = Path(__file__).resolve().parents[1]
LIBRARY = Path(hessianlens.__file__).resolve().parent

_DEPENDENCIES = ("torch", "numpy")

_WITHOUT_NUMBERS = {
    LIBRARY.name: ("cli", "explorer"),
    LABORATORY.name: (
        "claims",
        "cli",
        "experiments/registry.py",
        "figures/presentation",
        "growth/comparison.py",
        "growth/drawing.py",
        "growth/exponents.py",
        "growth/layout.py",
        "growth/panel.py",
        "growth/reference.py",
        "growth/series.py",
        "pages.py",
        "plots",
        "presentations.py",
        "report",
        "runner",
        "store",
        "studies/presentation",
    ),
}
"""Parts of each package, as patterns, that only call, store, read or draw what a cell measures."""

_TOPICS = LABORATORY / "claims/topics"
"""Modules apart from each other, each known by a digest among the parameters of its own cells."""


@dataclass(frozen=True)
class Code:
    """What two cells must share, beside their parameters, to be the same measurement.

    Attributes:
        digest: Of the source files.
        libraries: Versions, e.g. "numpy 2.4.6, torch 2.13.0".
    """

    digest: str
    libraries: str

    def __str__(self) -> str:
        return f"digest {self.digest[:12]}, {self.libraries}"


def code_of(measure: Callable[..., Any]) -> Code:
    """The code behind a cell function: library and laboratory, and the function's own file if it lies elsewhere.

    A function in a part of a package that is otherwise left out, e.g. a claim, takes that part with it.

    >>> from hessianlens.attention import attention_entropy
    >>> print(code_of(attention_entropy))
    digest ..., numpy ..., torch ...
    """
    digest = package_digest()
    own = _own_files(_source_file(measure))
    if own:
        digest = hashlib.sha256(b"".join([digest.encode(), *(path.read_bytes() for path in own)])).hexdigest()
    return Code(digest, _libraries())


def _own_files(source: Path | None) -> list[Path]:
    """Files of a function's code that the digest of the packages does not cover."""
    if source is None:
        return []
    package = next((package for package in (LIBRARY, LABORATORY) if package in source.parents), None)
    if package is None:
        return [source]
    parts = [part for part in _left_out(package) if part in source.parents]
    return sorted(path for part in parts for path in part.rglob("*.py") if _TOPICS not in path.parents)


@functools.lru_cache(maxsize=1)
def package_digest(packages: tuple[Path, ...] = (LIBRARY, LABORATORY)) -> str:
    """SHA-256 over names and contents of the files that can change a number.

    They are read once per process: what a process has imported stays as it was then.
    """
    digest = hashlib.sha256()
    for package in packages:
        for path in sorted(measuring_files(package)):
            digest.update(path.relative_to(package.parent).as_posix().encode() + b"\0")
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def measuring_files(package: Path) -> Iterator[Path]:
    """The source files of a package that can change a number."""
    left_out = _left_out(package)
    for path in package.rglob("*.py"):
        if path not in left_out and left_out.isdisjoint(path.parents):
            yield path


def _left_out(package: Path) -> set[Path]:
    return {part for pattern in _WITHOUT_NUMBERS[package.name] for part in package.glob(pattern)}


@functools.lru_cache(maxsize=1)
def _libraries() -> str:
    from importlib import metadata

    return ", ".join(f"{name} {metadata.version(name)}" for name in sorted(_DEPENDENCIES))


def _source_file(measure: Callable[..., Any]) -> Path | None:
    function: Any = measure
    while isinstance(function, functools.partial):
        function = function.func
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        function = type(function)
    name = inspect.getsourcefile(inspect.unwrap(function))
    return None if name is None else Path(name).resolve()
