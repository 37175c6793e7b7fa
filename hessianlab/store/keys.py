"""Keys: one cell of one experiment under one code, whatever the order its parameters are written in."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from hessianlab.results import Parameters
from hessianlab.store.code import Code
from hessianlens.errors import InputError


def cell_key(experiment: str, parameters: Parameters, code: Code) -> str:
    """SHA-256 of the canonical JSON of everything that decides the numbers.

    >>> code = Code("0" * 64, "torch 2")
    >>> cell_key("fig1", {"a": 1, "b": 0.1}, code) == cell_key("fig1", {"b": 0.1, "a": 1}, code)
    True
    """
    text = canonical_json([experiment, check_scalars(experiment, parameters), code.digest, code.libraries])
    return hashlib.sha256(text.encode()).hexdigest()


def question_key(experiment: str, parameters: Parameters) -> str:
    """The same without the code: what was asked, whoever has answered it."""
    text = canonical_json([experiment, check_scalars(experiment, parameters)])
    return hashlib.sha256(text.encode()).hexdigest()


def canonical_json(value: Any) -> str:
    """One text for one value: sorted names, no spaces, shortest digits that give the same float back."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def check_scalars(experiment: str, named: Parameters) -> Parameters:
    """Every value is a JSON scalar, so that it comes back from the store as what it was."""
    for name, value in named.items():
        if not (value is None or isinstance(value, (str, int, float))):
            raise InputError(
                f"{experiment}: got {type(value).__name__} for {name!r}, expected a string, a number, a truth value or "
                "None; convert it, e.g. with .item(), or keep it as an array."
            )
    return named
