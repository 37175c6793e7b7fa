"""What separates the blocks: softmax, or an activation that is not zero at zero."""

from __future__ import annotations

import numpy as np

from hessianlab.experiments.common.means import geometric_mean
from hessianlab.results import Findings, Result
from hessianlab.results.table import block_ratios, choices, select, short, span
from hessianlab.wording import activation_in_words, several

UNLIKE = 10.0
"""Blocks are unlike when their root mean square entries differ by more than this factor."""

OFFSET, ZERO, NONE = "a(0) ≠ 0", "a(0) = 0", "no a(0)"
"""Kinds of activations: with a weight at zero scores, without, and those whose weights have no limit there."""

PLACES = {"transformer": "In the one-block Transformer", "layer": "In a layer alone"}


def ratios(result: Result, place: str) -> dict[str, float]:
    """Root mean square entry of the value block over that of the query block, by activation, largest first.

    The geometric mean over draws; both blocks have the same size, so that their norms have the same ratio.
    """
    names = choices(result, "activation")
    found = {name: geometric_mean(drawn_ratios(result, place, name)) for name in names}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def drawn_ratios(result: Result, place: str, activation: str) -> np.ndarray:
    """The same ratio, draw by draw."""
    return block_ratios(result, "rms", place=place, activation=activation)


def kinds(result: Result) -> dict[str, str]:
    """`OFFSET`, `ZERO` or `NONE` by activation, from the measured weight at zero scores."""
    found = {}
    for name in choices(result, "activation"):
        start = select(result, activation=name)[0]["at_zero"]
        found[name] = NONE if start is None else OFFSET if start != 0 else ZERO
    return found


def a_zero_decides(result: Result, place: str) -> bool | None:
    """Whether exactly the activations with a(0) != 0 make the blocks unlike; None if only one kind was measured."""
    found, kind = ratios(result, place), kinds(result)
    groups = {which: [found[name] for name in found if kind[name] == which] for which in (OFFSET, ZERO)}
    if not all(groups.values()):
        return None
    return min(groups[OFFSET]) > UNLIKE and all(1 / UNLIKE <= ratio <= UNLIKE for ratio in groups[ZERO])


def tell(result: Result) -> list[str]:
    """Whether a(0) decides, how sigmoid compares with softmax, and what rows divided by their sum do."""
    places = choices(result, "place")
    sentences = [_verdict(result, place) for place in places[:1]]
    compared = " ".join(filter(None, (_sigmoid(result, place) for place in places)))
    others = " ".join(_verdict(result, place) for place in places[1:])
    return [*sentences, *filter(None, (compared, others))]


def _verdict(result: Result, place: str) -> str:
    found, kind = ratios(result, place), kinds(result)

    def listed(which: str) -> str:
        return several([f"{activation_in_words(name)} ({short(found[name])})" for name in found if kind[name] == which])

    decides = a_zero_decides(result, place)
    told = [f"with {which}: {listed(which)}" for which in (OFFSET, ZERO, NONE) if which in kind.values()]
    start = f"{PLACES[place]} the entries of the value block over those of the query block (root mean squares), "
    if decides is None:
        return f"{start}{'; '.join(told)}: one kind alone decides nothing."
    verdict = (
        f"what separates the blocks (more than {UNLIKE:g}-fold) is not softmax but a(0) ≠ 0"
        if decides
        else f"whether a(0) is zero does not decide here whether blocks differ more than {UNLIKE:g}-fold"
    )
    apart = [
        activation_in_words(name) for name in found if kind[name] == NONE and not 1 / UNLIKE <= found[name] <= UNLIKE
    ]
    rest = f"; without a value at zero scores they are apart too: {several(apart)}" if apart else ""
    return f"{start}{'; '.join(told)}: {verdict}{rest}."


def _sigmoid(result: Result, place: str) -> str:
    names = choices(result, "activation")
    if "softmax" not in names or "sigmoid" not in names:
        return ""
    more = drawn_ratios(result, place, "sigmoid") / drawn_ratios(result, place, "softmax")
    return (
        f"{PLACES[place]} sigmoid separates the two blocks {short(geometric_mean(more))} times as much as softmax "
        f"({span(more)} over {len(more)} draws)."
    )


FINDINGS = Findings(tell)
