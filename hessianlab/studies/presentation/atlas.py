"""The atlas of a trained model in sentences and charts: curvature by depth, trained beside freshly initialised."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hessianlab.experiments.statistics import geometric_mean, numbers, rank_correlation, select
from hessianlab.plots.picture import Presentation, ResultPicture
from hessianlab.plots.style import panels
from hessianlab.results import Chart, Panel, Result, Series
from hessianlab.studies.atlas import STUDY_ATLAS, AtlasConfig
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

ENDS = {"embed": "embedding", "norm_final": "last norm"}
"""Blocks that belong to no layer."""

GROUPS = {
    "embedding": ("embedding",),
    "queries and keys": ("queries", "keys"),
    "MLP": ("MLP gate", "MLP in", "MLP out"),
    "values and output": ("values", "output projection"),
    "norms": ("norm before attention", "norm before the MLP", "last norm"),
}
"""Groups in the order in which the literature on sharpness has them, the flattest first."""

_NAMES = {"smollm2": "SmolLM2-135M-Instruct", "minilm": "all-MiniLM-L6-v2"}
"""Models by the names under which people know them."""

_NOTES = {
    "smollm2": " Its embedding is also its unembedding.",
    "minilm": " Its norms stand behind attention and behind the MLP, not before them.",
}

Key = tuple[str, int]
"""Weights and length."""


def settings(result: Result) -> list[Key]:
    """Weights and lengths that were looked at."""
    return list(dict.fromkeys((str(c.parameters["weights"]), int(str(c.parameters["length"]))) for c in result.cells))


def sizes(result: Result, key: Key, kind: str, part: str = "full") -> dict[int, tuple[float, float, float]]:
    """Root mean square eigenvalue of the blocks of a kind, ``||H||_F / sqrt(n)``, with its interval, by layer."""
    weights, length = key
    found = {}
    for row in select(result, stage="norm", weights=weights, length=length, part=part):
        if str(row["block"]) == kind or str(row["block"]).endswith(f".{kind}"):
            unit = 1 / math.sqrt(float(row["size"]))
            found[int(row["layer"])] = tuple(unit * float(row[name]) for name in ("value", "low", "high"))
    return found  # type: ignore[return-value]


def ratios(result: Result, key: Key, above: str, below: str, part: str = "full") -> dict[int, float]:
    """Of two kinds of blocks, by layer; where both are positive."""
    one, two = sizes(result, key, above, part), sizes(result, key, below, part)
    return {n: one[n][0] / two[n][0] for n in sorted(one.keys() & two.keys()) if one[n][0] > 0 < two[n][0]}


def functional_share(result: Result, key: Key, kind: str) -> dict[int, float]:
    """Norm of the functional part over that of the Gauss-Newton part, by layer."""
    one, two = sizes(result, key, kind, "functional"), sizes(result, key, kind, "ggn")
    return {n: one[n][0] / two[n][0] for n in sorted(one.keys() & two.keys()) if one[n][0] > 0 < two[n][0]}


def heads(result: Result, key: Key, quantity: str) -> dict[int, list[float]]:
    """A number of every head, by layer."""
    found: dict[int, list[float]] = {}
    for row in select(result, stage="attention", weights=key[0], length=key[1]):
        found.setdefault(int(row["layer"]), []).append(float(row[quantity]))
    return found


def ranked(result: Result, key: Key) -> list[tuple[str, float]]:
    """Kinds of blocks by the geometric mean over layers of their root mean square eigenvalue, the largest first."""
    means = {name: [one[0] for one in sizes(result, key, kind).values()] for kind, name in {**KINDS, **ENDS}.items()}
    present = {name: geometric_mean(values) for name, values in means.items() if values}
    return sorted(present.items(), key=lambda item: -item[1])


def diagonal_shares(result: Result, key: Key) -> dict[int, float]:
    """Share of a layer's squared Frobenius norm that lies in its diagonal blocks, by layer."""
    found: dict[int, list[float]] = {}
    for row in select(result, stage="pair", weights=key[0], length=key[1]):
        own, square = row["row"] == row["column"], float(row["value"]) ** 2
        sums = found.setdefault(int(row["layer"]), [0.0, 0.0])
        sums[0] += square if own else 0.0
        sums[1] += square if own else 2 * square
    return {layer: own / total for layer, (own, total) in found.items() if total > 0}


# --- sentences --------------------------------------------------------------------------------------------------------


def sentences(result: Result) -> list[str]:
    """What survives training."""
    keys = settings(result)
    first = [key for key in keys if key[1] == keys[0][1]]
    found = [_separation(result, first), _lengths(result, keys), *(_order(result, key) for key in first)]
    found += [_groups(result, first), _diagonal(result, first), _attention(result, first), _functional(result, first)]
    return [*filter(None, [*found, *(_spectra(result, key) for key in first)]), _setting(result)]


def _factor(found: dict[int, float]) -> str:
    low, high = min(found, key=lambda n: found[n]), max(found, key=lambda n: found[n])
    mean = short(geometric_mean(list(found.values())))
    return f"{mean} (from {short(found[low])} in layer {low} to {short(found[high])} in layer {high})"


def _separation(result: Result, keys: list[Key]) -> str:
    parts = []
    for key in keys:
        if found := ratios(result, key, "attn.v", "attn.q"):
            below = sum(value < 1 for value in found.values())
            fewer = f", below 1 in {below} of {len(found)} layers" if below else ""
            parts.append(f"{_factor(found)} with {key[0]} weights{fewer}")
    return (
        f"In {_NAMES.get(str(result.config['model']), str(result.config['model']))} the root mean square eigenvalue of "
        f"values is that of queries times {several(parts)}; {keys[0][1]} tokens per sequence, geometric means over "
        "layers."
        if parts
        else ""
    )


def _lengths(result: Result, keys: list[Key]) -> str:
    """The same layers at every length."""
    parts = []
    for weights in dict.fromkeys(weights for weights, _ in keys):
        by_length = {n: ratios(result, (w, n), "attn.v", "attn.q") for w, n in keys if w == weights}
        common = set.intersection(*(set(found) for found in by_length.values()))
        if len(by_length) > 1 and common:
            means = [
                f"{short(geometric_mean([found[layer] for layer in common]))} with {length} tokens"
                for length, found in sorted(by_length.items())
            ]
            layers = several([str(layer) for layer in sorted(common)])
            parts.append(f"{weights} weights, layers {layers}: {several(means)}")
    return f"Values over queries by length, geometric means. {'; '.join(parts).capitalize()}." if parts else ""


def _order(result: Result, key: Key) -> str:
    order = [f"{name} {short(size)}" for name, size in ranked(result, key)]
    return (
        f"Root mean square eigenvalues with {key[0]} weights, {key[1]} tokens, the largest first: {', '.join(order)}."
        if order
        else ""
    )


def _groups(result: Result, keys: list[Key]) -> str:
    parts = []
    for key in keys:
        found = dict(ranked(result, key))
        means = {
            group: geometric_mean([found[name] for name in names if name in found])
            for group, names in GROUPS.items()
            if any(name in found for name in names)
        }
        order = sorted(means, key=lambda group: means[group])
        parts.append(f"{key[0]} {' < '.join(f'{group} ({short(means[group])})' for group in order)}")
    return f"In groups, beside the order that is reported for trained models, {' < '.join(GROUPS)}: {'; '.join(parts)}."


def _diagonal(result: Result, keys: list[Key]) -> str:
    parts = []
    for key in keys:
        if found := diagonal_shares(result, key):
            shares = several([f"{100 * share:.0f} % in layer {layer}" for layer, share in sorted(found.items())])
            parts.append(f"{key[0]}: {shares}")
    return f"Share of a layer's squared norm in its diagonal blocks, {'; '.join(parts)}." if parts else ""


def _attention(result: Result, keys: list[Key]) -> str:
    parts = []
    for key in keys:
        entropy, first = (_all(heads(result, key, name)) for name in ("entropy", "first_token"))
        if entropy:
            sinks = sum(weight > 0.5 for weight in first)
            parts.append(
                f"{key[0]}: entropy {short(sum(entropy) / len(entropy))} of the largest possible, {sinks} of "
                f"{len(first)} heads with more than half of their weight on the first token"
            )
    related = entropy_and_queries(result, keys[0])
    flat = (
        f" Over the layers with {keys[0][0]} weights the entropy and the queries' eigenvalues have the rank "
        f"correlation {related.mean:.2f} [{related.low:.2f}, {related.high:.2f}]."
        if related
        else ""
    )
    return f"Attention with {keys[0][1]} tokens, {'; '.join(parts)}.{flat}" if parts else ""


def _functional(result: Result, keys: list[Key]) -> str:
    parts = []
    for key in keys:
        shares = [
            f"{name} {short(geometric_mean(list(found.values())))}"
            for kind, name in KINDS.items()
            if (found := functional_share(result, key, kind))
        ]
        if shares:
            parts.append(f"{key[0]}: {', '.join(shares)}")
    return f"Functional over Gauss-Newton part, norms, with {keys[0][1]} tokens, {'; '.join(parts)}." if parts else ""


def _spectra(result: Result, key: Key) -> str:
    rows = select(result, stage="spectrum", weights=key[0], length=key[1])
    if not rows:
        return ""
    deep = sorted(rows, key=lambda row: float(row["smallest"]) / float(row["largest"]))[:3]
    words = [f"{row['block']} from {short(float(row['smallest']))} to {short(float(row['largest']))}" for row in deep]
    negative = sum(float(row["trace"]) < 0 for row in rows)
    return (
        f"Spectra with {key[0]} weights, {key[1]} tokens: the trace is negative in {negative} of {len(rows)} blocks; "
        f"most negative against its largest eigenvalue: {'; '.join(words)}."
    )


def _setting(result: Result) -> str:
    config = result.config
    losses = [f"{row['weights']} {short(float(row['value']))}" for row in select(result, stage="loss")]
    return (
        f"Model {config['model']}; {config['tokens']} tokens of plain English prose, {config['probes']} probe vectors "
        f"per block, float32; loss in nats: {several(losses)}. Intervals of single norms are 95 % intervals over "
        f"probes, and none covers another text.{_NOTES.get(str(config['model']), '')}"
        if losses
        else ""
    )


def _all(by_layer: dict[int, list[float]]) -> list[float]:
    return [value for values in by_layer.values() for value in values]


# --- charts -----------------------------------------------------------------------------------------------------------


def depth_chart(result: Result) -> Chart:
    """Eigenvalues by layer, values over queries, and attention; a panel each."""
    keys = [key for key in settings(result) if key[1] == settings(result)[0][1]]
    sized = tuple(
        Panel(
            f"root mean square eigenvalue, {weights} weights",
            tuple(
                _line(name, found) for kind, name in KINDS.items() if (found := sizes(result, (weights, length), kind))
            ),
            log_y=True,
        )
        for weights, length in keys
    )
    quotients = tuple(
        _line(key[0], {n: (value, value, value) for n, value in ratios(result, key, "attn.v", "attn.q").items()})
        for key in keys
    )
    entropies = tuple(
        _line(key[0], {n: (sum(v) / len(v), min(v), max(v)) for n, v in heads(result, key, "entropy").items()})
        for key in keys
    )
    return Chart(
        f"By layer, {keys[0][1]} tokens per sequence. Above: root mean square eigenvalue of a block's Hessian, its "
        "Frobenius norm over the root of its number of weights; bands are 95 % intervals over probe vectors. Below: "
        "the same of values over that of queries, and the mean entropy of attention over the largest possible, with "
        "the range over heads.",
        "layer",
        "",
        (*sized, Panel("values over queries", quotients, log_y=True), Panel("entropy of attention", entropies)),
        columns=len(keys) if len(keys) > 1 else 3,
    )


def _line(name: str, found: dict[int, tuple[float, float, float]]) -> Series:
    rows = sorted(found.items())
    ends = (tuple(max(one[k], 1e-30) for _, one in rows) for k in range(3))
    return Series(name, tuple(float(layer) for layer, _ in rows), *ends)


def entropy_and_queries(result: Result, key: Key) -> Interval | None:
    """Rank correlation over layers of the mean entropy of attention with the queries' root mean square eigenvalue."""
    means = {n: sum(values) / len(values) for n, values in heads(result, key, "entropy").items()}
    queries = sizes(result, key, "attn.q")
    layers = sorted(means.keys() & queries.keys())
    if len(layers) < 4:
        return None
    return Interval(*rank_correlation([means[n] for n in layers], [queries[n][0] for n in layers]), len(layers), 0.0)


def layer_gap(result: Result, key: Key, layer: int) -> Interval:
    """Logarithm of values over queries in one layer; the interval over probes joins the ends of the two."""
    above, below = (sizes(result, key, kind)[layer] for kind in ("attn.v", "attn.q"))
    mean, low, high = (math.log(a / b) for a, b in zip(above, (below[0], below[2], below[1]), strict=True))
    return Interval(mean, low, high, int(str(result.config["probes"])), 0.0)


def level_intervals(result: Result) -> dict[str, Interval]:
    """Over layers, not over texts or trainings."""
    found: dict[str, Interval] = {}
    for weights, length in settings(result):
        key, name = (weights, length), f"{weights}, {length} tokens"
        values = {"values over queries": ("attn.v", "attn.q"), "queries over keys": ("attn.q", "attn.k")}
        for what, kinds in values.items():
            found[f"{name}: log {what}"] = interval([math.log(v) for v in ratios(result, key, *kinds).values()])
        for what, quantity in (("entropy of heads", "entropy"), ("weight of the first token", "first_token")):
            found[f"{name}: {what}"] = interval(_all(heads(result, key, quantity)))
        for kind, block in KINDS.items():
            if shares := functional_share(result, key, kind):
                logs = [math.log(share) for share in shares.values()]
                found[f"{name}: log functional over Gauss-Newton, {block}"] = interval(logs)
        for layer in sorted(ratios(result, key, "attn.v", "attn.q")):
            found[f"{name}: log values over queries, layer {layer}"] = layer_gap(result, key, layer)
        if (related := entropy_and_queries(result, key)) is not None:
            found[f"{name}: rank correlation of entropy and queries over layers"] = related
        if diagonal := diagonal_shares(result, key):
            found[f"{name}: share in diagonal blocks"] = interval(list(diagonal.values()))
    return found


def in_record(result: Result, _known: object = None) -> dict[str, Any]:
    """What is recorded."""
    protocol = STUDY_ATLAS.statement(AtlasConfig(**result.config))
    return record(result, level_intervals(result), {}, sentences(result), depth_chart(result), protocol=protocol)


FINDINGS = StudyFindings(sentences, in_record, depth_chart)


def draw_atlas(result: Result, _reference: object = None) -> list[ResultPicture]:
    """Curvature by depth, and the pairs of blocks of some layers."""
    chart = depth_chart(result)
    drawn = [ResultPicture("depth", draw_chart(chart, width=4.6, height=3.6), chart.caption)]
    shown = [(key[0], layer) for key in settings(result) for layer in diagonal_shares(result, key)]
    return [*drawn, _pair_picture(result, shown)] if shown else drawn


def _pair_picture(result: Result, shown: list[tuple[str, int]]) -> ResultPicture:
    """Norms of all pairs of blocks of a layer, relative to the geometric mean of the two diagonal ones."""
    with panels(min(2, len(shown)), -(-len(shown) // 2), width=4.2, height=3.8) as (figure, all_axes):
        for axes, (weights, layer) in zip(all_axes, shown, strict=False):
            rows = select(result, stage="pair", weights=weights, layer=layer)
            names = list(dict.fromkeys(str(row["row"]).split(".", 1)[1] for row in rows))
            norms = np.zeros((len(names), len(names)))
            norms[np.triu_indices(len(names))] = numbers(rows, "value")
            norms = np.maximum(norms, norms.T)
            own = np.sqrt(np.diag(norms))
            with np.errstate(invalid="ignore", divide="ignore"):
                image = axes.imshow(np.log10(norms / np.outer(own, own)), cmap="RdBu_r", vmin=-1.5, vmax=1.5)
            axes.grid(visible=False)
            axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
            axes.set_yticks(range(len(names)), names, fontsize=7)
            axes.set_title(f"{weights}, layer {layer}")
        for axes in all_axes[len(shown) :]:
            axes.set_axis_off()
        figure.colorbar(image, ax=list(all_axes), shrink=0.6, label="log10 of the norm, over the diagonal blocks")
    return ResultPicture(
        "pairs",
        figure,
        "Frobenius norm of the Hessian between any two blocks of a layer, over the geometric mean of the two diagonal "
        "blocks: 0 is as large as they, 1 ten times as large, -1 a tenth.",
    )


PRESENTATIONS = {"study_atlas": Presentation(FINDINGS, draw_atlas)}
