"""Which code measures: a digest of every source file that can change a number, and the versions it runs on."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[2]

_LIBRARIES = ("torch", "numpy")

_NO_NUMBERS = (
    "cli",
    "explorer",
    "lab/claims",
    "lab/experiments/registry.py",
    "lab/figures/*/findings.py",
    "lab/figures/*/pictures.py",
    "lab/growth/findings",
    "lab/growth/pictures",
    "lab/layer_page",
    "lab/pages",
    "lab/plots",
    "lab/report",
    "lab/runner",
    "lab/store",
    "lab/studies/*/findings.py",
    "lab/studies/*/pictures.py",
    "lab/telling.py",
    "lab/trials/findings",
    "lab/trials/pictures",
)
"""Parts of the package, as patterns, that only call, keep, read or draw what a cell measures."""

_OWN_DIGEST = PACKAGE / "lab/claims/topics"
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
    """The code behind a cell function: this package, and the function's own file if it lies elsewhere.

    A function in a part of the package that is otherwise left out, e.g. a claim, takes that part with it.

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
    """What the digest of the package does not cover of a function's code."""
    if source is None:
        return []
    if PACKAGE not in source.parents:
        return [source]
    parts = [part for pattern in _NO_NUMBERS for part in PACKAGE.glob(pattern) if part in source.parents]
    return sorted(path for part in parts for path in part.rglob("*.py") if _OWN_DIGEST not in path.parents)


@functools.lru_cache(maxsize=1)
def package_digest(package: Path = PACKAGE) -> str:
    """SHA-256 over names and contents of the files that can change a number.

    They are read once a process: what a process has imported stays as it was then.
    """
    digest = hashlib.sha256()
    for path in sorted(measuring_files(package)):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def measuring_files(package: Path) -> Iterator[Path]:
    """The source files that can change a number."""
    left_out = {part for pattern in _NO_NUMBERS for part in package.glob(pattern)}
    for path in package.rglob("*.py"):
        if path not in left_out and left_out.isdisjoint(path.parents):
            yield path


@functools.lru_cache(maxsize=1)
def _libraries() -> str:
    from importlib import metadata

    return ", ".join(f"{name} {metadata.version(name)}" for name in sorted(_LIBRARIES))


def _source_file(measure: Callable[..., Any]) -> Path | None:
    function: Any = measure
    while isinstance(function, functools.partial):
        function = function.func
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        function = type(function)
    name = inspect.getsourcefile(inspect.unwrap(function))
    return None if name is None else Path(name).resolve()
