"""The role of softmax: what separates the blocks is the value of the activation at zero."""

from __future__ import annotations

from collections.abc import Mapping

from hessianlens.lab.claims.ledger import Ledger
from hessianlens.lab.experiments.common.means import geometric_mean
from hessianlens.lab.figures.activation_offset.findings import ratios
from hessianlens.lab.report.story.chapter import Answer, Chapter, Number, Results
from hessianlens.lab.results.table import block_ratios, choices, short
from hessianlens.lab.wording import several

UNLIKE = 10.0
"""Blocks are unlike if their root mean square entries differ by more than this factor."""


def answer(results: Results, _ledger: Ledger | None) -> Answer | None:
    """Which activations separate the blocks, and whether their value at zero decides."""
    found = measured_ratios(results)
    if "softmax" not in found or len(found) < 2:
        return None
    offset = {name: ratio for name, ratio in found.items() if starts_above_zero(name)}
    without = {name: ratio for name, ratio in found.items() if starts_above_zero(name) is False}
    decides = bool(without) and min(offset.values()) > UNLIKE > max(without.values())
    strongest = max(offset, key=lambda name: offset[name])
    others = [name for name in offset if name != "softmax"]
    numbers = tuple(
        Number(f"{_named(name)}: value over query", short(ratio), "above 1" if name in offset else "about 1")
        for name, ratio in (offset | without).items()
    ) + _published(results)
    if not decides or not others:
        return Answer("open", "not decided", _ratios_in_words(found), numbers)
    sentence = (
        f"Softmax separates the blocks {short(found['softmax'])}-fold, and so does every activation that is not zero "
        f"at a score of zero, {_named(strongest)} most ({short(offset[strongest])}-fold, "
        f"{short(offset[strongest] / found['softmax'])} times as much); with those that are zero there "
        f"({several([_named(name) for name in without])}) the blocks are alike."
    )
    return Answer("no", "no: any activation with a(0) ≠ 0 does", sentence, numbers)


def measured_ratios(results: Results) -> dict[str, float]:
    """Root mean square entry of the value block over that of the query block by activation, largest first."""
    result = results.get("activation_offset")
    if result is None:
        return {}
    places = choices(result, "place")
    return ratios(result, "transformer" if "transformer" in places else places[0])


def starts_above_zero(activation: str) -> bool | None:
    """Whether an activation is not zero at a row of zero scores; None if it is not smooth there."""
    from hessianlens.theory.growth import activation_powers

    powers = activation_powers(activation, 6)
    if powers.value is None or (powers.jacobian is not None and powers.jacobian < 0):
        return None
    return powers.value == 0


def _published(results: Results) -> tuple[Number, ...]:
    if "fig4" not in results:
        return ()
    return tuple(
        Number(
            f"{kind} attention: value over query, median entry",
            short(geometric_mean(block_ratios(results["fig4"], attention=kind))),
            "",
            {"softmax": "about 100", "linear": "about 1"}.get(kind, ""),
        )
        for kind in choices(results["fig4"], "attention")
    )


def _ratios_in_words(found: Mapping[str, float]) -> str:
    told = several([f"{short(ratio)} with {_named(name)}" for name, ratio in found.items()])
    return f"The entries of the value block over those of the query block: {told}."


def _named(activation: str) -> str:
    return activation.replace("_", " ")


CHAPTER = Chapter(
    slug="softmax",
    title="Softmax's role",
    question="Is it softmax that makes the blocks unlike?",
    introduction="Taking softmax away and keeping the raw scores makes the blocks alike, which looks like proof. But "
    "raw scores differ from softmax in more than one respect. Putting other functions in its place shows which respect "
    "matters: the value a(0) of the activation at a score of zero. Where it is not zero, values pass even if scores "
    "are small, and the value block stays large while the query block, which only acts through the scores, shrinks.",
    figures=("activation_offset", "fig4", "activation_growth", "temperature_path"),
    topics=("activation", "softmax", "temperature"),
    answer=answer,
)
