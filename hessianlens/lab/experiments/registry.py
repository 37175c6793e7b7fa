"""Every experiment by its name: a folder of `hessianlens.lab.figures`, imported when it is asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from hessianlens.errors import check_choice

if TYPE_CHECKING:
    from hessianlens.lab.experiments.experiment import Experiment

FIGURES = "hessianlens.lab.figures"
"""The package whose folders are figures and tables."""


class Registry(Mapping[str, "Experiment[Any]"]):
    """Experiments by name, in the order of lists and reports.

    Args:
        package: Where their folders are.
        names: Of the folders, which are the names of the experiments too.
    """

    def __init__(self, package: str, names: tuple[str, ...]) -> None:
        self._package = package
        self._names = names

    def __getitem__(self, name: str) -> Experiment[Any]:
        check_choice("experiment", name, self._names)
        experiment: Experiment[Any] = import_module(f"{self._package}.{name}.measure").EXPERIMENT
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


EXPERIMENTS: Mapping[str, Experiment[Any]] = Registry(FIGURES, folders(Path(__file__).parents[1] / "figures"))
