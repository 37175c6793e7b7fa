"""How many cells a configuration has, told before they are made: a slip of the hand would fill the memory with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from hessianlab.experiments.experiment import Experiment
from hessianlens.errors import InputError

MOST_CELLS = 200_000
"""A plan with more is refused: they would take a gigabyte before the first is measured."""

_LARGE = 100
"""Fields below this are left as they are, and those above it become `_SMALL` in the copy."""

_SMALL = 10


def check_size(experiment: Experiment[Any], config: Any) -> None:
    """Refuse a configuration that asks for far too many cells.

    A field that asks for cells asks for as many more when it grows by one, whatever its size: so they are counted in a
    small copy of the configuration.
    """
    large = dict(_large_fields(config))
    small = _with(config, dict.fromkeys(large, _SMALL))
    base = _count(experiment, small)
    for name, value in large.items():
        more = _count(experiment, _with(small, {name: _SMALL + 1}))
        if base is not None and more is not None and (expected := base + (more - base) * (value - _SMALL)) > MOST_CELLS:
            raise InputError(
                f"{name}: got {value}, which asks for {expected:,} cells of {experiment.name}, expected at most "
                f"{MOST_CELLS:,}."
            )


def _large_fields(config: Any, prefix: str = "") -> Iterator[tuple[str, int]]:
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from _large_fields(value, f"{prefix}{field.name}.")
        elif isinstance(value, int) and not isinstance(value, bool) and value > _LARGE:
            yield f"{prefix}{field.name}", value


def _with(config: Any, values: dict[str, int]) -> Any:
    """A copy with some fields replaced; None if there is no such configuration."""
    for name, value in values.items():
        if config is None:
            return None
        first, _, rest = name.partition(".")
        inner = _with(getattr(config, first), {rest: value}) if rest else value
        try:
            config = dataclasses.replace(config, **{first: inner})
        except InputError:
            config = None
    return config


def _count(experiment: Experiment[Any], config: Any) -> int | None:
    if config is None:
        return None
    try:
        return len(experiment.cells(config))
    except InputError:
        return None
