"""The ledger in a few numbers, and the order in which a report tells it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hessianlens.lab.claims.definition import DOCUMENTS
from hessianlens.lab.claims.entry import Entry
from hessianlens.lab.claims.finding import Verdict
from hessianlens.lab.claims.index import order

CENTRAL = frozenset(
    (
        *("P19", "P20", "P22", "P24", "P25", "P26", "P27", "P29", "P30", "P31", "P33", "P34", "P35", "P37", "P39"),
        *("P42", "P44", "P45", "P46", "P49", "P50", "P51", "P53"),
        *("A5", "A6", "A9", "A10", "A11", "A12", "A13", "A14", "A16", "A18", "A19", "A20", "A24", "A25", "A28", "A30"),
        *("B4", "B6", "B7", "B9", "B13", "B14", "B18", "B19", "B20", "B21"),
        *("C1", "C3", "C7", "C10", "C11", "C14", "C17", "C18", "C22", "C23", "C27", "C28", "C30", "C35", "C43", "C44"),
    )
)
"""Claims that carry the argument of their document, in contrast to worked numbers, asides and citations."""

_WEIGHT = {Verdict.FAILS: 4, Verdict.HOLDS_IF: 3, Verdict.HOLDS: 1, Verdict.NEEDS_TRAINING: 0, Verdict.NOT_CHECKABLE: 0}


def counts(entries: Iterable[Entry]) -> dict[str, Counter[Verdict | None]]:
    """How many entries of each document have each verdict; None counts errors.

    >>> from hessianlens.lab.claims.ledger import run
    >>> from hessianlens.lab.claims.registry import find
    >>> {str(verdict): number for verdict, number in counts(run(find(["C8", "C9", "C10"])))["C"].items()}
    {'holds': 2, 'fails': 1}
    """
    by_document: dict[str, Counter[Verdict | None]] = {letter: Counter() for letter in DOCUMENTS}
    for entry in entries:
        by_document[entry.claim.document][entry.verdict] += 1
    return by_document


def surprise(entry: Entry) -> int:
    """How much a reader of the documents learns: a central claim that fails counts most, and an error more than all."""
    if entry.verdict is None:
        return 10
    return _WEIGHT[entry.verdict] * (2 if entry.claim.id in CENTRAL else 1)


def most_surprising_first(entries: Iterable[Entry]) -> list[Entry]:
    """Sorted by `surprise`; equals in the order of the documents.

    >>> from hessianlens.lab.claims.ledger import run
    >>> from hessianlens.lab.claims.registry import find
    >>> [entry.claim.id for entry in most_surprising_first(run(find(["C8", "C5", "C10"])))]
    ['C10', 'C5', 'C8']
    """
    return sorted(entries, key=lambda entry: (-surprise(entry), order(entry.claim.id)))
