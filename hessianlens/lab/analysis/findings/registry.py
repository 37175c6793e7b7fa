"""Which function tells what an experiment found."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hessianlens.lab.analysis.findings import (
    activation_growth,
    activation_magnitudes,
    fig1,
    fig4,
    growth,
    moment_strata,
    paired_spectrum,
    parameterisations,
    rank_fraction,
    table1,
)
from hessianlens.lab.results import Result

FINDINGS: Mapping[str, Callable[[Result], list[str]]] = {
    "fig1": fig1.findings,
    "fig3a": growth.findings,
    "fig3b": growth.findings,
    "fig4": fig4.findings,
    "fig5": growth.findings,
    "fig6": growth.findings,
    "fig7": growth.findings,
    "fig8": growth.findings,
    "table1": table1.findings,
    "activation_magnitudes": activation_magnitudes.findings,
    "activation_growth": activation_growth.findings,
    "moment_strata": moment_strata.findings,
    "paired_spectrum": paired_spectrum.findings,
    "rank_fraction": rank_fraction.findings,
    "parameterisations": parameterisations.findings,
}
"""By the experiment's name."""
