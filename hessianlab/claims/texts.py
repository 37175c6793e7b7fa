"""What is said about the claims of a topic: one section each in the topic's text, and no code.

Lines that belong to a field are indented; ``${name}`` stands for a field of the section or of ``[DEFAULT]``.
"""

from __future__ import annotations

import configparser
import functools
from pathlib import Path

from hessianlab.claims.definition import Claim, TopicTest
from hessianlab.claims.finding import Verdict
from hessianlens.errors import InputError, expect

TEXTS = Path(__file__).parent / "texts"

_WORDS = ("source", "statement", "method", "condition", "correction", "reason", "chapter")
_KNOWN = (*_WORDS, "central", "verdict", "shared")


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
    return Claim(
        id=id,
        topic=topic,
        **words,
        central=fields.get("central") == "yes",
        unmeasured=Verdict(typed) if typed else None,
        test=None if typed else TopicTest(topic, id),
    )
