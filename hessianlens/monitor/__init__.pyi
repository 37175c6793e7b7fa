"""The names of this package and the files they come from."""

from .history import History
from .monitor import Monitor
from .records import Reading, Record
from .stability import Edge, edge_of

__all__ = ["Edge", "History", "Monitor", "Reading", "Record", "edge_of"]
