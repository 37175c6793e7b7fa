"""One palette that works for colour-blind readers, on light and on dark ground."""

from __future__ import annotations

PALETTE = {
    "ink": ("#1b2431", "#e7ebf0"),
    "muted": ("#5d6875", "#9aa5b1"),
    "grid": ("#dde2e8", "#333c47"),
    "blue": ("#0072b2", "#4ea8de"),
    "orange": ("#e69f00", "#f0b53a"),
    "green": ("#009e73", "#35c79a"),
    "red": ("#d55e00", "#ff8a47"),
    "purple": ("#b5568c", "#e08fbd"),
    "sky": ("#56b4e9", "#2f7fb5"),
}
"""Okabe and Ito's colours under the names of CSS variables: on light ground, on dark ground."""

GROUND = ("#ffffff", "#12161b")
"""What lies behind a drawing, light and dark."""

SERIES = ("blue", "orange", "green", "purple", "red", "sky")
"""In which order series take their colours."""


def light(name: str) -> str:
    """A colour for drawings on light ground."""
    return PALETTE[name][0]


def variables(dark: bool) -> str:
    """The palette as declarations of CSS variables.

    >>> variables(dark=False).split("; ")[0]
    '--paper: #ffffff'
    """
    named = {"paper": GROUND, **PALETTE}
    return "; ".join(f"--{name}: {colours[dark]}" for name, colours in named.items()) + ";"
