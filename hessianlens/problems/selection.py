"""How blocks are asked for: by name, glob or regular expression; free of torch, so that refusals are quick."""

from __future__ import annotations

import fnmatch
import re

from hessianlens.errors import InputError


def matches(name: str, pattern: str) -> bool:
    """Whether a block name matches a name, a glob or, after ``re:``, a regular expression.

    >>> matches("layer0.attn.q", "layer*.attn.*"), matches("layer0.attn.q", "re:layer[0-9]+.mlp.*")
    (True, False)
    """
    if pattern.startswith("re:"):
        check_pattern(pattern)
        return re.fullmatch(pattern[3:], name) is not None
    return fnmatch.fnmatchcase(name, pattern)


def check_pattern(pattern: str) -> None:
    """What stands after ``re:`` is a regular expression."""
    if pattern.startswith("re:"):
        try:
            re.compile(pattern[3:])
        except re.error as error:
            raise InputError(f"blocks: {pattern!r} is not a regular expression ({error}).") from error
