"""What every picture can do: be an inline drawing, and be drawn on matplotlib's axes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from hessianlens.errors import check_that, needs_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Picture(ABC):
    """Numbers and names that are drawn in one of two ways; neither computes anything."""

    @abstractmethod
    def svg(self) -> str:
        """An inline drawing of a fixed size, with colours that follow the page."""

    @abstractmethod
    def draw(self, ax: Any) -> None:
        """The same on matplotlib's axes."""

    def inches(self) -> tuple[float, float]:
        """A fitting size of a figure of its own."""
        return 5.5, 3.6

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw on these axes, or on those of a new figure.

        Args:
            ax: Matplotlib's axes.
        """
        with needs_extra("lab", "plot()"):
            from matplotlib import axes, pyplot
        if ax is None:
            ax = pyplot.subplots(figsize=self.inches(), layout="constrained")[1]
        check_that(isinstance(ax, axes.Axes), "ax", ax, "axes of matplotlib, or None for those of a new figure")
        self.draw(ax)
        return ax
