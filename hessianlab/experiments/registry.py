"""Every experiment by its name, and the module of `hessianlab.figures` or `hessianlab.studies` that has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hessianlens.errors import check_choice

if TYPE_CHECKING:
    from hessianlab.experiments.experiment import Experiment

STUDY = "study_"
"""In front of the name of every study."""


class Registry(Mapping[str, "Experiment[Any]"]):
    """Experiments by name, in the order of lists and reports; their modules are imported on request.

    Args:
        package: Has the modules that measure, and the package `presentation`.
        modules: Experiment to the name of its module in either.
        presentations: Experiments whose module in `presentation` has another name.
    """

    def __init__(
        self, package: str, modules: Mapping[str, str], presentations: Mapping[str, str] | None = None
    ) -> None:
        self._package, self._modules = package, modules
        self._presentations = {**modules, **(presentations or {})}

    def measuring(self, name: str) -> str:
        """The dotted name of the module that measures an experiment.

        >>> EXPERIMENTS.measuring("fig3a"), STUDIES.presenting("study_scaling")
        ('hessianlab.figures.growth', 'hessianlab.studies.presentation.attention')
        """
        return f"{self._package}.{self._modules[name]}"

    def presenting(self, name: str) -> str:
        """The dotted name of the module that reads and draws its results."""
        return f"{self._package}.presentation.{self._presentations[name]}"

    def __getitem__(self, name: str) -> Experiment[Any]:
        check_choice("experiment", name, self._modules)
        from hessianlab.experiments.experiment import Experiment

        held = vars(import_module(self.measuring(name))).values()
        return next(value for value in held if isinstance(value, Experiment) and value.name == name)

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


EXPERIMENTS = Registry(
    "hessianlab.figures",
    {
        "fig1": "block_entries",
        "fig2": "second_derivative",
        "fig3a": "growth",
        "fig3b": "growth",
        "fig4": "block_entries",
        "fig5": "growth",
        "fig6": "growth",
        "fig7": "growth",
        "fig8": "growth",
        "table1": "powers",
        "activation_growth": "activations",
        "activation_offset": "activations",
        "activation_scales": "activations",
        "depth_growth": "growth",
        "moment_strata": "entropy",
        "parameterisations": "query_key",
        "query_key_norm": "query_key_norm",
        "query_key_spectra": "query_key",
        "rank_fraction": "query_key",
        "temperature_path": "entropy",
        "weight_powers": "powers",
    },
    {"activation_scales": "activation_scales"},
)
"""Figures and tables: what `hessianlens reproduce` and a report take if nothing is named."""

STUDIES = Registry(
    "hessianlab.studies",
    {
        "study_activations": "training",
        "study_atlas": "atlas",
        "study_block_rates": "training",
        "study_design": "attention_design",
        "study_exponents": "training",
        "study_optimisers": "training",
        "study_query_key": "training",
        "study_scaling": "training",
        "study_temperature": "training",
    },
    {
        "study_activations": "attention",
        "study_block_rates": "optimisers",
        "study_exponents": "growth_exponents",
        "study_optimisers": "optimisers",
        "study_query_key": "attention",
        "study_scaling": "attention",
        "study_temperature": "attention",
    },
)
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
