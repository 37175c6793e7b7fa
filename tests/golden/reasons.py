"""What kind of reason a text gives: why a number is exact, or why it is not.

Texts are reworded; their kind may change only with the code. A new wording needs its key words here, nothing else.
"""

from __future__ import annotations

_KEY_WORDS = {
    "asked for": ("was asked for",),
    "too expensive": ("above the limit", "would hold", "asks for it"),
    "refused": (
        "does not fit",
        "enters the network through",
        "used in several places",
        "used outside",
        "does not split",
        "couples sequences",
        "couples its outputs",
        "mixes positions",
        "not seen in use",
    ),
    "zero": ("changes none of its weights",),
    "readout": ("makes the outputs",),
    "sketched": ("small matrices", "sketch"),
    "attention": ("the last attention layer",),
    "linear map": ("linear map",),
    "closed form": ("closed form",),
    "tape": ("tape",),
}


def category(why: str) -> str:
    """The first kind that has a key word in the text."""
    if not why:
        return "none"
    return next((kind for kind, words in _KEY_WORDS.items() if any(word in why for word in words)), "other")
