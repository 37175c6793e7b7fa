"""Statements about training that each carry the number they rest on, and the blocks to look at first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from hessianlens.errors import first_names
from hessianlens.inspect.table import CurvatureTable, Row, times
from hessianlens.network.head_health import AttentionHealth, HeadAlarm, LayerAttentionMeans
from hessianlens.network.head_sums import SATURATED

COMPARABLE_FACTOR = 10.0
"""Blocks whose scales differ by less than this factor are called comparable."""
DOMINATED = 0.5
"""A block with more than this share of all squared norms dominates."""
NOISY = 0.01
"""Share of a norm that may be rounding, above which it is said."""
COLLAPSED = 0.1
"""Attention with less than this share of the entropy of equal weights has collapsed."""


@dataclass(frozen=True)
class Statement:
    """One thing that the numbers say.

    Attributes:
        kind: "scale", "vectors", "dominated", "noise", "flat", "entropy", "saturated" or "head".
        text: The statement, with its number and its reason.
        value: The number.
        blocks: What it is about.
    """

    kind: str
    text: str
    value: float
    blocks: tuple[str, ...] = ()


def advice_text(statements: Sequence[Statement]) -> str:
    """All statements as one text."""
    return " ".join(statement.text for statement in statements)


def table_statements(table: CurvatureTable) -> list[Statement]:
    """What the norms say: first of the matrices, then of biases and gains, then what to be careful with.

    >>> from hessianlens.spectra import Estimate
    >>> sizes = {"q": 0.1, "v": 4.0, "o": 8.0}
    >>> rows = [Row(name, (4, 4), {"full": Estimate.exactly(size)}) for name, size in sizes.items()]
    >>> for statement in table_statements(CurvatureTable(tuple(rows), 3)):
    ...     print(statement.kind, round(statement.value, 3), statement.blocks)
    scale 80.0 ('o', 'q')
    dominated 0.8 ('o',)
    """
    curved = [row for row in table.rows if row.name not in table.flat]
    matrices = [row for row in curved if len(row.shape) > 1]
    vectors = [row for row in curved if len(row.shape) < 2]
    found = [_scale(table, matrices or vectors)]
    if matrices and vectors:
        found.append(_vectors(matrices, vectors))
    found += [*_dominated(curved), *_noise(table, curved)]
    if table.flat:
        found.append(Statement("flat", f"Flat, up to rounding: {first_names(table.flat, 3)}.", 0.0, table.flat))
    return found


def _scale(table: CurvatureTable, rows: Sequence[Row]) -> Statement:
    if len(rows) < 2:
        return Statement("scale", "Fewer than two blocks with curvature: there is nothing to compare.", 1.0)
    top, bottom = max(rows, key=lambda row: row.rms), min(rows, key=lambda row: row.rms)
    factor = top.rms / bottom.rms
    matrices = " matrices" if len(rows[0].shape) > 1 and any(len(row.shape) < 2 for row in table.rows) else " blocks"
    if factor < COMPARABLE_FACTOR:
        text = f"Comparable scales: all{matrices} within a factor of {times(factor)}."
        return Statement("scale", text, factor, (top.name, bottom.name))
    text = (
        f"Scales differ: {top.name} has {times(factor)} times the curvature of {bottom.name} (rms eigenvalues "
        f"{top.rms:.2g} and {bottom.rms:.2g}). One learning rate of plain gradient descent does not fit both; a method "
        "that rescales every block, such as Adam, does not need one rate to."
    )
    return Statement("scale", text, factor, (top.name, bottom.name))


def _vectors(matrices: Sequence[Row], vectors: Sequence[Row]) -> Statement:
    top = max(vectors, key=lambda row: row.rms)
    middle = median(row.rms for row in matrices)
    factor = top.rms / middle
    text = (
        f"Biases and gains of norms: the sharpest, {top.name}, has {times(factor)} times the curvature of the "
        "median matrix."
    )
    return Statement("vectors", text, factor, (top.name,))


def _dominated(rows: Sequence[Row]) -> list[Statement]:
    total = sum(row.norm**2 for row in rows)
    if len(rows) < 3 or not total:
        return []
    top = max(rows, key=lambda row: row.norm)
    share = top.norm**2 / total
    if share <= DOMINATED:
        return []
    text = (
        f"Dominated: {top.name} alone holds {_percent(share)} of the squared norms of all blocks; what is measured of "
        "the whole model is mostly this block."
    )
    return [Statement("dominated", text, share, (top.name,))]


def _noise(table: CurvatureTable, rows: Sequence[Row]) -> list[Statement]:
    """Products are rounded relative to the largest block; what is left of that in a small one may be its norm."""
    largest = max((row.norm for row in rows), default=0.0)
    noisy = [row for row in rows if table.eps * largest > NOISY * row.norm]
    if not noisy:
        return []
    worst = min(noisy, key=lambda row: row.norm)
    share = table.eps * largest / worst.norm
    text = (
        f"Near the floor of rounding: up to {_percent(share)} of the norm of {worst.name} may be rounding (unit "
        f"{table.eps:.1g}, largest norm {largest:.2g}); of {first_names([row.name for row in noisy], 3)} more than "
        f"{_percent(NOISY)}. Measure in float64."
    )
    return [Statement("noise", text, share, tuple(row.name for row in noisy))]


def attention_statements(layers: Mapping[str, LayerAttentionMeans]) -> list[Statement]:
    """What attention says: collapsed entropies and saturated rows, each of the worst layer.

    >>> even, narrow = LayerAttentionMeans(2.0, 1.8, 0.9, 0.0), LayerAttentionMeans(0.02, 0.0, 0.01, 0.9)
    >>> [statement.kind for statement in attention_statements({"layer0": even, "layer1": narrow})]
    ['entropy', 'saturated']
    """
    found = []
    collapsed = {name: means for name, means in layers.items() if means.share < COLLAPSED}
    if collapsed:
        name = min(collapsed, key=lambda n: collapsed[n].share)
        means = collapsed[name]
        others = f" ({len(collapsed)} layers below {_percent(COLLAPSED)})" if len(collapsed) > 1 else ""
        text = (
            f"Entropy collapse: attention of {name} keeps {_percent(means.share)} of the entropy of equal weights "
            f"({means.entropy:.2g} nats, lowest head {means.lowest:.2g}){others}; such training tends to be "
            "unstable. Lower the learning rate of its queries and keys, or normalise them."
        )
        found.append(Statement("entropy", text, means.share, tuple(collapsed)))
    name = max(layers, key=lambda n: layers[n].saturated, default="")
    if name and layers[name].saturated > DOMINATED:
        share = layers[name].saturated
        text = (
            f"Saturated softmax: {_percent(share)} of the rows of {name} put more than {_percent(SATURATED)} on one "
            "token; the derivatives of its queries and keys all but vanish there."
        )
        found.append(Statement("saturated", text, share, (name,)))
    return found


def alarm_statements(health: AttentionHealth) -> list[Statement]:
    """The alarms of single heads, one statement per kind of alarm that layers as a whole do not raise."""
    found: dict[str, list[HeadAlarm]] = {}
    for alarm in health.alarms():
        found.setdefault(alarm.rule.kind, []).append(alarm)
    return [_alarm_statement(alarms) for kind, alarms in found.items() if kind != "entropy collapse"]


def _alarm_statement(alarms: Sequence[HeadAlarm]) -> Statement:
    worst = (max if alarms[0].rule.above else min)(alarms, key=lambda alarm: alarm.value)
    others = f" ({len(alarms)} heads)" if len(alarms) > 1 else ""
    quantity = worst.rule.quantity.replace("_", " ")
    text = (
        f"{worst.rule.kind.capitalize()}: {worst.head} has {quantity} {worst.value:.3g}, threshold "
        f"{worst.rule.threshold:g}{others}; {worst.rule.remedy}."
    )
    return Statement("head", text, worst.value, tuple(alarm.head for alarm in alarms))


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


_THREE = 3


@dataclass(frozen=True)
class NotableBlock:
    """A block and what is to be said of it."""

    name: str
    why: str


def notable_blocks(table: CurvatureTable, count: int = _THREE) -> list[NotableBlock]:
    """At most three blocks: what limits the step, what learns slowest, what is least like Gauss-Newton, what is large.

    Matrices come before biases and gains. A block that is named once is not named again.

    >>> from hessianlens.spectra import Estimate
    >>> sizes = {"q": (0.1, 0.02), "v": (4.0, 4.0), "o": (8.0, 8.0)}
    >>> norms = {n: {"full": Estimate.exactly(h), "ggn": Estimate.exactly(g)} for n, (h, g) in sizes.items()}
    >>> table = CurvatureTable(tuple(Row(n, (4, 4), found) for n, found in norms.items()), 3)
    >>> [block.name for block in notable_blocks(table)]
    ['o', 'q', 'v']
    """
    found: dict[str, str] = {}
    for name, why in _reasons(table):
        if len(found) < count:
            found.setdefault(name, why)
    return [NotableBlock(name, why) for name, why in found.items()]


def _reasons(table: CurvatureTable) -> Iterator[tuple[str, str]]:
    curved = [row for row in table.rows if row.name in table.scales]
    rows = [row for row in curved if len(row.shape) > 1] or curved
    if not rows:
        return
    middle, kind = median(row.rms for row in rows), "matrix" if len(rows[0].shape) > 1 else "block"
    top, flattest = max(rows, key=lambda row: row.rms), min(rows, key=lambda row: row.rms)
    yield (
        top.name,
        f"the sharpest: {times(top.rms / middle)} times the curvature of the median {kind} (rms eigenvalue "
        f"{top.rms:.2g}). It limits the learning rate of whatever shares one with it.",
    )
    if flattest.name != top.name:
        yield (
            flattest.name,
            f"the flattest: {times(flattest.rms / middle)} times the curvature of the median {kind} (rms eigenvalue "
            f"{flattest.rms:.2g}). With one learning rate for all it learns slowest.",
        )
    ratios = {row.name: ratio for row in rows if (ratio := table.ratio(row)) is not None}
    if ratios:
        least = max(ratios, key=lambda name: ratios[name])
        yield (
            least,
            f"the furthest from Gauss-Newton: its functional part is {ratios[least]:.2g} times its outer product. "
            "Negative curvature is most likely here, and a Gauss-Newton method misses most of this block.",
        )
    for row in sorted(rows, key=lambda row: -row.norm):
        yield row.name, f"among the largest: its norm is {row.norm:.3g}, {_share(row, curved):.0f} % of all, squared."


def _share(row: Row, rows: list[Row]) -> float:
    return 100 * row.norm**2 / sum(other.norm**2 for other in rows)
