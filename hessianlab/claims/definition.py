"""A claim of a document: what is said about it, the function that tests it, and the seeds its test draws from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, wraps
from importlib import import_module
from pathlib import Path
from typing import TypeVar

from hessianlab.claims.finding import Finding, Verdict
from hessianlens.errors import InputError

Result = TypeVar("Result")

_FIRST: ContextVar[int] = ContextVar("first_seed", default=0)
_FOUND: dict[tuple[object, int], object] = {}


def first_seed() -> int:
    """The seed that all others are counted from; 0 for the recorded verdicts."""
    return _FIRST.get()


def seeds(count: int) -> range:
    """The seeds of a measurement.

    >>> list(seeds(3))
    [0, 1, 2]
    """
    return range(first_seed(), first_seed() + count)


@contextmanager
def drawing_from(first: int) -> Iterator[None]:
    """Inside, seeds begin with `first`.

    >>> with drawing_from(700):
    ...     print(list(seeds(2)))
    [700, 701]
    """
    token = _FIRST.set(first)
    try:
        yield
    finally:
        _FIRST.reset(token)


def measured(function: Callable[[], Result]) -> Callable[[], Result]:
    """Measure once a process for all claims that use it; another first seed measures anew."""

    @wraps(function)
    def once() -> Result:
        key = (function, first_seed())
        if key not in _FOUND:
            _FOUND[key] = function()
        return _FOUND[key]  # type: ignore[return-value]

    return once


def forget() -> None:
    """Drop every measurement that is kept."""
    _FOUND.clear()


DOCUMENTS = {
    "P": "What Does It Mean to Be a Transformer? (the paper)",
    "A": "Softmax versus sigmoid attention (article)",
    "B": "One query-key matrix or two (article)",
    "C": "Understanding softmax in attention (article)",
    "D": "QK-norm, sinks, gates, latent attention and embeddings (recent practice)",
}
"""Documents by the letter their claims begin with."""

Test = Callable[[], Finding]

_TESTS: dict[str, Test] = {}


@dataclass(frozen=True)
class Claim:
    """One statement. Its words stand in the text of its topic, its test in a module of `topics`.

    Attributes:
        id: Letter of the document and number, e.g. "P25".
        topic: Name of the text that holds it.
        source: Where the document says it.
        statement: What it says, in our words.
        method: How it is tested: quantities, seeds, shapes.
        condition: Under which it is true, for "holds if"; ``{name}`` stands for a number that the test returns.
        correction: What was claimed, what is true instead; a remark if the claim holds. With numbers, too.
        misprint: Whether it is a slip of the pen, if it fails.
        unmeasured: The verdict of a claim that no measurement here can settle.
        reason: Why it has no test, and what its verdict rests on.
        central: Whether it carries the argument of its document, in contrast to worked numbers, asides and citations.
        chapter: The experiment that shows what it is about, e.g. "fig3a"; empty if there is none.
        repeats: Id of the claim that states the same fact first; empty for a fact of its own.
        test: Measures; absent for a claim with a verdict of its own.
    """

    id: str
    topic: str
    source: str
    statement: str
    method: str = ""
    condition: str = ""
    correction: str = ""
    misprint: bool = False
    unmeasured: Verdict | None = None
    reason: str = ""
    central: bool = False
    chapter: str = ""
    repeats: str = ""
    test: Test | None = None

    @property
    def document(self) -> str:
        """Letter of the document."""
        return self.id[0]

    def examine(self, first_seed: int = 0) -> Finding:
        """Test it on draws from this seed on; the finding has the claim's words, numbers filled in."""
        if self.test is None:
            raise InputError(f"claim {self.id}: got one without a test ({self.unmeasured}), expected one to measure.")
        with drawing_from(first_seed):
            return self.worded(self.test())

    def worded(self, finding: Finding) -> Finding:
        """The finding with this claim's condition and correction."""
        return finding.worded(self.condition, self.correction, self.misprint)


def claim(id: str) -> Callable[[Test], Test]:
    """Register the function that tests a claim.

    Args:
        id: Has a section of this name in the text of the topic.
    """

    def register(test: Test) -> Test:
        other = _TESTS.setdefault(id, test)
        if (other.__module__, other.__qualname__) != (test.__module__, test.__qualname__):
            raise InputError(
                f"claim {id}: tested by {other.__module__}.{other.__qualname__} and by "
                f"{test.__module__}.{test.__qualname__}; expected one of them."
            )
        _TESTS[id] = test
        return test

    return register


TOPICS = Path(__file__).parent / "topics"

_REGISTERED = re.compile(r'^@claim\("([A-Z]\d+)"\)$', re.MULTILINE)


@cache
def claim_files() -> dict[str, Path]:
    """The file of `topics` that tests a claim, by id; files are read for it, and none is imported.

    >>> claim_files()["C8"].name
    'softmax_masking.py'
    """
    found = {file: _REGISTERED.findall(file.read_text(encoding="utf-8")) for file in sorted(TOPICS.glob("*.py"))}
    return {id: file for file, ids in found.items() for id in ids}


@dataclass(frozen=True)
class TopicTest:
    """The registered test of a claim; the module that has it is imported when it is called, and no other."""

    topic: str
    id: str

    def __call__(self) -> Finding:
        """Run it."""
        if self.id in claim_files():
            import_module(f"{__package__}.topics.{claim_files()[self.id].stem}")
        if self.id not in _TESTS:
            raise InputError(f'claim {self.id}: topic {self.topic!r} has no test of it; expected @claim("{self.id}").')
        return _TESTS[self.id]()
