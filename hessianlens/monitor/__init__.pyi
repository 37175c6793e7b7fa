"""The names of this package and the files they come from."""

from .edge import Edge, edge_of
from .history import History
from .monitor import Monitor
from .record import Reading, Record

__all__ = ["Edge", "History", "Monitor", "Reading", "Record", "edge_of"]
