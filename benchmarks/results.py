"""What a benchmark finds, as frozen dataclasses that go to JSON and back."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"

OURS, PEER, SET_UP = "ours", "peer", "set-up"
"""Roles: the library, what it is measured against, and work done once before products."""


@dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Timing:
    """How long a competitor takes.

    Attributes:
        name: The competitor.
        role: `OURS`, `PEER` or `SET_UP`.
        seconds: Over the rounds.
        ratio: Its time over that of the library, round by round: how many times faster the library is.
        first: Seconds of the very first call, with contraction plans and lazy initialisation.
        wall: Median seconds on the wall, beside those of the clock; they differ where other work runs on the machine.
        operations: Arithmetic operations of one run, counted; None where they were not.
    """

    name: str
    role: str
    seconds: Spread
    ratio: Spread
    first: float
    wall: float | None = None
    operations: float | None = None


@dataclass(frozen=True)
class Memory:
    """Bytes by which a fresh process grew: its peak while preparing, what it then kept, and its peak while running."""

    set_up: int
    kept: int
    run: int


@dataclass(frozen=True)
class Result:
    """One benchmark, measured.

    Attributes:
        name: The benchmark.
        title: What it measures, in a line.
        setting: Sizes.
        target: The ratio aimed at, if there is one.
        against: The peer that the target is about.
        rounds: Rounds in which every competitor ran once.
        timings: The library first.
        memory: By competitor; empty if it was not measured.
        details: Further numbers of this benchmark.
        notes: What the numbers say, in sentences computed from them.
        provenance: Versions, threads, CPU, date, commit.
        peak: Operations per second of a large square matrix product, of the same dtype and threads, in the same rounds.
    """

    name: str
    title: str
    setting: dict[str, Any]
    target: float | None
    against: str
    rounds: int
    timings: tuple[Timing, ...]
    memory: dict[str, Memory] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)
    peak: float | None = None

    def timing(self, name: str) -> Timing:
        """The timing of one competitor."""
        return next(t for t in self.timings if t.name == name)

    def of_peak(self, timing: Timing) -> float | None:
        """Counted operations per second over those of a large matrix product; None where one of them is not known."""
        if self.peak is None or not timing.operations:
            return None
        return timing.operations / timing.seconds.median / self.peak

    @property
    def fastest_peer(self) -> Timing:
        """The peer with the smallest median time."""
        return min((t for t in self.timings if t.role == PEER), key=lambda t: t.seconds.median)

    def to_json(self) -> str:
        """The result as readable JSON."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Result:
        """The inverse of `to_json`."""
        data = json.loads(text)
        data["timings"] = tuple(_timing(t) for t in data["timings"])
        data["memory"] = {name: Memory(**m) for name, m in data["memory"].items()}
        data["notes"] = tuple(data["notes"])
        return cls(**data)

    def save(self, folder: Path = RESULTS) -> Path:
        """Write ``<name>.json``."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        path.write_text(self.to_json(), encoding="utf-8")
        return path


def _timing(data: dict[str, Any]) -> Timing:
    return Timing(**{**data, "seconds": Spread(**data["seconds"]), "ratio": Spread(**data["ratio"])})
