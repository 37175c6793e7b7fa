"""Which claims to test and which entries to show; without torch."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hessianlab.claims.definition import DOCUMENTS
from hessianlab.claims.finding import Verdict
from hessianlab.claims.index import claim_topics, known_ids
from hessianlens.errors import InputError, check_choice

if TYPE_CHECKING:
    from hessianlab.claims.entry import Entry


def selected_ids(ids: Sequence[str] = (), document: str | None = None, topic: str | None = None) -> list[str]:
    """These ids (all without any), of one document, of one topic.

    >>> selected_ids(document="c", topic="softmax_division")
    ['C8', 'C9', 'C10', 'C26', 'C27']
    """
    topics = claim_topics()
    chosen = known_ids(ids, topics) if ids else list(topics)
    if document is not None:
        check_choice("document", document.upper(), DOCUMENTS)
        chosen = [id for id in chosen if id[0] == document.upper()]
    if topic is not None:
        name = topic.lower().replace("_", " ")
        _check_topic(name, set(topics.values()))
        chosen = [id for id in chosen if topics[id] == name]
    if not chosen:
        raise InputError("claims: got filters that leave none; expected at least one claim. Drop a filter.")
    return chosen


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


def _check_topic(name: str, topics: Iterable[str]) -> None:
    known = sorted(topics)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3) or known
        raise InputError(f"topic: got {name!r}, expected one such as {', '.join(map(repr, near))}.")
