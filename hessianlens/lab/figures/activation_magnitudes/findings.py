"""Which activations make blocks unlike."""

from __future__ import annotations

from hessianlens.lab.experiments.common.means import geometric_mean
from hessianlens.lab.results import Findings, Result
from hessianlens.lab.results.table import block_ratios, choices, short

UNLIKE = 10.0
"""Blocks are unlike when their root mean square entries differ by more than this factor."""


def ratios(result: Result, place: str) -> dict[str, float]:
    """Root mean square entry of the value block over that of the query block, by activation, largest first."""
    names = choices(result, "activation")
    found = {name: geometric_mean(block_ratios(result, "rms", place=place, activation=name)) for name in names}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def tell(result: Result) -> list[str]:
    """Value over query by activation, in each place."""
    sentences = []
    named = {"transformer": "In the one-block Transformer", "layer": "In a layer alone"}
    for place in choices(result, "place"):
        found = ratios(result, place)
        unlike = [f"{name} ({short(r)})" for name, r in found.items() if r > UNLIKE]
        alike = [f"{name} ({short(r)})" for name, r in found.items() if 1 / UNLIKE <= r <= UNLIKE]
        turned = [f"{name} ({short(r)})" for name, r in found.items() if r < 1 / UNLIKE]
        groups = (
            (f"exceed those of the query block more than {UNLIKE:g}-fold with", unlike),
            ("are of its order with", alike),
            (f"are more than {UNLIKE:g} times smaller with", turned),
        )
        told = "; ".join(f"{what} {', '.join(names)}" for what, names in groups if names)
        sentences.append(f"{named[place]} the entries of the value block (ratio of root mean squares) {told}.")
    return sentences


FINDINGS = Findings(tell)
