"""What experiments return: measurements of single cells, results of whole experiments, and where they come from."""

from hessianlens.lab.results.chart import Chart, Panel, Series
from hessianlens.lab.results.findings import Findings
from hessianlens.lab.results.measurement import Measurement, Parameters, Row, Scalar
from hessianlens.lab.results.provenance import Provenance, collect
from hessianlens.lab.results.result import FinishedCell, Result

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
