"""Records of a training run, and the file that keeps them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Real
from typing import Any, NamedTuple

from hessianlens.errors import check_that
from hessianlens.files import JsonLines
from hessianlens.spectra import Estimate
from hessianlens.spectra.inertia_shares import WIDE

SHARES = ("negative", "zero", "positive", "negative_mass")
"""Quantities that are known as intervals; the number of one is shown only where its interval is narrow."""
HEAD_QUANTITIES = {
    "largest_logit": "largest_logit",
    "head_entropy": "entropy",
    "head_entropy_share": "share",
    "sink": "sink",
    "jacobian": "jacobian",
    "spread": "spread",
    "skew": "skew",
}
"""What is recorded of every attention head, and the attribute of `HeadHealth` that it is."""
MODEL = "model"
"""The name under which the numbers of all trained parameters together stand."""


class Reading(NamedTuple):
    """A number with its 95 % interval, of width zero where nothing was sampled.

    >>> Reading.of(Estimate(3.0, 0.1, probes=20, seed=0))
    Reading(value=3.0, low=2.79..., high=3.2...)
    """

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, number: Estimate | float) -> Reading:
        """Of an estimate, or of a number that is known."""
        if isinstance(number, Estimate):
            return cls(number.value, *number.interval())
        check_that(isinstance(number, Real), "number", number, "a number or an Estimate")
        return cls(float(number), float(number), float(number))


Readings = Mapping[str, Mapping[str, Reading]]


@dataclass(frozen=True, eq=False)
class Record:
    """One measurement of a model in training.

    Attributes:
        step: Steps of the optimiser so far.
        numbers: By owner (``"model"``, a block, a layer's attention) and by quantity.
        given: Numbers passed by the training loop, such as ``lr`` and ``loss``.
        trained: Seconds of training so far, without measurements.
        cost: Seconds that the measurement took.
        products: Hessian-vector products that it took.
        notes: What could not be measured, and why.
        source: The checkpoint that it belongs to, by name and contents; empty for a live model.
        until: The step at which the measurement was complete, which may be spread over many; None: the same step.
    """

    step: int
    numbers: Readings
    given: Mapping[str, float] = field(default_factory=dict)
    trained: float = 0.0
    cost: float = 0.0
    products: int = 0
    notes: tuple[str, ...] = ()
    source: str = ""
    until: int | None = None

    def flat(self) -> dict[str, float]:
        """One number per name: ``top`` of the model, ``layer0.attn.q/top`` of a block.

        Shares that were not counted come as the ends of their intervals, ``negative_low`` and ``negative_high``; with a
        number between them only where these are close.

        >>> Record(3, {"model": {"top": Reading.of(2.0)}, "layer0.attn.q": {"top": Reading.of(1.0)}}).flat()
        {'top': 2.0, 'layer0.attn.q/top': 1.0}
        >>> Record(3, {"model": {"negative": Reading(0.5, 0.1, 0.9)}}).flat()
        {'negative_low': 0.1, 'negative_high': 0.9}
        """
        found = {
            name if owner == MODEL else f"{owner}/{name}": number
            for owner, readings in self.numbers.items()
            for quantity, reading in readings.items()
            for name, number in _flat(quantity, reading).items()
        }
        return {**self.given, **found}

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts; what is not finite is None."""
        numbers = {
            owner: {quantity: _shortest(reading) for quantity, reading in readings.items()}
            for owner, readings in self.numbers.items()
        }
        return {
            "step": self.step,
            "numbers": numbers,
            "given": {name: _finite(value) for name, value in self.given.items()},
            "trained": self.trained,
            "cost": self.cost,
            "products": self.products,
            "notes": list(self.notes),
            "source": self.source,
            "until": self.until,
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Record:
        """What `to_dict` gave.

        >>> record = Record(3, {"model": {"trace": Reading(2.0, 1.0, 3.0)}}, {"lr": 0.1})
        >>> Record.from_dict(record.to_dict()).to_dict() == record.to_dict()
        True
        """
        expected = {entry.name for entry in fields(cls)} - {"until"}  # which earlier versions did not write
        whole = isinstance(plain, Mapping) and expected <= plain.keys()
        check_that(whole, "plain", plain, "what Record.to_dict gave")
        numbers = {
            owner: {quantity: _reading(value) for quantity, value in readings.items()}
            for owner, readings in plain["numbers"].items()
        }
        given = {name: _number(value) for name, value in plain["given"].items()}
        rest = {name: plain[name] for name in ("trained", "cost", "products")}
        made = cls(int(plain["step"]), numbers, given, **rest, notes=tuple(plain["notes"]), source=plain["source"])
        return replace(made, until=plain.get("until"))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _shortest(reading: Reading) -> Any:
    if reading.low == reading.value == reading.high:
        return _finite(reading.value)
    return [_finite(end) for end in reading]


def _reading(value: Any) -> Reading:
    return Reading(*map(_number, value)) if isinstance(value, list) else Reading.of(_number(value))


def _flat(quantity: str, reading: Reading) -> dict[str, float]:
    if quantity not in SHARES or reading.low == reading.high:
        return {quantity: reading.value}
    ends = {f"{quantity}_low": reading.low, f"{quantity}_high": reading.high}
    return ends if reading.high - reading.low > WIDE else {quantity: reading.value, **ends}


class RecordFile:
    """Records in a file, one line each, that survives the end of the process at any moment; see `JsonLines`.

    A record at a step takes the place of those at this step and behind it: a run that goes on from an earlier
    checkpoint writes its own history.

    Args:
        path: The file; made with the first record.

    >>> import os, tempfile
    >>> file = RecordFile(os.path.join(tempfile.mkdtemp(), "run.jsonl"))
    >>> for step in (10, 20, 30, 20):
    ...     file.add(Record(step, {}))
    >>> [record.step for record in file.read()]
    [10, 20]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._lines = JsonLines(path, "store", {"format": "hessianlens watch, 1"}, "a watched run")

    def read(self) -> list[Record]:
        """The records that hold, in order of their steps."""
        found: list[Record] = []
        for line in self._lines.read()[1:]:
            record = Record.from_dict(line["record"])
            found = [earlier for earlier in found if earlier.step < record.step]
            found.append(record)
        return found

    def add(self, record: Record) -> None:
        """Write a record; it is kept when this returns."""
        self._lines.append({"record": record.to_dict()})
