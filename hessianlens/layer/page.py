"""A page about the Hessian of one attention layer: what its blocks hold, how it bends, what attention looks at."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hessianlens.attention.moments import first_moment, second_moment
from hessianlens.attention.state import HeadState, attention_picture
from hessianlens.display import (
    CodeBlock,
    Curve,
    Document,
    Entries,
    Figure,
    Grid,
    Part,
    Section,
    SideBySide,
    Table,
    short,
)
from hessianlens.layer.query_key import eigenvalue_pairs
from hessianlens.operators.grid import block_name
from hessianlens.parts import LAYER_PARTS
from hessianlens.sizes import number_of

if TYPE_CHECKING:
    from hessianlens.layer.hessian import AttentionHessian

_MOST_ENTRIES, _MOST_ROWS = 384, 1500
"""Rows up to which every entry is drawn, and up to which all eigenvalues are computed."""
_WHOLE = "the whole matrix"
_MOST_HEADS, _MOST_SEQUENCES, _MOST_MAPS = 16, 4, 8
_MOST_MOMENT = 2**25
"""Numbers of a second moment that is formed."""


@dataclass(frozen=True)
class Spectrum:
    """All eigenvalues of a symmetric matrix, ascending; those within rounding of zero are neither sign."""

    name: str
    part: str
    values: Tensor

    @cached_property
    def rounding(self) -> float:
        """What rounding leaves of a zero."""
        return len(self.values) * torch.finfo(self.values.dtype).eps * float(self.values.abs().max())

    @property
    def negative(self) -> int:
        """How many are below zero."""
        return int((self.values < -self.rounding).sum())

    @property
    def negative_mass(self) -> float:
        """Their share of the sum of absolute eigenvalues."""
        total = float(self.values.abs().sum())
        return float(self.values.clamp_max(0).abs().sum()) / total if total else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Its numbers, as JSON values."""
        return {
            "name": self.name,
            "part": self.part,
            "size": len(self.values),
            "smallest": float(self.values[0]),
            "largest": float(self.values[-1]),
            "trace": float(self.values.sum()),
            "negative": self.negative,
            "negative_share": self.negative_mass,
        }

    def picture(self) -> Curve:
        """The eigenvalues by rank."""
        ranks = [float(k) for k in range(len(self.values))]
        return Curve(ranks, self.values.tolist(), f"rank, {self.name}", "eigenvalue", zero=False)


def hessian_page(
    H: AttentionHessian,
    title: str = "The Hessian of an attention layer",
    summary: Sequence[tuple[str, str]] = (),
    first: Sequence[Section] = (),
) -> Document:
    """The page; every number on it is exact but for rounding.

    Args:
        H: What it is about.
        title: Its heading.
        summary: What else is said in short, before the rest.
        first: Sections that come before those about H itself.
    """
    rows = H.rows()
    spectra = hessian_spectra(H)
    sections = [*first, _blocks(H, rows)]
    sections += [_bending(spectra)] if spectra else []
    sections += list(_pairs(H))
    sections += [_attention(H.heads), _algebra(H), _repeating()]
    size = H.full.shape[0]
    return Document(
        title,
        f"The exact matrix of second derivatives of a loss in {size} weights of {_heads(H)}, at {_tokens(H)}.",
        [*summary, *_short(H, rows, spectra)],
        sections,
    )


def _heads(H: AttentionHessian) -> str:
    kind = str(H.heads[0].activation)
    return f"one {kind} head" if len(H.heads) == 1 else f"{len(H.heads)} {kind} heads"


def _tokens(H: AttentionHessian) -> str:
    sequences, queries, tokens = H.heads[0].weights.shape
    carrying = f", {queries} of which carry the loss" if queries < tokens else ""
    return f"{number_of(sequences, 'sequence')} of {number_of(tokens, 'token')}{carrying}"


def _short(H: AttentionHessian, rows: Sequence[dict[str, Any]], spectra: Sequence[Spectrum]) -> list[tuple[str, str]]:
    size, outer, functional = (math.hypot(*(row[part] for row in rows)) for part in ("full", "outer", "functional"))
    top = max(rows, key=lambda row: row["full"])
    both = 1 if top["row"] == top["column"] else 2
    found = [
        (
            "Where it sits",
            f"The block {top['row']}, {top['column']} holds {100 * both * (top['full'] / (size or 1.0)) ** 2:.0f} % of "
            f"the squared norm of the Hessian (norm {short(top['full'])} of {short(size)}).",
        ),
        (
            "Gauss-Newton or not",
            f"The outer product has norm {short(outer)}, the functional part {short(functional)}: "
            + ("a ratio of " + short(functional / outer) + "." if outer else "there is no outer product."),
        ),
    ]
    if spectra:
        whole = next(s for s in spectra if s.name == _WHOLE and s.part == "full")
        share = 100 * whole.negative / len(whole.values)
        found.append(
            (
                "Negative curvature",
                f"{whole.negative} of {len(whole.values)} eigenvalues ({share:.0f} %) are negative and carry "
                f"{100 * whole.negative_mass:.1f} % of all curvature; they reach from {short(float(whole.values[0]))} "
                f"to {short(float(whole.values[-1]))}.",
            )
        )
    entropies = [row["entropy"] for head in H.heads for row in head.rows() if row["entropy"] is not None]
    if entropies:
        seen = H.heads[0].visible.sum(-1).double().clamp_min(1).log().mean()
        found.append(
            (
                "Attention",
                f"The mean entropy of its rows is {short(sum(entropies) / len(entropies))} nats; rows that look at all "
                f"they may see alike would have {short(float(seen))}.",
            )
        )
    return found


def _blocks(H: AttentionHessian, rows: Sequence[dict[str, Any]]) -> Section:
    maps = [Figure(_map(H, part), f"{part}: norm of every block") for part in ("full", "outer", "functional")]
    columns = ["block", "size", *LAYER_PARTS]
    cells = [
        [
            f"{row['row']}, {row['column']}",
            f"{math.prod(row['row_shape'])} x {math.prod(row['column_shape'])}",
            *(short(row[part], 4) for part in LAYER_PARTS),
        ]
        for row in rows
    ]
    parts: list[Part] = [
        "The Hessian is the sum of an outer product (Gauss-Newton), the curvature of the loss seen through first "
        "derivatives of the layer, and a functional part, the layer's own second derivative weighted by what is still "
        "wrong with its output. The norm of a block says how much curvature it holds in total.",
        SideBySide(maps),
    ]
    if H.full.shape[0] <= _MOST_ENTRIES:
        borders = tuple((block_name(name), math.prod(shape)) for name, shape in H.full.rows.items())
        entries = Entries(H.full.to_dense().tolist(), "entries of the Hessian", borders, borders)
        caption = "Every entry: blue where positive, red where negative, darker where larger, over four powers of ten."
        parts.append(Figure(entries, caption))
    return Section("Curvature by block", [*parts, Table(columns, cells, folded="Norms in numbers")])


def _map(H: AttentionHessian, part: str) -> Grid:
    picture = H.part(part)._picture(asked=True)
    assert isinstance(picture, Grid)
    return picture


def hessian_spectra(H: AttentionHessian) -> list[Spectrum]:
    """Of the blocks of each weight with itself, and of the whole matrix at last; of small ones every part.

    None if all eigenvalues would take too long.
    """
    size = H.full.shape[0]
    if size > _MOST_ROWS:
        return []
    found = []
    for part in LAYER_PARTS if size <= _MOST_ENTRIES else ("full",):
        grid = H.part(part)
        for name in grid.rows:
            found.append(Spectrum(f"block {block_name(name)}", part, _eigenvalues(grid[name, name].to_dense())))
        found.append(Spectrum(_WHOLE, part, _eigenvalues(grid.to_dense())))
    return sorted(found, key=lambda spectrum: (spectrum.name == _WHOLE, spectrum.name))


def _eigenvalues(dense: Tensor) -> Tensor:
    return torch.linalg.eigvalsh(dense.double())


def _bending(spectra: Sequence[Spectrum]) -> Section:
    columns = ["matrix", "part", "rows", "smallest", "largest", "trace", "negative", "negative share of curvature"]
    cells = [
        [
            s.name,
            s.part,
            str(len(s.values)),
            short(float(s.values[0])),
            short(float(s.values[-1])),
            short(float(s.values.sum())),
            str(s.negative),
            f"{100 * s.negative_mass:.1f} %",
        ]
        for s in spectra
    ]
    full = [s for s in spectra if s.part == "full"]
    drawn = [Figure(s.picture()) for s in (*full[: min(len(full) - 1, 3)], full[-1])]
    text = (
        "A negative eigenvalue is a direction of negative curvature; its size limits no step. The outer "
        "product of a convex loss has none."
    )
    return Section("Spectrum", [text, Table(columns, cells), SideBySide(drawn)])


def _pairs(H: AttentionHessian) -> Iterator[Section]:
    heads = [h for h, head in enumerate(H.heads) if head.score_pair is not None][:_MOST_HEADS]
    turned = any(port.turn is not None for head in H.heads for port in head.score_ports.values())
    if not heads or turned:
        return
    found = {h: eigenvalue_pairs(H, h) for h in heads}
    pictures = [Figure(pairs._picture(asked=True), f"head {h}: {pairs!r}") for h, pairs in found.items()]
    text = (
        "Queries and keys meet only as a product. This gives the Hessian a part whose eigenvalues come in pairs, one "
        "up and one down: it has as many directions of negative curvature as of positive, whatever the data."
    )
    yield Section("Query-key pairs", [text, SideBySide(pictures)])


def _attention(heads: Sequence[HeadState]) -> Section:
    columns = ["head", "sequence", "entropy", "mean largest weight", "largest score", "|M_1|", "|M_2|"]
    cells: list[list[str]] = []
    maps: list[Figure] = []
    for h, head in enumerate(heads[:_MOST_HEADS]):
        moments = _moments(head)
        for row in head.rows()[:_MOST_SEQUENCES]:
            s = row["sequence"]
            numbers = (row["entropy"], row["largest_weight"], row["largest_score"], *moments[s])
            cells.append([str(h), str(s), *map(short, numbers)])
            if len(maps) < _MOST_MAPS:
                maps.append(Figure(attention_picture(head.weights[s].detach(), f"head {h}, sequence {s}")))
    sums = torch.cat([head.weights.detach().sum(-1).flatten() for head in heads])
    if torch.allclose(sums, torch.ones_like(sums)):
        moments_text = (
            "M_1 is the mean token a row sees and M_2 the covariance of what it sees, of which the query and key "
            "blocks are made: where attention settles on one token, M_2 vanishes and they with it."
        )
    else:
        ends = f"{short(float(sums.min()))} to {short(float(sums.max()))} here"
        moments_text = (
            f"The weights of a row do not sum to one ({ends}): M_1 is the weighted sum of the tokens, not their mean, "
            "and M_2 no covariance."
        )
    text = (
        f"Each row is a token that looks, each column one that it looks at. {moments_text} Norms are means over the "
        "rows, the entropy is in nats."
    )
    return Section("Attention maps", [text, SideBySide(maps, small=True), Table(columns, cells)])


def _moments(head: HeadState) -> list[tuple[float | None, float | None]]:
    """Mean norms of the first two moments, by sequence; None where forming one would take too much memory."""
    A, X = head.weights.detach(), head.tokens.detach()
    first = first_moment(A, X).norm(dim=-1).mean(-1).tolist()
    if A.shape[0] * A.shape[1] * X.shape[-1] ** 2 > _MOST_MOMENT:
        return [(one, None) for one in first]
    second = second_moment(A, X).flatten(-2).norm(dim=-1).mean(-1).tolist()
    return list(zip(first, second, strict=True))


def _algebra(H: AttentionHessian) -> Section:
    names = list(H.full.rows)
    shown = [(r, c) for k, r in enumerate(names) for c in names[k:]][:12]
    lines = [f"[{r!r}, {c!r}] = {H.full[r, c].algebra()}" for r, c in shown]
    text = (
        "No block is kept as a matrix: each is a sum over sequences s and tokens i of small factors. a, b are row and "
        "column of the weight that the rows belong to, c, d those of the other."
    )
    return Section("Closed forms", [text, CodeBlock("\n".join(lines))])


def _repeating() -> Section:
    code = 'H = hessianlens.attention_hessian(layer, X, loss)\nH.page("layer.html")\nH.to_frame()'
    return Section("How to reproduce", ["Nothing on this page was drawn at random.", CodeBlock(code)])
