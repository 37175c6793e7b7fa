"""Refuse a configuration that cannot be measured, before the first cell."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from hessianlens.errors import check_choice, expect


def check_config(
    config: Any, least: Mapping[str, int] | None = None, choices: Mapping[str, Iterable[str]] | None = None
) -> None:
    """Every list holds something, every whole number but a seed is large enough, every name is known.

    A configuration with fields `low` and `high` must have them in this order.

    Args:
        config: A dataclass.
        least: The smallest values of fields; 1 if not given.
        choices: The names that fields may hold.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Config:
    ...     repeats: int = 0
    >>> check_config(Config())
    Traceback (most recent call last):
    ...
    hessianlens.errors.InputError: repeats: got 0, expected at least 1.
    """
    for field in dataclasses.fields(config):
        given = getattr(config, field.name)
        values = given if isinstance(given, tuple) else (given,)
        expect(len(values) > 0, f"{field.name}: got no value, expected one or more.")
        for value in values:
            if "int" in str(field.type) and "seed" not in field.name:
                smallest = (least or {}).get(field.name, 1)
                expect(value >= smallest, f"{field.name}: got {value}, expected at least {smallest}.")
            if field.name in (choices or {}):
                check_choice(field.name, value, (choices or {})[field.name])
    if hasattr(config, "low") and hasattr(config, "high"):
        ends = f"{config.low:g} and {config.high:g}"
        expect(config.low < config.high, f"low, high: got {ends}, expected the lower end first.")
