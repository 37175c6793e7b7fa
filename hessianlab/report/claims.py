"""The ledger on the page: a mosaic of verdicts, the surprises, and every claim in its document's list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from hessianlab.claims.definition import DOCUMENTS
from hessianlab.claims.finding import Verdict
from hessianlab.claims.ledger import Entry, Ledger, computed, counts, surprise
from hessianlab.plots.charts import claim_figure
from hessianlab.plots.single_panels import panel_svgs
from hessianlab.report.argument import CHAPTERS, chapter_of_claim
from hessianlab.report.quotation import counted_verdicts
from hessianlab.report.references import Relation, code_address, code_at, relations
from hessianlens.sizes import number_of

SURPRISES = ("A10", "A13", "B20", "B9", "A24", "P29", "A30", "C10")
"""Ranked by hand: what a reader of the documents would least expect."""

ERROR = "error"
"""In place of the verdict of a claim whose test raised an exception."""

STYLES: dict[str, str] = {
    Verdict.HOLDS: "holds",
    Verdict.HOLDS_IF: "partly",
    Verdict.FAILS: "fails",
    Verdict.MISPRINT: "misprint",
    Verdict.NOT_SEEN: "unseen",
    Verdict.OPEN: "open",
    ERROR: "error",
}
"""The colour of every verdict, no two alike."""

MEANINGS: dict[str, str] = {
    Verdict.HOLDS: "every check of the claim as it is written passes",
    Verdict.HOLDS_IF: "some checks do not pass, but all do under the condition that the entry states",
    Verdict.FAILS: "a counterexample to what is said without a condition; the entry says what is true instead",
    Verdict.MISPRINT: "a slip of the pen, such as a wrong digit or size, whose correction is beyond doubt",
    Verdict.NOT_SEEN: "a statement about models in use that the small models trained here do not show",
    Verdict.OPEN: "the measurements do not decide, or there is nothing to measure; the entry says why",
    ERROR: "the test raised an exception",
}
"""The legend: what every verdict means."""


@dataclass(frozen=True)
class VerdictCount:
    """A verdict with its colour, its meaning and how many claims have it."""

    verdict: str
    style: str
    count: int
    meaning: str


def verdict_counts(entries: Iterable[Entry]) -> tuple[VerdictCount, ...]:
    """Of the verdicts that some entry has, in the order of the legend."""
    of = Counter(verdict_of(entry) for entry in entries)
    return tuple(
        VerdictCount(str(name), STYLES[name], of[str(name)], MEANINGS[name]) for name in STYLES if of[str(name)]
    )


@dataclass(frozen=True)
class CountRow:
    """How many claims of a document have each of the verdicts that occur."""

    document: str
    numbers: tuple[int, ...]
    total: int


@dataclass(frozen=True)
class Tile:
    """A claim in a mosaic or a list of links: its verdict is its colour."""

    id: str
    style: str
    verdict: str
    statement: str


@dataclass(frozen=True)
class ClaimGroup:
    """The claims of a document, each as `Entry.to_dict` with what the page adds."""

    letter: str
    title: str
    tiles: tuple[Tile, ...]
    entries: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class LedgerChapter:
    """What the page shows of a ledger."""

    total: int
    computed: int
    summary: str
    verdicts: tuple[VerdictCount, ...]
    topics: tuple[tuple[str, str, int], ...]
    counts: tuple[CountRow, ...]
    surprises: tuple[dict[str, Any], ...]
    groups: tuple[ClaimGroup, ...]


def ledger_chapter(ledger: Ledger) -> LedgerChapter:
    """The chapter of a ledger."""
    related = relations(ledger)
    shown = {entry.claim.id: _entry_fields(entry, related.get(entry.claim.id, ())) for entry in ledger}
    groups = []
    for letter, title in DOCUMENTS.items():
        own = [entry for entry in ledger if entry.claim.document == letter]
        groups.append(ClaimGroup(letter, title, tiles(own), tuple(shown[entry.claim.id] for entry in own)))
    return LedgerChapter(
        total=len(ledger),
        computed=sum(entry.finding is not None for entry in ledger),
        summary=ledger_summary(ledger),
        verdicts=verdict_counts(ledger),
        topics=_topics(ledger),
        counts=tuple(_count_rows(ledger)),
        surprises=tuple(shown[id] for id in SURPRISES if id in shown),
        groups=tuple(group for group in groups if group.entries),
    )


def tiles(entries: Sequence[Entry]) -> tuple[Tile, ...]:
    """Claims as tiles, in their order."""
    return tuple(Tile(e.claim.id, style_of(e), verdict_of(e), e.claim.statement) for e in entries)


def ledger_summary(ledger: Ledger) -> str:
    """The counts in one sentence."""
    verdicts = [entry.verdict for entry in ledger]
    read = verdicts.count(Verdict.FAILS) - sum(entry.verdict is Verdict.FAILS for entry in computed(ledger))
    return f"Of {number_of(len(verdicts), 'claim')} {counted_verdicts(verdicts)}." + (
        f" Of those that fail, {read} {'does' if read == 1 else 'do'} so by reading alone, the others by computation."
        if read
        else ""
    )


def verdict_of(entry: Entry) -> str:
    """The verdict as text; a test that raised has none."""
    return str(entry.verdict) if entry.verdict else ERROR


def style_of(entry: Entry) -> str:
    """The colour of a verdict."""
    return STYLES[verdict_of(entry)]


def _topics(ledger: Ledger) -> tuple[tuple[str, str, int], ...]:
    """The chapters that claims belong to: address, title and how many."""
    of = Counter(chapter_of_claim(entry.claim).slug for entry in ledger)
    return tuple((chapter.slug, chapter.title, of[chapter.slug]) for chapter in CHAPTERS if of[chapter.slug])


def _count_rows(ledger: Ledger) -> list[CountRow]:
    found = counts(ledger)
    columns = [None if one.verdict == ERROR else Verdict(one.verdict) for one in verdict_counts(ledger)]
    rows = [
        CountRow(DOCUMENTS[letter], tuple(of[verdict] for verdict in columns), of.total())
        for letter, of in found.items()
        if of.total()
    ]
    sums = tuple(map(sum, zip(*(row.numbers for row in rows), strict=True)))
    return [*rows, CountRow("all", sums, sum(row.total for row in rows))]


def _entry_fields(entry: Entry, related: Sequence[Relation]) -> dict[str, Any]:
    curves = entry.finding.curves if entry.finding else None
    empty = {"checks": [], "conditional": [], "support": [], "condition": "", "correction": "", "example": ""}
    name = f"curves-{entry.claim.id}"
    svgs = panel_svgs(claim_figure(curves, ""), name, _spoken(entry)) if curves else []
    chapter = chapter_of_claim(entry.claim)
    return {
        **empty,
        **entry.to_dict(),
        "verdict": verdict_of(entry),
        "style": style_of(entry),
        "surprise": surprise(entry),
        "folded": _folded(entry),
        "whole": _whole(entry),
        "code": code_address(entry.location),
        "source_code": code_at(entry.location),
        "story": chapter,
        "related": related,
        "svgs": [Markup(svg) for svg in svgs],
    }


def _spoken(entry: Entry) -> str:
    """What is read out in place of the curves of a claim: what they decide."""
    return str(escape(f"{entry.claim.statement} {verdict_of(entry).capitalize()}: {_folded(entry)}"))


def _folded(entry: Entry) -> str:
    """What a folded row says: the condition or the first sentence of the correction."""
    if entry.verdict is Verdict.HOLDS_IF and entry.finding:
        return f"If {entry.finding.condition.rstrip('.')}."
    return entry.error or entry.gist


def _whole(entry: Entry) -> str:
    """What a list of surprises says: the condition and all of the correction."""
    condition = _folded(entry) if entry.verdict is Verdict.HOLDS_IF else ""
    return " ".join(filter(None, (condition, entry.error or entry.correction or entry.reason)))
