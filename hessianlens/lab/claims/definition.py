"""A claim of a document and the function that tests it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hessianlens.lab.claims.finding import Finding, Verdict

DOCUMENTS = {
    "P": "What Does It Mean to Be a Transformer? (the paper)",
    "A": "Softmax versus sigmoid attention (article)",
    "B": "One query-key matrix or two (article)",
    "C": "Understanding softmax in attention (article)",
}
"""Documents by the letter their claims begin with."""


@dataclass(frozen=True)
class Claim:
    """One statement.

    Attributes:
        id: Letter of the document and number, e.g. "P25".
        source: Where the document says it.
        statement: What it says, in our words.
        method: How it is tested: quantities, seeds, shapes.
        topic: Name of the file that holds it.
        test: Measures; absent for a claim that cannot be measured here.
        unmeasured: The verdict of a claim without a test: "needs training" or "not checkable here".
        reason: Why it cannot be measured here.
    """

    id: str
    source: str
    statement: str
    method: str
    topic: str
    test: Callable[[], Finding] | None = None
    unmeasured: Verdict | None = None
    reason: str = ""

    @property
    def document(self) -> str:
        """Letter of the document."""
        return self.id[0]


def claim(id: str, source: str, statement: str, method: str) -> Callable[[Callable[[], Finding]], Claim]:
    """Decorate the function that tests a claim; its module's name is the topic."""

    def wrap(test: Callable[[], Finding]) -> Claim:
        return Claim(id, source, statement, method, _topic(test.__module__), test)

    return wrap


def unmeasured(id: str, source: str, statement: str, verdict: Verdict, reason: str, *, topic: str) -> Claim:
    """A claim that no measurement here can settle, and why."""
    return Claim(id, source, statement, "", topic, None, verdict, reason)


def _topic(module: str) -> str:
    return module.rsplit(".", 1)[-1].replace("_", " ")
