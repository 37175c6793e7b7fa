"""How a reader repeats a result: the command, and the settings behind it in words."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from hessianlab.experiments.registry import STUDIES, STUDY, registered
from hessianlab.results import Result


def command(result: Result) -> str:
    """The command that computes this result.

    A changed configuration is written as the changes to the preset that needs the fewest.
    """
    experiment = registered(result.experiment)
    changes = {name: _changes(dataclasses.asdict(config), result.config) for name, config in experiment.presets.items()}
    preset = result.preset if result.preset in changes else min(changes, key=lambda name: len(changes[name]))
    options = "".join(f" --set {name}={value}" for name, value in changes[preset].items())
    name = result.experiment
    called = f"study {name.removeprefix(STUDY)}" if name in STUDIES else f"reproduce {name}"
    return f"hessianlens {called} --preset {preset}{options}"


def _changes(before: Mapping[str, Any], after: Mapping[str, Any], inside: str = "") -> dict[str, str]:
    """Fields with another value; one that this version does not know cannot be set and is left out."""
    found: dict[str, str] = {}
    for name, value in after.items():
        if name not in before:
            continue
        if isinstance(value, Mapping):
            found |= _changes(before[name], value, f"{inside}{name}.")
        elif value != before[name]:
            found[inside + name] = _text(value)
    return found


def settings(result: Result) -> dict[str, str]:
    """Every field of the configuration in words."""
    return {name.replace("_", " "): _text(value) for name, value in result.config.items()}


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{name} {_text(part)}" for name, part in value.items())
    if isinstance(value, tuple | list):
        nested = any(isinstance(part, tuple | list) for part in value)
        return ("; " if nested else ",").join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
