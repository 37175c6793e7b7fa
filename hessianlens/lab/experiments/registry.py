"""Every experiment by its name; modules are imported when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hessianlens.errors import check_choice

if TYPE_CHECKING:
    from hessianlens.lab.experiments.experiment import Experiment

MODULES: tuple[str, ...] = (
    "fig1",
    "fig3a",
    "fig3b",
    "fig4",
    "fig5",
    "fig6",
    "fig7",
    "fig8",
    "table1",
    "activation_magnitudes",
    "activation_growth",
    "moment_strata",
    "paired_spectrum",
    "rank_fraction",
    "parameterisations",
)
"""Modules of this folder, each with an `EXPERIMENT` of the module's own name; in the order of lists and reports."""


class Registry(Mapping[str, "Experiment[Any]"]):
    """Experiments by name, in the order of `modules`.

    Args:
        package: Where the modules are.
        modules: Their names, which are the names of the experiments too.
    """

    def __init__(self, package: str, modules: tuple[str, ...]) -> None:
        self._package = package
        self._modules = modules

    def __getitem__(self, name: str) -> Experiment[Any]:
        check_choice("experiment", name, self._modules)
        experiment: Experiment[Any] = import_module(f"{self._package}.{name}").EXPERIMENT
        return experiment

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


EXPERIMENTS: Mapping[str, Experiment[Any]] = Registry("hessianlens.lab.experiments", MODULES)
