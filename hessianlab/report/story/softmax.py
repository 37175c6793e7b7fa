"""The role of softmax: what separates the blocks is the value of the activation at zero."""

from __future__ import annotations

from collections.abc import Mapping

from hessianlab.claims.ledger import Ledger
from hessianlab.experiments.common.means import geometric_mean
from hessianlab.figures.presentation.activation_offset import OFFSET, ZERO, a_zero_decides, kinds, ratios
from hessianlab.report.story.chapter import Answer, Chapter, Number, Results
from hessianlab.results.table import block_ratios, choices, short
from hessianlab.wording import activation_in_words, several


def answer(results: Results, _ledger: Ledger | None) -> Answer | None:
    """Which activations separate the blocks, and whether their value at zero decides."""
    if "activation_offset" not in results:
        return None
    result = results["activation_offset"]
    place, kind = choices(result, "place")[0], kinds(result)
    found = ratios(result, place)
    offset, without = ({name: found[name] for name in found if kind[name] == which} for which in (OFFSET, ZERO))
    others = [name for name in offset if name != "softmax"]
    numbers = tuple(
        Number(
            f"{activation_in_words(name)}: value over query", short(ratio), "above 1" if name in offset else "about 1"
        )
        for name, ratio in (offset | without).items()
    ) + _published(results)
    if "softmax" not in offset or not others or not a_zero_decides(result, place):
        return Answer("open", "not decided", _ratios_in_words(found), numbers)
    strongest = max(offset, key=lambda name: offset[name])
    sentence = (
        f"Softmax separates the blocks {short(found['softmax'])}-fold (root mean square entries), and so does every "
        f"activation (what turns scores into weights) that is not zero at a score of zero, "
        f"{activation_in_words(strongest)} most ({short(offset[strongest])}-fold, "
        f"{short(offset[strongest] / found['softmax'])} times as much); with those that are zero there "
        f"({several([activation_in_words(name) for name in without])}) the blocks are alike."
    )
    return Answer("no", "no: any activation with a(0) ≠ 0 does", sentence, numbers)


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
    told = several([f"{short(ratio)} with {activation_in_words(name)}" for name, ratio in found.items()])
    return f"The entries of the value block over those of the query block: {told}."


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
