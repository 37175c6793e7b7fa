"""Amounts of memory and of time, and numbers of things, read and written as people do."""

from __future__ import annotations

import math
import re

from hessianlens.errors import InputError, expect

_BYTES = {"": 1, "b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def readable(size: float) -> str:
    """A size in the unit a person would use.

    >>> readable(3 * 2**30)
    '3.0 GiB'
    """
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def parse_size(size: str | float, name: str = "max_memory") -> float:
    """Bytes from a number or a text.

    >>> parse_size("1.5 GiB") == 1.5 * 2**30, parse_size("200MB"), parse_size(1000)
    (True, 200000000.0, 1000.0)
    """
    return _parsed(size, name, _BYTES, "a number of bytes or a size such as '2 GiB' or '500 MB'")


def number_of(amount: float, noun: str, form: str = "", *, plural: str = "") -> str:
    """How many of a thing.

    Args:
        amount: How many.
        noun: What one of them is called.
        form: Format of the number, such as ``","``.
        plural: What several are called; default: the noun with an s.

    >>> number_of(1, "block"), number_of(0, "block"), number_of(4000, "HVP", ",")
    ('1 block', '0 blocks', '4,000 HVPs')
    >>> number_of(2, "batch", plural="batches")
    '2 batches'
    """
    number = format(amount, form)
    return f"{number} {noun if number == '1' else plural or f'{noun}s'}"


def readable_time(seconds: float) -> str:
    """A duration in the unit a person would use.

    >>> readable_time(3.14159), readable_time(90), readable_time(1500), readable_time(1e4)
    ('3.1 s', '90 s', '25 min', '2.8 h')
    """
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def parse_time(duration: str | float, name: str = "budget") -> float:
    """Seconds from a number or a text.

    >>> parse_time("5m"), parse_time("90"), parse_time("1.5h"), parse_time(300)
    (300.0, 90.0, 5400.0, 300.0)
    """
    return _parsed(duration, name, _SECONDS, "a number of seconds or a time such as '90s', '5m' or '1h'")


def _parsed(given: str | float, name: str, units: dict[str, float], wanted: str) -> float:
    """A positive, finite amount: a number in the smallest unit, or a text with a unit behind it."""
    if isinstance(given, bool) or not isinstance(given, (int, float, str)):
        raise InputError(f"{name}: got {type(given).__name__}, expected {wanted}.")
    if isinstance(given, str):
        found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([a-zA-Z]*)\s*", given)
        if found is None or found.group(2).lower() not in units:
            raise InputError(f"{name}: got {given!r}, expected {wanted}.")
        given = float(found.group(1)) * units[found.group(2).lower()]
    expect(math.isfinite(given) and given > 0, f"{name}: got {given}, expected {wanted}, above zero.")
    return float(given)
