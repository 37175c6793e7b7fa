"""Published growth curves: where the file is, what is in it, and how ours compare.

The file is a table with the columns model, norm, num_layers, residual_scaling, linear_attention, loss, layer, block,
part, sigma, mean, sem, n, n_zero, n_nonfinite: mean and standard error over n repeats of one norm at one sigma.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hessianlens.errors import InputError

VARIABLE = "HESSIANLENS_REFERENCE"
PLACES = ("reference/growth.csv", "shared/reference/growth.csv")
"""Where a file is looked for, in the working directory and in its parent."""

PUBLISHED_SETTING = {"d_model": 128, "sequences": 64, "data_seed": 1234, "carries": "none"}
"""Only measurements of this size and on this batch can be compared."""

_COLUMNS = ("model", "norm", "num_layers", "residual_scaling", "linear_attention", "loss", "layer", "block", "part")
_NUMBERS = ("sigma", "mean", "sem", "n", "n_zero", "n_nonfinite")
_OPTIONAL = ("residual_scaling", "linear_attention")
_TRUTH = {"True": True, "False": False, "nan": None, "": None}
_BLOCKS = {"query": "q", "value": "v", "mlp": "mlp"}
_PARTS = {"outer": "outer", "functional": "func", "full": "full"}
_LOSSES = {"cross_entropy": "ce", "square": "mse"}


class PublishedSeries(NamedTuple):
    """Which curve of the file: the words of its columns, with numbers written as whole numbers."""

    model: str
    norm: str
    layers: int
    residual_scale: float | None
    linear_attention: bool | None
    loss: str
    layer: int
    block: str
    part: str


@dataclass(frozen=True)
class PublishedPoint:
    """Mean and standard error over `repeats`, of which some may be zero or not finite."""

    sigma: float
    mean: float
    sem: float
    repeats: int
    zeros: int
    nonfinite: int


class Reference(Mapping[PublishedSeries, tuple[PublishedPoint, ...]]):
    """The points of every published curve, in ascending order of sigma."""

    def __init__(self, curves: Mapping[PublishedSeries, tuple[PublishedPoint, ...]], path: Path) -> None:
        self._curves = dict(curves)
        self.path = path

    def __getitem__(self, key: PublishedSeries) -> tuple[PublishedPoint, ...]:
        return self._curves[key]

    def __iter__(self) -> Any:
        return iter(self._curves)

    def __len__(self) -> int:
        return len(self._curves)


def find_reference(path: str | Path | None = None) -> Path | None:
    """The file given, else the one that HESSIANLENS_REFERENCE names, else one in a usual place; None if there is none.

    A file that was named but is not there is an error.
    """
    named = path or os.environ.get(VARIABLE)
    if named:
        found = Path(named).expanduser()
        if not found.is_file():
            where = "reference" if path else VARIABLE
            raise InputError(
                f"{where}: got {str(found)!r}, which is no file; expected a growth.csv of published means."
            )
        return found
    here = Path.cwd()
    places = [folder / place for folder in (here, here.parent) for place in PLACES]
    return next((place for place in places if place.is_file()), None)


def read_reference(path: str | Path) -> Reference:
    """Every curve of a file."""
    place = Path(path)
    curves: dict[PublishedSeries, list[PublishedPoint]] = {}
    try:
        with place.open(newline="", encoding="utf-8") as file:
            table = csv.DictReader(file)
            missing = [name for name in _COLUMNS + _NUMBERS if name not in (table.fieldnames or ())]
            if missing:
                raise InputError(f"{place}: no column {', '.join(missing)}; expected a growth.csv of published means.")
            for line in table:
                try:
                    filled = _filled(line)
                    curves.setdefault(_series(filled), []).append(_point(filled))
                except ValueError as problem:
                    raise InputError(
                        f"{place}, line {table.line_num}: {problem}; expected a growth.csv of published means."
                    ) from None
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise InputError(f"{place}: cannot be read ({problem}); expected a growth.csv of published means.") from None
    return Reference({key: tuple(sorted(points, key=lambda p: p.sigma)) for key, points in curves.items()}, place)


def published_key(config: Mapping[str, Any], depth: int, layer: int, block: str, part: str) -> PublishedSeries | None:
    """Where a series of ours is in the file; None if it was measured at another size or on another batch."""
    if any(config.get(name) != value for name, value in PUBLISHED_SETTING.items()):
        return None
    norm = config["norm"] or "none"
    where = (layer, _BLOCKS[block], _PARTS[part])
    if config["model"] == "linear_mlp":
        return PublishedSeries("mlp", norm, depth, None, None, _LOSSES[config["loss"]], *where)
    if config["attention"] not in ("softmax", "linear"):
        return None
    linear = config["attention"] == "linear"
    return PublishedSeries(
        "transformer", norm, depth, float(config["residual_scale"]), linear, _LOSSES[config["loss"]], *where
    )


def _filled(line: Mapping[str, str | None]) -> dict[str, str]:
    """The fields of a line; an empty one means that a network has no such thing, where it may be empty."""
    filled = {name: (line[name] or "").strip() for name in _COLUMNS + _NUMBERS}
    for name, text in filled.items():
        if not text and name not in _OPTIONAL:
            raise ValueError(f"the field {name} is empty")
    return filled


def _number(line: Mapping[str, str], name: str) -> float:
    try:
        return float(line[name])
    except ValueError:
        raise ValueError(f"the field {name} is {line[name]!r}, which is no number") from None


def _whole(line: Mapping[str, str], name: str) -> int:
    number = _number(line, name)
    if not number.is_integer():
        raise ValueError(f"the field {name} is {line[name]!r}, which is no whole number")
    return int(number)


def _series(line: Mapping[str, str]) -> PublishedSeries:
    scale = _number(line, "residual_scaling") if line["residual_scaling"] else float("nan")
    if line["linear_attention"] not in _TRUTH:
        raise ValueError(f"the field linear_attention is {line['linear_attention']!r}, neither True nor False nor nan")
    linear = _TRUTH[line["linear_attention"]]
    return PublishedSeries(
        line["model"],
        line["norm"],
        _whole(line, "num_layers"),
        None if scale != scale else scale,
        linear,
        line["loss"],
        _whole(line, "layer"),
        line["block"],
        line["part"],
    )


def _point(line: Mapping[str, str]) -> PublishedPoint:
    sigma, mean, sem = (_number(line, name) for name in ("sigma", "mean", "sem"))
    repeats, zeros, nonfinite = (_whole(line, name) for name in ("n", "n_zero", "n_nonfinite"))
    return PublishedPoint(sigma, mean, sem, repeats, zeros, nonfinite)
