"""Charts, tables, frames and pages of anything that states its rows and its picture.

Nothing here knows the objects that are displayed. An object derives from `Displayable` (or `DisplayableRows`, which has
``rows()`` too) and states its rows and its picture; the notebook cell, the plot, the data frame and the page
follow from that.
"""

from hessianlens.display.chart import Picture, short
from hessianlens.display.charts import Curve, Dot, Dots, Line, Point, Scatter, Share, Shares, Spikes, Timeline
from hessianlens.display.displayable import MOST_ROWS, Cells, Displayable, DisplayableRows, facts, texts
from hessianlens.display.document import CodeBlock, Document, Figure, Part, Section, SideBySide, Table
from hessianlens.display.heat_maps import Entries, Grid
from hessianlens.display.markup import PALETTE, page_style

__all__ = [
    "MOST_ROWS",
    "PALETTE",
    "Cells",
    "CodeBlock",
    "Curve",
    "Displayable",
    "DisplayableRows",
    "Document",
    "Dot",
    "Dots",
    "Entries",
    "Figure",
    "Grid",
    "Line",
    "Part",
    "Picture",
    "Point",
    "Scatter",
    "Section",
    "Share",
    "Shares",
    "SideBySide",
    "Spikes",
    "Table",
    "Timeline",
    "facts",
    "page_style",
    "short",
    "texts",
]
