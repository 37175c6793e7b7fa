"""The atlas of a trained model in sentences and charts: curvature by depth, trained beside freshly initialised."""

from __future__ import annotations

import math
from typing import Any

from hessianlab.experiments.statistics import choices, geometric_mean, select
from hessianlab.plots.picture import Presentation, ResultPicture
from hessianlab.results import Chart, Panel, Result, Series
from hessianlab.studies.presentation.drawing import draw_chart
from hessianlab.studies.presentation.findings import StudyFindings
from hessianlab.studies.presentation.paired import Interval, interval, record
from hessianlab.wording import several, short

KINDS = {
    "attn.q": "queries",
    "attn.k": "keys",
    "attn.v": "values",
    "attn.o": "output projection",
    "mlp.gate": "MLP gate",
    "mlp.in": "MLP in",
    "mlp.out": "MLP out",
    "norm1": "norm before attention",
    "norm2": "norm before the MLP",
}
"""Kinds of blocks by the ends of their names, in the order of a layer."""

Key = tuple[str, int]
"""Weights and length."""


def settings(result: Result) -> list[Key]:
    """Weights and lengths that were looked at."""
    return list(dict.fromkeys((str(c.parameters["weights"]), int(str(c.parameters["length"]))) for c in result.cells))


def sizes(result: Result, key: Key, kind: str, part: str = "full") -> dict[int, tuple[float, float, float]]:
    """Root mean square curvature per weight of the blocks of a kind, with its interval, by layer."""
    weights, length = key
    found = {}
    for row in select(result, stage="norm", weights=weights, length=length, part=part):
        if str(row["block"]).endswith(f".{kind}"):
            unit = 1 / math.sqrt(float(row["size"]))
            found[int(row["layer"])] = tuple(unit * float(row[name]) for name in ("value", "low", "high"))
    return found  # type: ignore[return-value]


def ratios(result: Result, key: Key, above: str, below: str, part: str = "full") -> list[float]:
    """Of two kinds of blocks, layer by layer: logarithms."""
    one, two = sizes(result, key, above, part), sizes(result, key, below, part)
    return [math.log(one[n][0] / two[n][0]) for n in sorted(one.keys() & two.keys()) if one[n][0] > 0 < two[n][0]]


def heads(result: Result, key: Key, quantity: str) -> list[float]:
    """A number of every head of every layer."""
    return [float(r[quantity]) for r in select(result, stage="attention", weights=key[0], length=key[1])]


def ranked(result: Result, key: Key) -> list[tuple[str, float]]:
    """Kinds of blocks by the geometric mean over layers of their curvature per weight, the largest first."""
    means = {name: [one[0] for one in sizes(result, key, kind).values()] for kind, name in KINDS.items()}
    present = {name: geometric_mean(values) for name, values in means.items() if values}
    return sorted(present.items(), key=lambda item: -item[1])


def sentences(result: Result) -> list[str]:
    """What survives training."""
    found = []
    for length in sorted({length for _, length in settings(result)}):
        keys = [key for key in settings(result) if key[1] == length]
        found.append(_separation(result, keys, length))
        found += [_order(result, key) for key in keys]
        found += [_attention(result, keys, length), _functional(result, keys, length)]
    found += _negative(result)
    return [*filter(None, found), _setting(result)]


def _factor(logs: list[float]) -> str:
    ends = (math.exp(min(logs)), math.exp(max(logs)))
    return f"{short(math.exp(sum(logs) / len(logs)))} (layers from {short(ends[0])} to {short(ends[1])})"


def _separation(result: Result, keys: list[Key], length: int) -> str:
    parts = []
    for key in keys:
        logs = ratios(result, key, "attn.v", "attn.q")
        if logs:
            parts.append(f"{_factor(logs)} with {key[0]} weights")
    return (
        f"With {length} tokens per sequence, the curvature per weight of values over that of queries is "
        f"{several(parts)}; geometric means over layers."
        if parts
        else ""
    )


def _order(result: Result, key: Key) -> str:
    order = [f"{name} {short(size)}" for name, size in ranked(result, key)]
    return (
        f"Curvature per weight with {key[0]} weights, {key[1]} tokens, the largest first: {', '.join(order)}."
        if order
        else ""
    )


def _attention(result: Result, keys: list[Key], length: int) -> str:
    parts = []
    for key in keys:
        entropy, first = heads(result, key, "entropy"), heads(result, key, "first_token")
        if entropy:
            sinks = sum(weight > 0.5 for weight in first)
            parts.append(
                f"{key[0]}: entropy {short(sum(entropy) / len(entropy))} of the largest possible, {sinks} of "
                f"{len(first)} heads with more than half of their weight on the first token"
            )
    return f"Attention with {length} tokens, {'; '.join(parts)}." if parts else ""


def _functional(result: Result, keys: list[Key], length: int) -> str:
    parts = []
    for key in keys:
        shares = [
            f"{name} {short(math.exp(sum(logs) / len(logs)))}"
            for kind, name in KINDS.items()
            if (logs := _over_ggn(result, key, kind))
        ]
        if shares:
            parts.append(f"{key[0]}: {', '.join(shares)}")
    return f"Functional over Gauss-Newton part, norms, with {length} tokens, {'; '.join(parts)}." if parts else ""


def _over_ggn(result: Result, key: Key, kind: str) -> list[float]:
    one, two = sizes(result, key, kind, "functional"), sizes(result, key, kind, "ggn")
    return [math.log(one[n][0] / two[n][0]) for n in sorted(one.keys() & two.keys()) if one[n][0] > 0 < two[n][0]]


def _negative(result: Result) -> list[str]:
    found = []
    for key in settings(result):
        rows = select(result, stage="spectrum", weights=key[0], length=key[1])
        if rows:
            deep = sorted(rows, key=lambda row: float(row["smallest"]) / float(row["largest"]))[:3]
            words = [
                f"{row['block']} from {short(float(row['smallest']))} to {short(float(row['largest']))}" for row in deep
            ]
            found.append(
                f"Spectra with {key[0]} weights, {key[1]} tokens: most negative against its largest eigenvalue, "
                f"{'; '.join(words)}."
            )
    return found


def _setting(result: Result) -> str:
    config = result.config
    return (
        f"Model {config['model']}; {config['tokens']} tokens of plain English prose, {config['probes']} probe "
        "vectors per block, float32; intervals of single norms are 95 % intervals over probes, and none covers another "
        "text."
    )


def depth_chart(result: Result) -> Chart:
    """Curvature per weight by layer, a panel per weights and length."""

    def line(key: Key, kind: str, name: str) -> Series:
        found = sorted(sizes(result, key, kind).items())
        return Series(
            name, tuple(float(n) for n, _ in found), *(tuple(max(one[k], 1e-30) for _, one in found) for k in range(3))
        )

    panels = tuple(
        Panel(
            f"{weights} weights, {length} tokens",
            tuple(
                line((weights, length), kind, name)
                for kind, name in KINDS.items()
                if sizes(result, (weights, length), kind)
            ),
            log_y=True,
        )
        for weights, length in settings(result)
    )
    return Chart(
        "Root mean square curvature per weight (Frobenius norm of a block's Hessian over the root of its number of "
        "weights) by layer. Bands are 95 % intervals over probe vectors.",
        "layer",
        "curvature per weight",
        panels,
        columns=min(2, len(panels)),
    )


def level_intervals(result: Result) -> dict[str, Interval]:
    """Over layers, not over texts or trainings."""
    found = {}
    for weights, length in settings(result):
        key = (weights, length)
        for name, logs in {
            "log values over queries": ratios(result, key, "attn.v", "attn.q"),
            "log queries over keys": ratios(result, key, "attn.q", "attn.k"),
            "entropy of heads": heads(result, key, "entropy"),
            "weight of the first token": heads(result, key, "first_token"),
        }.items():
            found[f"{weights}, {length} tokens: {name}"] = interval(logs)
    return found


def in_record(result: Result) -> dict[str, Any]:
    """What is recorded."""
    return record(result, level_intervals(result), {}, sentences(result), depth_chart(result))


FINDINGS = StudyFindings(sentences, in_record, depth_chart)


def draw_atlas(result: Result, _reference: object = None) -> list[ResultPicture]:
    """Curvature by depth."""
    chart = depth_chart(result)
    return (
        [ResultPicture("depth", draw_chart(chart, width=5.2, height=4.2), chart.caption)]
        if choices(result, "weights")
        else []
    )


PRESENTATIONS = {"study_atlas": Presentation(FINDINGS, draw_atlas)}
