"""What experiments return: measurements of single cells, results of whole experiments, and where they come from."""

from hessianlab.results.chart import Chart, Panel, Series
from hessianlab.results.result import (
    Findings,
    FinishedCell,
    Measurement,
    Parameters,
    Provenance,
    Result,
    Row,
    Scalar,
    collect,
)

__all__ = [
    "Chart",
    "Findings",
    "FinishedCell",
    "Measurement",
    "Panel",
    "Parameters",
    "Provenance",
    "Result",
    "Row",
    "Scalar",
    "Series",
    "collect",
]
