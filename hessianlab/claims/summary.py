"""The ledger in a few numbers, and the order in which a report tells it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hessianlab.claims.definition import DOCUMENTS
from hessianlab.claims.entry import Entry
from hessianlab.claims.finding import Verdict
from hessianlab.claims.index import order

_WEIGHT = {Verdict.FAILS: 4, Verdict.HOLDS_IF: 3, Verdict.HOLDS: 1, Verdict.NEEDS_TRAINING: 0, Verdict.NOT_CHECKABLE: 0}


def counts(entries: Iterable[Entry]) -> dict[str, Counter[Verdict | None]]:
    """How many entries of each document have each verdict; None counts errors.

    >>> from hessianlab.claims.ledger import run
    >>> from hessianlab.claims.registry import find
    >>> {str(verdict): number for verdict, number in counts(run(find(["C8", "C9", "C10"])))["C"].items()}
    {'holds': 2, 'fails': 1}
    """
    by_document: dict[str, Counter[Verdict | None]] = {letter: Counter() for letter in DOCUMENTS}
    for entry in entries:
        by_document[entry.claim.document][entry.verdict] += 1
    return by_document


def computed(entries: Iterable[Entry]) -> list[Entry]:
    """Those whose test decided; one that leaves a claim open has measured something, and is not among them.

    >>> from hessianlab.claims.ledger import run
    >>> from hessianlab.claims.registry import find
    >>> [entry.claim.id for entry in computed(run(find(["C8", "C32"])))]
    ['C8']
    """
    return [entry for entry in entries if entry.finding is not None and entry.verdict is not Verdict.NEEDS_TRAINING]


def surprise(entry: Entry) -> int:
    """How much a reader of the documents learns: a central claim that fails counts most, and an error more than all."""
    if entry.verdict is None:
        return 10
    return _WEIGHT[entry.verdict] * (2 if entry.claim.central else 1)


def most_surprising_first(entries: Iterable[Entry]) -> list[Entry]:
    """Sorted by `surprise`; equals in the order of the documents.

    >>> from hessianlab.claims.ledger import run
    >>> from hessianlab.claims.registry import find
    >>> [entry.claim.id for entry in most_surprising_first(run(find(["C8", "C5", "C10"])))]
    ['C10', 'C5', 'C8']
    """
    return sorted(entries, key=lambda entry: (-surprise(entry), order(entry.claim.id)))
