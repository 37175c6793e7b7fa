"""What experiments return: measurements of cells, results with their provenance and findings, and charts in numbers."""

from __future__ import annotations

import math
import os
import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from hessianlens import __version__

if TYPE_CHECKING:
    import numpy as np


Scalar: TypeAlias = str | int | float | bool | None
Parameters: TypeAlias = Mapping[str, Scalar]
"""Everything that decides the numbers of a cell, as JSON scalars; nothing else may."""

Row: TypeAlias = Mapping[str, Scalar]


@dataclass(frozen=True, eq=False)
class Measurement:
    """The numbers of one cell.

    Attributes:
        rows: Lines of a table, e.g. ``{"block": "layer0.attn.q", "part": "full", "value": 0.3, "stderr": 0.0}``.
        arrays: Larger things by name, e.g. a heat map or eigenvalues.
    """

    rows: tuple[Row, ...] = ()
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)


_LIBRARIES = ("torch", "numpy", "scipy", "opt_einsum", "matplotlib")


@dataclass(frozen=True)
class Provenance:
    """The circumstances of a run.

    Attributes:
        commit: Of the repository that holds this very package, with "-modified" behind it if the package has been
            changed since; None outside a repository.
    """

    version: str
    commit: str | None
    created: str
    python: str
    libraries: dict[str, str]
    system: str
    cpu: str
    cores: int
    threads: int
    memory: str


def collect() -> Provenance:
    """The circumstances now."""
    import psutil
    import torch

    from hessianlens.sizes import readable

    return Provenance(
        version=__version__,
        commit=_commit(Path(__file__).resolve().parent),
        created=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        python=platform.python_version(),
        libraries={name: version for name in _LIBRARIES if (version := _version(name)) is not None},
        system=f"{platform.system()} {platform.release()}, {platform.machine()}",
        cpu=_cpu(),
        cores=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        memory=readable(psutil.virtual_memory().total),
    )


def _version(library: str) -> str | None:
    """None if it is not installed; not everything needs every library."""
    from importlib import metadata

    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    """The processor's name, as far as the system knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _commit(package: Path) -> str | None:
    """The commit of `package`, unless it merely lies somewhere inside a foreign repository."""
    try:
        if not _git(package, "ls-files", "--", "__init__.py"):
            return None
        commit = _git(package, "rev-parse", "--short=12", "HEAD")
        return commit + ("-modified" if _git(package, "status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(where: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(where), *arguments], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()


@dataclass(frozen=True, eq=False)
class FinishedCell:
    """One cell: what was asked, what was measured, and the processor time that took, whatever else the machine did."""

    parameters: Parameters
    measurement: Measurement
    seconds: float


@dataclass(frozen=True, eq=False)
class Result:
    """What an experiment found.

    Attributes:
        experiment: Name in the registry, e.g. "fig3a".
        preset: The preset the configuration started from: "quick", "paper"; "custom" after an override.
        config: Every field of the configuration.
        cells: In the order of the experiment's plan, whatever order they were computed in.
        provenance: Where the numbers come from.
    """

    experiment: str
    preset: str
    config: Mapping[str, Any]
    cells: tuple[FinishedCell, ...]
    provenance: Provenance

    def rows(self) -> list[dict[str, Scalar]]:
        """Every row of every cell with the parameters of its cell in front."""
        return [{**cell.parameters, **row} for cell in self.cells for row in cell.measurement.rows]

    @property
    def seconds(self) -> float:
        """Processor time of all cells."""
        return sum(cell.seconds for cell in self.cells)


@dataclass(frozen=True)
class Findings:
    """How a result is read; a family of figures that reads more from its results has a class of its own.

    Attributes:
        sentences: What was found, the most important first; every number in it comes from the result.
    """

    sentences: Callable[[Result], list[str]]


_DIGITS = 5
"""Kept of every number, which is more than draws can tell."""


@dataclass(frozen=True)
class Series:
    """Means with intervals along one axis.

    Attributes:
        name: For the legend; series of one name look alike in all panels.
        x: Where.
        mean: Of the draws there; a median where the caption says so.
        low: Lower end of the interval.
        high: Upper end.
    """

    name: str
    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class Panel:
    """Series that share their axes."""

    title: str
    series: tuple[Series, ...]
    log_y: bool = False


@dataclass(frozen=True)
class Chart:
    """A picture in numbers.

    Attributes:
        caption: What marks, bands and axes mean.
        x_label: Of all panels.
        y_label: Of all panels; their titles say what they show if it is empty.
        panels: Row by row.
        columns: Panels in a row.
        names: If x counts names and is no quantity: these.

    >>> one = Chart("Means.", "steps", "loss", (Panel("text", (Series("a", (0.0,), (1.0,), (0.5,), (1.5,)),)),))
    >>> Chart.of(one.plain()) == one
    True
    """

    caption: str
    x_label: str
    y_label: str
    panels: tuple[Panel, ...]
    columns: int = 1
    names: tuple[str, ...] = ()

    @property
    def legend(self) -> tuple[str, ...]:
        """Names of all series, in the order of their first appearance."""
        return tuple(dict.fromkeys(series.name for panel in self.panels for series in panel.series))

    def plain(self) -> dict[str, Any]:
        """As a file keeps it."""
        panels = [
            {
                "title": panel.title,
                "log_y": panel.log_y,
                "series": [{"name": s.name} | {n: _rounded(getattr(s, n)) for n in _COLUMNS} for s in panel.series],
            }
            for panel in self.panels
        ]
        words = {"caption": self.caption, "x_label": self.x_label, "y_label": self.y_label}
        return {**words, "columns": self.columns, "names": list(self.names), "panels": panels}

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> Chart:
        """Back from `plain`."""
        panels = tuple(
            Panel(
                one["title"],
                tuple(Series(s["name"], **{n: tuple(s[n]) for n in _COLUMNS}) for s in one["series"]),
                one["log_y"],
            )
            for one in kept["panels"]
        )
        words = (kept["caption"], kept["x_label"], kept["y_label"])
        return cls(*words, panels, kept["columns"], tuple(kept["names"]))


_COLUMNS = ("x", "mean", "low", "high")


def round_to_stored(value: float) -> float:
    """To as many digits as are kept.

    >>> round_to_stored(1 / 3)
    0.33333
    """
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else value


def _rounded(values: Sequence[float]) -> list[float]:
    return [round_to_stored(value) for value in values]
