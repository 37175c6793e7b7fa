"""What the store holds for a configuration under the code of today."""

from __future__ import annotations

from typing import Any

from hessianlab.experiments.experiment import Experiment
from hessianlab.results import Result
from hessianlab.store.code import code_of
from hessianlab.store.store import Store


def results(store: Store, experiment: Experiment[Any], config: Any, preset: str = "custom") -> Result | None:
    """The result of a configuration if the code as it is now has measured all of its cells, else None."""
    code = code_of(experiment.measure)
    cells = [store.get(experiment.name, parameters, code) for parameters in experiment.cells(config)]
    finished = [cell for cell in cells if cell is not None]
    return experiment.result(config, finished, preset) if len(finished) == len(cells) else None
