"""How figures are read, said once on a page."""

from __future__ import annotations


class Readings:
    """Remembers which explanations a page has given, and at which figure."""

    def __init__(self) -> None:
        self._places: dict[str, str] = {}

    def place(self, reading: str, figure: str) -> str | None:
        """Where it was said already; None if it is to be said here, at this figure.

        >>> readings = Readings()
        >>> readings.place("Lines: means.", "fig3a"), readings.place("Lines: means.", "fig5")
        (None, 'fig3a')
        """
        said = self._places.get(reading)
        self._places.setdefault(reading, figure)
        return said
