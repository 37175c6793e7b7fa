"""Every claim of the ledger, read from the texts of its topic: one section per claim, and no code.

To know an id, and to refuse another, reads headings alone. In a text, lines that belong to a field are indented;
``${name}`` stands for a field of the section or of ``[DEFAULT]``.
"""

from __future__ import annotations

import configparser
import difflib
import functools
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from hessianlab.claims.definition import DOCUMENTS, Claim, TopicTest
from hessianlab.claims.finding import Verdict
from hessianlens.errors import InputError, expect

TEXTS = Path(__file__).parent / "texts"

_WORDS = ("source", "statement", "method", "condition", "correction", "reason", "chapter", "repeats")
_KNOWN = (*_WORDS, "central", "misprint", "verdict", "shared")


@functools.cache
def topic_claims(topic: str, folder: Path = TEXTS) -> dict[str, Claim]:
    """The claims of a topic by id, in the order of its text; reads that text alone.

    >>> topic_claims("softmax division")["C8"].method
    'arithmetic'
    """
    file = folder / f"{topic.replace(' ', '_')}.ini"
    parser = configparser.ConfigParser(
        delimiters=("=",),
        comment_prefixes=(),
        interpolation=configparser.ExtendedInterpolation(),
        empty_lines_in_values=False,
    )
    try:
        parser.read_string(file.read_text(encoding="utf-8"), str(file))
        return {id: _claim(id, topic, dict(parser[id])) for id in parser.sections()}
    except configparser.Error as error:
        raise InputError(f"{file.name}: expected sections of fields; {' '.join(str(error).split())}") from error


def _claim(id: str, topic: str, fields: dict[str, str]) -> Claim:
    unknown = ", ".join(sorted(set(fields).difference(_KNOWN)))
    expect(not unknown, f"claim {id}: got the unknown field {unknown}, expected some of {', '.join(_KNOWN)}.")
    words = {name: " ".join(fields.get(name, "").split()) for name in _WORDS}
    typed = fields.get("verdict")
    needed = ("source", "statement", "reason" if typed else "method")
    missing = ", ".join(name for name in needed if not words[name])
    expect(not missing, f"claim {id}: got no {missing}, expected it in the text of {topic!r}.")
    other = words["repeats"]
    expect(
        not other or (_ID.fullmatch(other) is not None and other != id),
        f"claim {id}: repeats {other!r}, expected the id of another claim, such as P25.",
    )
    return Claim(
        id=id,
        topic=topic,
        **words,
        central=fields.get("central") == "yes",
        misprint=fields.get("misprint") == "yes",
        unmeasured=Verdict(typed) if typed else None,
        test=None if typed else TopicTest(topic, id),
    )


_ID = re.compile(r"[A-Z]\d+")
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


def all_claims() -> tuple[Claim, ...]:
    """Every claim, the paper's first, then by number.

    >>> [claim.id for claim in all_claims() if claim.document == "C"][:3]
    ['C1', 'C2', 'C3']
    """
    found = find(list(claim_topics()))
    check_repeats(found)
    return found


def check_repeats(claims: Sequence[Claim]) -> None:
    """Refuse a claim that repeats an unknown one, or one that is itself a repeat; `claims` are all there are."""
    first = {claim.id for claim in claims if not claim.repeats}
    for claim in claims:
        expect(
            not claim.repeats or claim.repeats in first,
            f"claim {claim.id}: repeats {claim.repeats}, expected a claim of the ledger that repeats none itself.",
        )


def find(ids: Sequence[str]) -> tuple[Claim, ...]:
    """The claims with these ids, in this order; upper or lower case.

    >>> [claim.topic for claim in find(["c8"])]
    ['softmax division']
    """
    topics = claim_topics()
    return tuple(topic_claims(topics[id])[id] for id in known_ids(ids, topics))
