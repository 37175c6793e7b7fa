"""What the page says of each thing that was measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from torch import Tensor

from hessianlens.attention.state import attention_picture
from hessianlens.display import Dots, Figure, Grid, Part, Point, Scatter, Section, SideBySide, Spikes, Table, short
from hessianlens.inspect.diagnostics import Diagnostics, SpectrumEnds
from hessianlens.inspect.table import CurvatureTable, Row
from hessianlens.network.head_health import AttentionHealth
from hessianlens.problems import layer_of
from hessianlens.spectra.inertia_shares import RELATIVE_ZERO, in_percent, inertia_of

_HEADINGS = {"full": "|H|", "ggn": "|G|", "functional": "|H - G|"}
_MAPS = 8
"""Attention maps that are shown."""
_ALARMS = 5
"""Alarms of single heads that are written out."""
_ROUNDING = 1e-12
"""An eigenvalue that is smaller, beside the other end of its spectrum, is zero."""
_SPLIT = 14
"""Blocks of one picture; more are drawn layer by layer."""


def kind_of(name: str) -> str:
    """What a block is within its layer.

    >>> kind_of("layer3.attn.q"), kind_of("embed")
    ('attn.q', 'embed')
    """
    layer = layer_of(name)
    return name if layer is None else name[len(layer) + 1 :]


def family_of(name: str) -> str:
    """The part of a Transformer that a block belongs to.

    >>> family_of("layer3.attn.q"), family_of("layer0.mlp.in.bias"), family_of("layer1.norm1"), family_of("embed")
    ('attention', 'MLP', 'norm', 'other')
    """
    kind = kind_of(name)
    return next((f for key, f in (("attn", "attention"), ("mlp", "MLP"), ("norm", "norm")) if key in kind), "other")


def norms(table: CurvatureTable) -> Section:
    """Norms with intervals, by layer and kind."""
    parts = list(dict.fromkeys(part for row in table.rows for part in row.norms))
    groups: dict[str, list[Row]] = {}
    for row in table.rows:
        groups.setdefault((layer_of(row.name) or "outside the layers") if len(table.rows) > _SPLIT else "", []).append(
            row
        )
    figures = [Figure(_dots(rows, parts), title=title) for title, rows in groups.items()]
    text = (
        "The Frobenius norm of the Hessian H of each block, of its Gauss-Newton part G and of the rest, with intervals "
        "of 95 % where it was sampled; without one it is exact. An open dot at the left edge is zero, or nothing "
        "beside the others."
    )
    columns = ["block", "parameters", *(_HEADINGS[part] for part in parts), "rest / G", "scale"]
    cells = [_cells(table, row, parts) for row in table.rows]
    grid = list(_by_kind(table))
    return Section("Block norms", [text, *grid, SideBySide(figures), Table(columns, cells, folded="In numbers")])


def _dots(rows: Sequence[Row], parts: Sequence[str]) -> Dots:
    series = {_HEADINGS[part]: [row.norms[part].dot() for row in rows] for part in parts}
    layers = {layer_of(row.name) for row in rows}
    names = tuple(kind_of(row.name) if len(layers) == 1 else row.name for row in rows)
    return Dots(names, series, "Frobenius norm")


def _cells(table: CurvatureTable, row: Row, parts: Sequence[str]) -> list[str]:
    ratio, scale = table.ratio(row), table.scales.get(row.name)
    norms = [str(row.norms[part].dot()) for part in parts]
    return [row.name, f"{row.parameters:,}", *norms, short(ratio, 2), "flat" if scale is None else short(scale, 2)]


def _by_kind(table: CurvatureTable) -> Iterator[Figure]:
    """Scales as a map, a line per kind and a column per layer, where there are several layers."""
    layers = list(dict.fromkeys(filter(None, (layer_of(row.name) for row in table.rows))))
    kinds = list(dict.fromkeys(kind_of(row.name) for row in table.rows if layer_of(row.name)))
    if len(layers) < 2:
        return
    values = [[table.scales.get(f"{layer}.{kind}") for layer in layers] for kind in kinds]
    caption = "Scale of every block, |H| / sqrt(parameters) over that of the median block; grey where it is flat."
    yield Figure(Grid(tuple(kinds), tuple(layers), values, "scale"), caption)


def against(diagnostics: Diagnostics) -> Section:
    """Curvature against gradient and weight norms."""
    rows, marked = diagnostics.table.rows, {m.name for m in diagnostics.notable}

    def points(sizes: dict[str, float]) -> list[Point]:
        return [Point(r.name, sizes[r.name], r.rms, family_of(r.name), r.name in marked) for r in rows]

    pictures = [
        Figure(Scatter(points(dict(diagnostics.gradients)), "|gradient|", "rms eigenvalue")),
        Figure(Scatter(points(dict(diagnostics.weights)), "|weights|", "rms eigenvalue")),
    ]
    columns = ["block", "|gradient|", "|weights|", "rms eigenvalue", "smallest eigenvalue", "largest", "2 / largest"]
    cells = []
    for row in rows:
        ends = diagnostics.block_spectra.ends.get(row.name)
        numbers = [diagnostics.gradients[row.name], diagnostics.weights[row.name], row.rms]
        more = [*_rounded(ends), 2 / ends.largest if ends.largest > 0 else None] if ends else [None] * 3
        cells.append([row.name, *map(short, [*numbers, *more]), "" if ends is None or ends.converged else "about"])
    text = (
        "A block with much curvature and little gradient is sharp and nearly settled; one with much gradient and "
        "little curvature can be moved far. Plain gradient descent on a block alone is stable below 2 / its largest "
        "eigenvalue. A dash: not found in the time given, or no gradient reaches it."
    )
    return Section(
        "Curvature against gradients and weights", [text, SideBySide(pictures), Table([*columns, ""], cells)]
    )


def _rounded(ends: SpectrumEnds) -> tuple[float, float]:
    """Both ends; what rounding leaves of a zero is zero."""
    least = _ROUNDING * max(abs(ends.smallest), abs(ends.largest))
    low, high = (0.0 if abs(end) < least else end for end in (ends.smallest, ends.largest))
    return low, high


def spectra(diagnostics: Diagnostics) -> Section:
    """Densities, negative shares and ends."""
    parts: list[Part] = [
        "How the eigenvalues of the chosen blocks are spread, on a logarithmic axis; what lies to the left of the "
        "dashed line is negative curvature."
    ]
    figures, cells = [], []
    for name, found in diagnostics.block_spectra.densities.items():
        picture = found._picture(asked=True)
        assert picture is not None
        signs = inertia_of(found, relative=RELATIVE_ZERO)
        figures.append(Figure(picture, f"{name}: {found}"))
        bar = signs._picture(asked=False)
        figures += [] if bar is None else [Figure(bar, f"{name}: signs of the eigenvalues")]
        shares = (signs.negative, signs.zero, signs.positive, signs.mass)
        cells.append([name, *map(in_percent, shares), str(found.moment(1))])
    if not figures:
        parts = ["There was no time for densities; more of it helps, or fewer blocks."]
    parts += [SideBySide(figures)] if figures else []
    columns = ["block", "negative", "zero", "positive", "negative curvature", "mean eigenvalue"]
    text = (
        f"Zero: up to {RELATIVE_ZERO:g} of the largest eigenvalue in size. Where eigenvalues were not counted, shares "
        "are 95 % intervals, for the error over the probes and for the finite number of Lanczos steps."
    )
    parts += [text, Table(columns, cells)] if cells else []
    ends = diagnostics.block_spectra.ends
    if ends:
        values = [end.largest for end in ends.values()]
        order = sorted(range(len(values)), key=lambda k: -values[k])
        names = list(ends)
        text = ", ".join(f"{names[k]} {short(values[k])}" for k in order[:5])
        spikes = Spikes([values[k] for k in order], "largest eigenvalue of every block, by size")
        low = Spikes(sorted(end.smallest for end in ends.values()), "smallest eigenvalue of every block")
        below = Figure(low, "Below zero: a direction of negative curvature.")
        parts.append(SideBySide([Figure(spikes, f"The largest: {text}."), below]))
    return Section("Spectra", parts)


def pairs(diagnostics: Diagnostics) -> Iterator[Section]:
    """Norms between blocks."""
    if diagnostics.pairs is not None:
        text = (
            "How strongly two blocks are coupled: a dark cell off the diagonal is curvature that a block-diagonal "
            "method ignores."
        )
        picture = diagnostics.pairs._picture(asked=True)
        assert picture is not None
        yield Section("Block pairs", [text, Figure(picture), Table(*diagnostics.pairs._cells())])


def differences(diagnostics: Diagnostics) -> Iterator[Section]:
    """Heterogeneity."""
    scales = sorted(diagnostics.table.scales.values())
    if len(scales) < 2:
        return
    gaps = [math.log(larger / smaller) for smaller, larger in combinations(scales, 2)]
    spread = math.exp(sum(gaps) / len(gaps))
    parts: list[Part] = [
        f"Of two blocks, the one with the larger scale typically has {short(spread)} times the smaller one's "
        f"(geometric mean over all pairs); the extremes differ by a factor of {short(scales[-1] / scales[0])}. Blocks "
        "that differ are why one learning rate does not fit all."
    ]
    if diagnostics.spectral is not None:
        shapes = diagnostics.spectral
        text = (
            "Jensen-Shannon divergence of the spectra, each divided by its largest eigenvalue and smoothed over "
            f"{short(shapes.sigma)} of it: shapes alone, 0 to 0.69. Mean over pairs: {shapes.mean}."
        )
        parts.append(Figure(shapes._picture(asked=True), text))
    yield Section("Block heterogeneity", parts)


def attention(health: AttentionHealth, maps: Mapping[str, Tensor], table: CurvatureTable) -> Iterator[Section]:
    """Heads: alarms, entropies, moments, norms; and maps."""
    if not health.heads:
        return
    columns = ["head", "entropy", "of even", "largest logit", "sink", "Jacobian", "|m|", "spread", "skew"]
    by_head = {row.name: row for row in table.rows if ".head" in row.name}
    norm_kinds = list(dict.fromkeys(name.split(".")[-2] for name in by_head))
    cells = []
    for head in health.heads:
        own = [by_head.get(f"{head.layer}.attn.{kind}.head{head.head}") for kind in norm_kinds]
        numbers = [head.entropy, head.share, head.largest_logit, head.sink, head.jacobian, head.mean, head.spread]
        cells.append([head.name, *map(short, [*numbers, head.skew, *(r.norm if r else None for r in own)])])
    per_head = "" if by_head else " Norms of each head are measured where heads are blocks (--also heads)."
    text = (
        "Even attention has the share 1; a head that always looks at one token has 0, and its query and key blocks are "
        "then flat. All derivatives of queries and keys pass through the Jacobian of softmax. The spread is the trace "
        "of the second moment of the values that a row sees, which feeds the Gauss-Newton part of the query block; the "
        f"skew is a contraction of the third, which feeds its functional part.{per_head}"
    )
    pictures = [Figure(health.grid("share", "entropy over that of even attention"))]
    pictures.append(Figure(health.grid("largest_logit", "largest logit")))
    alarms = [f"{alarm}." for alarm in health.alarms()[:_ALARMS]]
    table_of = Table([*columns, *(f"|H| {kind}" for kind in norm_kinds)], cells)
    yield Section("Attention heads", [*alarms, text, SideBySide(pictures), table_of, *_drawn_maps(maps)])


def _drawn_maps(maps: Mapping[str, Tensor]) -> list[Part]:
    """Some heads of the first and of the last layer, on the first sequences."""
    shown = list(dict.fromkeys([*list(maps)[:1], *list(maps)[-1:]]))
    figures = [
        Figure(attention_picture(maps[name][s, h], f"{name}, head {h}, sequence {s}"))
        for name in shown
        for s in range(len(maps[name]))
        for h in range(min(maps[name].shape[1], 2))
    ][:_MAPS]
    caption = "Rows look at columns, darker where more; the first and the last layer, on the first sequences."
    return [SideBySide(figures, small=True), caption] if figures else []
