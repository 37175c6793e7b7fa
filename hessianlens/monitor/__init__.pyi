"""The names of this package and the files they come from."""

from .edge_of_stability import StabilityEdge, stability_edge
from .history import History
from .monitor import Monitor
from .records import Reading, Record

__all__ = ["History", "Monitor", "Reading", "Record", "StabilityEdge", "stability_edge"]
