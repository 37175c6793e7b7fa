"""Every experiment by its name: a folder of `hessianlab.figures` or `hessianlab.studies`, imported on request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from hessianlens.errors import check_choice

if TYPE_CHECKING:
    from hessianlab.experiments.experiment import Experiment

FIGURES = "hessianlab.figures"
"""The package whose folders are figures and tables."""

STUDY_FOLDERS = "hessianlab.studies"
"""The package whose folders are studies; the experiment in a folder NAME is called study_NAME."""

STUDY = "study_"


class Registry(Mapping[str, "Experiment[Any]"]):
    """Experiments by name, in the order of lists and reports.

    Args:
        package: Where their folders are.
        folders: Their names.
        prefix: What an experiment's name has in front of that of its folder.
    """

    def __init__(self, package: str, folders: tuple[str, ...], prefix: str = "") -> None:
        self._package, self._prefix = package, prefix
        self._names = tuple(prefix + folder for folder in folders)

    def home(self, name: str) -> str:
        """The package of an experiment."""
        return f"{self._package}.{name.removeprefix(self._prefix)}"

    def __getitem__(self, name: str) -> Experiment[Any]:
        check_choice("experiment", name, self._names)
        experiment: Experiment[Any] = import_module(f"{self.home(name)}.measure").EXPERIMENT
        return experiment

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def folders(path: Path) -> tuple[str, ...]:
    """The packages in a folder: numbered figures first, then numbered tables, then all others by name."""
    return tuple(sorted((found.name for found in iter_modules([str(path)]) if found.ispkg), key=_place))


def _place(name: str) -> tuple[int, int, str]:
    """Where a name stands in lists.

    >>> sorted(["table1", "moment_strata", "fig10", "fig3b", "fig3a", "activation_growth"], key=_place)
    ['fig3a', 'fig3b', 'fig10', 'table1', 'activation_growth', 'moment_strata']
    """
    numbered = re.fullmatch(r"(fig|table)(\d+)(\w?)", name)
    if not numbered:
        return 2, 0, name
    return ("fig", "table").index(numbered[1]), int(numbered[2]), numbered[3]


EXPERIMENTS = Registry(FIGURES, folders(Path(__file__).parents[1] / "figures"))
"""Figures and tables: what `hessianlens reproduce` and a report take if nothing is named."""

STUDIES = Registry(STUDY_FOLDERS, folders(Path(__file__).parents[1] / "studies"), STUDY)
"""Studies, which train models or vary their design."""


def registry_of(name: str) -> Registry | None:
    """Where an experiment is registered; None if it is not.

    >>> registry_of("fig1") is EXPERIMENTS, registry_of("study_scaling") is STUDIES, registry_of("claims")
    (True, True, None)
    """
    return EXPERIMENTS if name in EXPERIMENTS else STUDIES if name in STUDIES else None


def registered(name: str) -> Experiment[Any]:
    """An experiment by its name, wherever it is registered."""
    registry = registry_of(name)
    if registry is None:
        check_choice("experiment", name, [*EXPERIMENTS, *STUDIES])
        raise AssertionError(name)
    return registry[name]
