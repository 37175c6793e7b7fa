"""What can be looked at: pictures, tables, frames and pages, of anything that states its rows and its picture.

Nothing here knows the objects that are shown. An object derives from `Shown` (or `Listed`, which has ``rows()`` too)
and states what it is; the notebook cell, the drawing, the data frame and the page all follow from that.
"""

from hessianlens.display.curve import Curve
from hessianlens.display.document import CodeBlock, Document, Figure, Section, Side, Table
from hessianlens.display.dots import Dot, Dots
from hessianlens.display.entries import Entries
from hessianlens.display.grid import Grid
from hessianlens.display.picture import Picture
from hessianlens.display.scatter import Point, Scatter
from hessianlens.display.shares import Share, Shares
from hessianlens.display.shown import Listed, Shown
from hessianlens.display.spikes import Spikes

__all__ = [
    "CodeBlock",
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
