"""What can be looked at: pictures, tables, frames and pages, of anything that states its rows and its picture.

Nothing here knows the objects that are shown. An object derives from `Shown` (or `Listed`, which has ``rows()`` too)
and states what it is; the notebook cell, the drawing, the data frame and the page all follow from that.
"""

from hessianlens.showing.curve import Curve
from hessianlens.showing.document import Code, Document, Figure, Section, Side, Table
from hessianlens.showing.dots import Dot, Dots
from hessianlens.showing.entries import Entries
from hessianlens.showing.grid import Grid
from hessianlens.showing.picture import Picture
from hessianlens.showing.scatter import Point, Scatter
from hessianlens.showing.shares import Share, Shares
from hessianlens.showing.shown import Listed, Shown
from hessianlens.showing.spikes import Spikes

__all__ = [
    "Code",
    "Curve",
    "Document",
    "Dot",
    "Dots",
    "Entries",
    "Figure",
    "Grid",
    "Listed",
    "Picture",
    "Point",
    "Scatter",
    "Section",
    "Share",
    "Shares",
    "Shown",
    "Side",
    "Spikes",
    "Table",
]
