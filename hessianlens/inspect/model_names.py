"""Names of models on the command line: a toy, a configuration with random weights, or a saved model; without torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from hessianlens.errors import InputError, check_choice, check_number, check_seed, check_whole, expect, suggest_names
from hessianlens.models.arguments import (
    MLP_ACTIVATION_NAMES,
    QUERY_KEY,
    check_norm,
    head_width,
)
from hessianlens.notation import ACTIVATION_NAMES

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
        raise InputError(f"model: {complaint}; {suggest_names(name, names, 20)}")


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


HEADS = {
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "seq2seq-lm": "AutoModelForSeq2SeqLM",
    "sequence-classification": "AutoModelForSequenceClassification",
    "image-classification": "AutoModelForImageClassification",
    "encoder": "AutoModel",
}
"""What a model predicts, and the class that loads it."""


def _true_or_false(name: str, value: Value) -> None:
    expect(isinstance(value, bool), f"{name}: got {value!r}, expected true or false.")


def _or_none(check: Callable[..., object]) -> Callable[..., object]:
    return lambda name, value: None if value is None else check(name, value)


TOY_CHECKS: dict[str, Callable[..., object]] = {
    **dict.fromkeys(("layers", "d_model", "heads", "digits"), check_whole),
    **dict.fromkeys(("d_mlp", "vocab", "context", "d_head"), _or_none(check_whole)),
    **dict.fromkeys(("causal", "mlp", "attention_bias"), _true_or_false),
    "attention": partial(check_choice, choices=ACTIVATION_NAMES),
    "query_key": partial(check_choice, choices=QUERY_KEY),
    "mlp_activation": partial(check_choice, choices=MLP_ACTIVATION_NAMES),
    "norm": lambda _, value: check_norm(value),
    "seed": lambda _, value: check_seed(value),
    "residual_scale": check_number,
    "temperature": partial(check_number, lowest=0.0, strictly=True),
    "init_scale": partial(check_number, lowest=0.0),
    "embedding_std": _or_none(partial(check_number, lowest=0.0)),
}
"""By argument of `hessianlens.models.Transformer`, and for the digits of its task, the check of a given value."""


def check_toy(options: Mapping[str, Value]) -> None:
    """Every option is one of the toy's, with a value that the model would take; torch is not needed to tell.

    >>> check_toy({"layers": 2, "norm": "pre", "digits": 3})
    >>> check_toy({"layer": 2})
    Traceback (most recent call last):
    ...
    hessianlens.errors.InputError: model: toy has no option 'layer'; did you mean layers?
    """
    check_options("toy", options, TOY_CHECKS)
    for name, value in options.items():
        TOY_CHECKS[name](name, value)
    width, heads = options.get("d_model", 128), options.get("heads", 1)
    if options.get("d_head") is None and isinstance(width, int) and isinstance(heads, int):
        head_width(width, heads)
