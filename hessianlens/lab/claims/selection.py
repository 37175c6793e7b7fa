"""Which claims to test and which entries to show."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from hessianlens.errors import InputError, check_choice
from hessianlens.lab.claims.claim import DOCUMENTS, Claim
from hessianlens.lab.claims.entry import Entry
from hessianlens.lab.claims.finding import Verdict
from hessianlens.lab.claims.registry import all_claims, find


def select(ids: Sequence[str] = (), document: str | None = None, topic: str | None = None) -> tuple[Claim, ...]:
    """The claims with these ids (all without any), of one document, of one topic.

    >>> [claim.id for claim in select(document="c", topic="softmax_division")]
    ['C8', 'C9', 'C10', 'C26', 'C27']
    """
    claims = find(ids) if ids else all_claims()
    if document is not None:
        check_choice("document", document.upper(), DOCUMENTS)
        claims = tuple(claim for claim in claims if claim.document == document.upper())
    if topic is not None:
        name = topic.lower().replace("_", " ")
        _check_topic(name)
        claims = tuple(claim for claim in claims if claim.topic == name)
    if not claims:
        raise InputError("claims: got filters that leave none; expected at least one claim. Drop a filter.")
    return claims


def with_verdict(entries: Iterable[Entry], verdict: str | None) -> tuple[Entry, ...]:
    """The entries with this verdict, or all.

    >>> with_verdict((), "fails")
    ()
    """
    if verdict is None:
        return tuple(entries)
    name = verdict.lower().replace("_", " ").replace("-", " ")
    check_choice("verdict", name, [str(known) for known in Verdict])
    return tuple(entry for entry in entries if str(entry.verdict) == name)


def _check_topic(name: str) -> None:
    known = sorted({claim.topic for claim in all_claims()})
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3) or known
        raise InputError(f"topic: got {name!r}, expected one such as {', '.join(map(repr, near))}.")
