"""Two records, of then and of now, compared: numbers up to rounding, reasons by their category, all else as it is.

A record is a tree of dicts. Numbers that stand together in one dict or list are compared relative to the largest of
them. The parts of one matrix, ``{"full": ..., "ggn": ..., "functional": ...}``, are sums of each other and are rounded
together: what is far below the largest number of all parts counts as zero. So does what is below the precision of the
largest number of a whole case: the rounding of a block that is zero is another on another processor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.golden.reasons import category

ROUNDING = {1e-9: 1e-13, 1e-4: 1e-6}
"""By relative tolerance, the share of the largest number of all parts of a matrix that rounding may take."""
PRECISION = {1e-9: 2**-52, 1e-4: 2**-23}
"""By relative tolerance, the precision in which a case was computed."""

Tree = Any


def differences(recorded: Tree, found: Tree, rtol: float, path: str = "", floor: float = 0.0) -> Iterator[str]:
    """One line for every difference.

    Args:
        recorded: The record of then.
        found: The record of now.
        rtol: Relative tolerance of numbers.
        path: Where in the record this is.
        floor: A difference that is rounding in any case.
    """
    if not floor:
        floor = PRECISION[rtol] * max((abs(x) for x in _numbers(recorded)), default=0.0)
    if isinstance(recorded, Mapping) and isinstance(found, Mapping):
        if "why" in recorded:
            yield from _reason(recorded, found, path)
            return
        if "full" in recorded:
            floor = max(floor, ROUNDING[rtol] * max((abs(x) for x in _numbers(recorded)), default=0.0))
        places: list[Any] = sorted({*recorded, *found}, key=str)
    elif isinstance(recorded, Sequence) and isinstance(found, Sequence) and not isinstance(recorded, str):
        if len(recorded) != len(found):
            yield f"{path}: {len(recorded)} entries recorded, now {len(found)}"
            return
        recorded, found = dict(enumerate(recorded)), dict(enumerate(found))
        places = list(recorded)
    else:
        if recorded != found:
            yield f"{path}: recorded {recorded!r}, now {found!r}"
        return
    scale = max((abs(x) for x in recorded.values() if _is_float(x) and math.isfinite(x)), default=0.0)
    for place in places:
        here = f"{path} / {place}" if path else str(place)
        if place not in recorded or place not in found:
            yield f"{here}: {'not recorded' if place not in recorded else 'recorded, but no longer there'}"
        elif _is_float(recorded[place]) and _is_float(found[place]):
            yield from _number(recorded[place], found[place], rtol * scale + floor, here)
        else:
            yield from differences(recorded[place], found[place], rtol, here, floor)


def _is_float(value: object) -> bool:
    return isinstance(value, float)


def _numbers(tree: Tree) -> Iterator[float]:
    """Every finite number of a record."""
    if isinstance(tree, float) and math.isfinite(tree):
        yield tree
    elif isinstance(tree, Mapping):
        for branch in tree.values():
            yield from _numbers(branch)
    elif isinstance(tree, Sequence) and not isinstance(tree, str):
        for branch in tree:
            yield from _numbers(branch)


def _number(recorded: float, found: float, allowed: float, path: str) -> Iterator[str]:
    same = recorded == found or (math.isnan(recorded) and math.isnan(found))
    if not same and not abs(recorded - found) <= allowed:
        yield f"{path}: recorded {recorded:.12g}, now {found:.12g} (differ by {abs(recorded - found):.2g})"


def _reason(recorded: Mapping[str, str], found: Tree, path: str) -> Iterator[str]:
    """The category is that of then; the words may be others."""
    now = found.get("why")
    if not isinstance(now, str) or category(now) != recorded["category"]:
        kind = category(now) if isinstance(now, str) else "no reason"
        yield f"{path}: recorded {recorded['category']!r} ({recorded['why']}), now {kind!r} ({now})"
