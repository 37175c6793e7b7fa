"""What experiments return: measurements of single cells, results of whole experiments, and where they come from."""

from hessianlab.results.chart import Chart, Panel, Series
from hessianlab.results.findings import Findings
from hessianlab.results.measurement import Measurement, Parameters, Row, Scalar
from hessianlab.results.provenance import Provenance, collect
from hessianlab.results.result import FinishedCell, Result

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
