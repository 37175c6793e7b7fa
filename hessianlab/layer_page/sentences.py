"""What the numbers say, in sentences that are computed from them."""

from __future__ import annotations

from hessianlab.layer_page.facts import Curvature, LayerFacts
from hessianlab.layer_page.witnesses import TOLERANCE
from hessianlab.wording import be, count, number, percent, roughly, several


def findings(facts: LayerFacts) -> dict[str, str]:
    """One statement a section, by the section's name."""
    return {
        "witnesses": _witnesses(facts),
        "blocks": _blocks(facts),
        "curvature": _curvature(facts),
        "growth": _growth(facts),
        "pairs": _pairs(facts),
        "ranks": _ranks(facts),
        "sharpness": _sharpness(facts),
    }


def whole(facts: LayerFacts, part: str = "full") -> Curvature:
    """Trace and spectrum of the whole matrix."""
    return next(c for c in facts.curvatures if c.name == "all" and c.part == part)


def _witnesses(facts: LayerFacts) -> str:
    worst = number(max(a.worst for a in facts.agreements), 1)
    if facts.witnesses_agree:
        return f"The three witnesses agree on every part; the largest relative difference is {worst}."
    wrong = several([a.part for a in facts.agreements if not a.agree])
    return f"The three witnesses do not agree on {wrong}; the largest relative difference is {worst}."


def _blocks(facts: LayerFacts) -> str:
    square = {(b.row, b.column): (1 if b.row == b.column else 2) * b.full**2 for b in facts.blocks}
    total = sum(square.values())
    score = sum(value for (row, column), value in square.items() if "V" not in (row, column))
    cross = sum(value for (row, column), value in square.items() if "V" in (row, column) and row != column)
    ratios = {f"{b.row}{b.column}": b.functional / b.outer for b in facts.blocks if b.outer and b.functional}
    dominated = [name for name, ratio in ratios.items() if ratio > 1]
    tail = (
        f"the functional part is larger than the outer product in {several(dominated)}."
        if dominated
        else "the outer product is the larger part of every block."
    )
    return (
        f"Of the squared norm of H, {percent(score / total)} lie in the query-key part (QQ, QK, KK), "
        f"{percent(cross / total)} between values and queries or keys, {percent(square['V', 'V'] / total)} in VV; "
        f"{tail}"
    )


def _curvature(facts: LayerFacts) -> str:
    full, outer = whole(facts), whole(facts, "outer")
    head = (
        f"{full.negative} of the {full.size} eigenvalues of H {be(full.negative)} negative, with "
        f"{percent(full.negative_share)} of its absolute curvature"
        if full.negative
        else f"None of the {full.size} eigenvalues of H is negative"
    )
    tail = "the outer product has none" if outer.negative == 0 else f"the outer product has {outer.negative}"
    return f"{head}; {tail}."


def _growth(facts: LayerFacts) -> str:
    curves = facts.growth.curves
    tested = [c for c in curves if c.slope is not None and c.predicted is not None]
    agree = [c for c in tested if c.verdict == "agree"]
    zero = [c for c in curves if c.slope is None and c.predicted is None]
    gap = max((abs((c.slope or 0) - (c.predicted or 0)) for c in tested), default=0.0)
    which = f"All {len(tested)}" if len(agree) == len(tested) else f"{len(agree)} of {len(tested)}"
    text = f"{which} fitted exponents agree with the predicted ones; the largest deviation is {number(gap, 1)}."
    if zero:
        text += f" {count(len(zero), 'block')} predicted to be identically zero {be(len(zero))} exactly zero."
    differ = [f"{c.activation} {c.part} {c.row}{c.column}" for c in curves if c.verdict == "differ"]
    absent = [f"{c.activation} {c.part} {c.row}{c.column}" for c in curves if c.verdict == "vanishes"]
    text += f" Not as predicted: {several(differ)}." if differ else ""
    return text + (f" Zero for these tokens, so not measurable: {several(absent)}." if absent else "")


def _pairs(facts: LayerFacts) -> str:
    pairs = facts.pairs
    half = 2 * pairs.negative == pairs.nonzero
    follow = "follow" if pairs.largest_difference < TOLERANCE else "should follow, but do not,"
    return (
        f"All {len(pairs.dense)} eigenvalues of the T-functional part {follow} from the {len(pairs.singular_values)} "
        f"singular values of one {facts.config.d_model} × {facts.config.d_model} matrix, with a largest relative "
        f"difference of {number(pairs.largest_difference, 1)}; {pairs.nonzero} {be(pairs.nonzero)} non-zero and "
        f"{pairs.negative} of these {be(pairs.negative)} negative{', exactly half' if half else ''}."
    )


def _ranks(facts: LayerFacts) -> str:
    ranks = facts.ranks
    attained = sum(r.measured == r.bound for r in ranks)
    above = sum(r.measured > r.bound for r in ranks)
    text = (
        f"The bound on the rank of the T-outer-product part is attained in {attained} of {len(ranks)} cases and "
        f"exceeded in {above or 'none'}; "
    )
    if any(r.exact is None for r in ranks):
        return text + "the exact formula is for softmax, one sequence and no mask, and is not tested here."
    exact = sum(r.measured == r.exact for r in ranks)
    low = sum(r.measured < (r.exact or 0) for r in ranks)
    text += f"the exact formula holds in {'all' if exact == len(ranks) else f'{exact} of'} {len(ranks)}."
    return text + (f" In {low} the measured rank is lower: eigenvalues have sunk below rounding." if low else "")


def _sharpness(facts: LayerFacts) -> str:
    first, last = facts.sharpness[0], facts.sharpness[-1]
    moves = {"QQ outer": "outer_qq", "QQ functional": "functional_qq", "VV": "outer_vv"}
    parts = [f"the {label} norm {_move(getattr(first, f), getattr(last, f))}" for label, f in moves.items()]
    text = f"With the query weights from {first.scale:,g} to {last.scale:,g} times as large, {several(parts)}"
    if first.entropy is None or last.entropy is None:
        return f"{text}; the rows of {facts.config.activation} are not distributions, so they have no entropy."
    return f"{text}, while the mean entropy {_move(first.entropy, last.entropy, ' nats')}."


def _move(before: float | None, after: float | None, unit: str = "") -> str:
    if before is None or after is None:
        return "leaves the range of floating-point numbers"
    old, new = roughly(before), roughly(after)
    return f"is {new}{unit} at both ends" if old == new else f"goes from {old} to {new}{unit}"
