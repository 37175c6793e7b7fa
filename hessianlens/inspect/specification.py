"""How a model is named on the command line: a toy, a configuration with random weights, or a saved model."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hessianlens.errors import InputError, expect, meant

Value = int | float | bool | str | None
_WORDS: dict[str, Value] = {"true": True, "false": False, "none": None, "null": None}


@dataclass(frozen=True)
class Specification:
    """A model by name.

    Attributes:
        kind: "toy", "config" (random weights) or "saved" (a folder or a name on the hub).
        name: The type, path or name; empty for a toy.
        options: What to change, by name.
    """

    kind: str
    name: str
    options: dict[str, Value] = field(default_factory=dict)


def parse_specification(text: str) -> Specification:
    """What a name says.

    >>> parse_specification("toy:layers=2,norm=pre").options
    {'layers': 2, 'norm': 'pre'}
    >>> parse_specification("config:gpt2?n_layer=2&n_embd=64")
    Specification(kind='config', name='gpt2', options={'n_layer': 2, 'n_embd': 64})
    >>> parse_specification("openai-community/gpt2").kind, parse_specification("small/config.json").kind
    ('saved', 'config')
    """
    expect(bool(text.strip()), "model: got an empty name, expected a folder, a name, 'config:...' or 'toy:...'.")
    head, _, rest = text.partition(":")
    if head == "toy":
        return Specification("toy", "", _options(rest, ","))
    if head == "config":
        name, _, query = rest.partition("?")
        expect(
            bool(name), f"model: got {text!r}, expected a type or file behind 'config:', e.g. config:gpt2?n_layer=2."
        )
        return Specification("config", name, _options(query, "&"))
    if Path(text).suffix == ".json":
        return Specification("config", text)
    return Specification("saved", text)


def check_there(specification: Specification) -> None:
    """What must be on this machine is there: a folder that is named as one, a file with a configuration."""
    name = specification.name
    if specification.kind == "saved":
        expect(
            not name.startswith((".", "/", "~")) or Path(name).is_dir(),
            f"model: got {name!r}, but there is no such folder; expected a folder with a config.json, a name on the "
            "hub, 'config:...' or 'toy:...'.",
        )
    elif Path(name).suffix == ".json":
        stated_config(Path(name))


def stated_config(path: Path) -> dict[str, Any]:
    """What a file with a configuration says."""
    expect(path.is_file(), f"model: got '{path}', but there is no such file; expected a config.json.")
    try:
        stated = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"model: '{path}' cannot be read ({error.strerror}); expected a config.json.") from error
    except ValueError as error:
        raise InputError(f"model: '{path}' is not JSON ({error}); expected a config.json.") from error
    expect(isinstance(stated, dict), f"model: '{path}' holds no object, expected a config.json with a model_type.")
    return stated


def check_options(owner: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Every option is one that its owner has."""
    names = list(known)
    for name in given:
        check_known(f"{owner} has no option {name!r}", name, names)


def check_known(complaint: str, name: str, known: Iterable[str]) -> None:
    """A name is among the known ones; if not, the complaint goes on with what may have been meant."""
    names = sorted(known)
    if name not in names:
        raise InputError(f"model: {complaint}; {meant(name, names, 20)}")


def _options(text: str, separator: str) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for item in filter(None, text.split(separator)):
        name, equals, value = item.partition("=")
        expect(
            bool(name.strip()) and bool(equals),
            f"model: got the option {item!r}, expected name=value, several with {separator!r} between them.",
        )
        found[name.strip()] = _value(value.strip())
    return found


def _value(text: str) -> Value:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
