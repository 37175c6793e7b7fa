"""How a block is to be found, and what that costs: decided from sizes, before anything but a forward pass is run."""

from __future__ import annotations

from dataclasses import dataclass

from hessianlens.errors import Refusal
from hessianlens.network.linear_maps.grouping import Grouping
from hessianlens.network.linear_maps.piece import Piece
from hessianlens.network.linear_maps.streamed import streamed_bytes

KEPT_BYTES = 2**28
"""Curvature that is held at once, and kept for further blocks of the same maps."""
BEHIND_BYTES = 2**29
"""The most that the curvature at the next map may take where it stands in for that at a map itself."""
PARTS_HELD = 3
"""Gauss-Newton and functional part, and their sum."""


@dataclass(frozen=True, eq=False)
class LinearMapPlan:
    """How the block between two pieces is found, and what that costs.

    Attributes:
        row: The piece that indexes the rows.
        column: The piece that indexes the columns.
        groups: Groups of positions of both, at each batch.
        products: Products that it takes, each over all of the data.
        held_bytes: What it holds.
        turned: Whether rows and columns are exchanged in the end: here the rows come first in the network.
    """

    row: tuple[Piece, ...]
    column: tuple[Piece, ...]
    groups: tuple[tuple[Grouping, Grouping], ...]
    products: int
    held_bytes: int
    turned: bool = False

    @property
    def same_site(self) -> bool:
        """Whether rows and columns belong to the same map."""
        return self.row[0].use.site == self.column[0].use.site

    @property
    def streams(self) -> bool:
        """Whether its norms can be found row by row: a block with itself, no positions coupled, in a single batch."""
        (first, _), *others = self.groups
        return not others and first.members == 1 and self.row[0].block is self.column[0].block

    @property
    def in_rows(self) -> bool:
        """Whether its norms are found row by row, because the curvature as a whole would take much memory."""
        return self.held_bytes > KEPT_BYTES and self.streams

    @property
    def norm_bytes(self) -> int:
        """What its norms hold."""
        if not self.in_rows:
            return self.held_bytes
        return streamed_bytes(self.row[0], self.groups[0][0], PARTS_HELD) + BEHIND_BYTES

    @property
    def why(self) -> str:
        """Why it is exact, in words."""
        together = max(first.members for first, _ in self.groups)
        axes, groups = self.row[0].use.outputs[:-1], self.groups[0][0].groups
        one = "a sequence" if len(axes) == 1 or groups in axes else "an example, in several sequences,"
        how = (
            "the loss couples no two positions of what it puts out"
            if together == 1
            else f"the {together} positions of {one} are taken together"
        )
        return f"it enters through a linear map, and {how}; {self.products} products"


def too_many_products(needed: float, most: float, more: str = "") -> Refusal:
    """The refusal of a block that needs more products than were offered; a higher limit would change it."""
    worth = f"and {most:.0f} are thought worth it; method='exact' takes them"
    return Refusal(f"it would take {needed:.0f} {more}products, {worth}", at_this_price=True)
