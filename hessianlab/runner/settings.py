"""Settings written as text, `name=value`, put into the typed fields of configurations."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hessianlab.experiments.experiment import Experiment
from hessianlab.runner.plan import Plan
from hessianlens.errors import InputError, expect

_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def configure(experiments: Sequence[Experiment[Any]], preset: str, settings: Sequence[str] = ()) -> list[Plan]:
    """Plans for experiments in one preset, with settings applied wherever a configuration has such a field.

    Args:
        experiments: What to run.
        preset: "quick" or "paper".
        settings: Each ``name=value``; tuples as ``2,3,4``; a field of a field as ``grid.points=5``.
    """
    pairs = dict(_split(setting) for setting in settings)
    used: set[str] = set()
    plans = []
    for experiment in experiments:
        config = experiment.preset(preset)
        own = {name: text for name, text in pairs.items() if has_field(config, name)}
        changed = replace_fields(config, own)
        used |= own.keys()
        plans.append(Plan(experiment, changed, preset if changed == config else "custom"))
    for name in pairs.keys() - used:
        listed = sorted({field for plan in plans for field in field_names(plan.config)})
        raise InputError(f"setting: got {name!r}, which no chosen experiment has, expected one of {', '.join(listed)}.")
    return plans


def field_names(config: Any) -> list[str]:
    """Every field of a configuration; those inside another configuration with its name in front."""
    names = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        nested = dataclasses.is_dataclass(value)
        names += [f"{field.name}.{inner}" for inner in field_names(value)] if nested else [field.name]
    return names


def has_field(config: Any, name: str) -> bool:
    """Whether a configuration has a field of this name."""
    return name in field_names(config)


def replace_fields(config: Any, texts: Mapping[str, str]) -> Any:
    """A configuration with fields read from text, all at once: some are valid only together."""
    values: dict[str, Any] = {}
    inside: dict[str, dict[str, str]] = {}
    for name, text in texts.items():
        first, _, rest = name.partition(".")
        if rest:
            inside.setdefault(first, {})[rest] = text
        else:
            values[first] = parse(name, text, get_type_hints(type(config))[first])
    nested = {first: replace_fields(getattr(config, first), found) for first, found in inside.items()}
    return dataclasses.replace(config, **values, **nested)


def parse(name: str, text: str, kind: Any) -> Any:
    """Text as a value of an annotated type.

    >>> parse("layers", "2,3", tuple[int, ...]), parse("sigma", "1e-2", float), parse("causal", "yes", bool)
    ((2, 3), 0.01, True)
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _parse_union(name, text, arguments)
    if origin is tuple:
        return _parse_tuple(name, text, arguments)
    if origin is Literal:
        choices = {str(choice): choice for choice in arguments}
        expect(text in choices, f"{name}: got {text!r}, expected one of {', '.join(choices)}.")
        return choices[text]
    if kind is bool:
        expect(text.lower() in _TRUTH, f"{name}: got {text!r}, expected true or false.")
        return _TRUTH[text.lower()]
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            raise InputError(f"{name}: got {text!r}, expected {_NAMES[kind]}.") from None
    expect(kind is str, f"{name}: holds {kind}, which cannot be set from text; set it in Python.")
    return text


_NAMES: Mapping[type, str] = {int: "a whole number", float: "a number"}


def _split(setting: str) -> tuple[str, str]:
    name, equals, text = setting.partition("=")
    expect(bool(equals and name.strip()), f"setting: got {setting!r}, expected name=value, e.g. repeats=3.")
    return name.strip(), text.strip()


def _parse_union(name: str, text: str, kinds: tuple[Any, ...]) -> Any:
    if type(None) in kinds and text.lower() == "none":
        return None
    refusals = []
    for kind in kinds:
        if kind is not type(None):
            try:
                return parse(name, text, kind)
            except InputError as refusal:
                refusals.append(refusal)
    raise refusals[-1]


def _parse_tuple(name: str, text: str, kinds: tuple[Any, ...]) -> tuple[Any, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        kinds = (kinds[0],) * len(parts)
    expect(len(parts) == len(kinds), f"{name}: got {text!r}, expected {len(kinds)} values with commas between them.")
    return tuple(parse(name, part, kind) for part, kind in zip(parts, kinds, strict=True))
