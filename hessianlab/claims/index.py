"""Which claims there are, read off the headings of the texts: to know an id, and to refuse another, parses nothing."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Collection, Iterable
from pathlib import Path

from hessianlab.claims.definition import DOCUMENTS
from hessianlab.claims.texts import TEXTS
from hessianlens.errors import InputError

_HEADING = re.compile(r"^\[([A-Z]\d+)\]$", re.MULTILINE)


@functools.cache
def claim_topics(folder: Path = TEXTS) -> dict[str, str]:
    """The topic of every claim by its id, the paper's first, then by number; as `all_claims` has them.

    >>> claim_topics()["C8"]
    'softmax division'
    """
    found: dict[str, str] = {}
    for file in sorted(folder.glob("*.ini")):
        topic = file.stem.replace("_", " ")
        for id in _HEADING.findall(file.read_text(encoding="utf-8")):
            if id in found:
                raise InputError(f"claim {id}: given by the topics {found[id]!r} and {topic!r}; expected one of them.")
            found[id] = topic
    return {id: found[id] for id in sorted(found, key=order)}


def order(id: str) -> tuple[int, int]:
    """Sorting key of an id: document, then number.

    >>> sorted(["A2", "P10", "P9"], key=order)
    ['P9', 'P10', 'A2']
    """
    return list(DOCUMENTS).index(id[0]), int(id[1:])


def known_ids(ids: Iterable[str], known: Collection[str]) -> list[str]:
    """These ids in upper case, each once; `InputError` for one that is not among `known`."""
    for id in ids:
        if id.upper() not in known:
            raise InputError(f"claim: got {id!r}, expected an id such as {_near(id.upper(), list(known))}.")
    return list(dict.fromkeys(id.upper() for id in ids))


def _near(id: str, known: list[str]) -> str:
    """A few ids like the one that was given, and the range of each document."""
    alike = difflib.get_close_matches(id, known, n=3, cutoff=0.5)
    ranges = []
    for letter in DOCUMENTS:
        numbers = sorted(order(name)[1] for name in known if name[0] == letter)
        if numbers:
            ranges.append(f"{letter}{numbers[0]}-{letter}{numbers[-1]}")
    return f"{', '.join(alike or known[:1])} (there are {', '.join(ranges)})"
