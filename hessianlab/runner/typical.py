"""How long presets typically take: shipped with the package, for machines that have measured nothing yet."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path

_FILE = Path(__file__).with_name("typical_seconds.json")


@functools.cache
def typical_seconds() -> Mapping[str, Mapping[str, float]]:
    """Processor seconds of one core by experiment and preset, as measured once; not every preset is in it.

    >>> typical_seconds()["fig8"]["quick"] < typical_seconds()["fig6"]["paper"]
    True
    """
    found: Mapping[str, Mapping[str, float]] = json.loads(_FILE.read_text(encoding="utf-8"))
    return found


def typical_of(experiment: str, preset: str) -> float | None:
    """Seconds of one preset; None if nobody has measured it for this file.

    >>> typical_of("fig8", "custom") is None
    True
    """
    return typical_seconds().get(experiment, {}).get(preset)
