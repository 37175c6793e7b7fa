"""The chapter of claims: counts, then the surprising ones, then the rest by topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from hessianlens.lab.claims.definition import DOCUMENTS
from hessianlens.lab.claims.entry import Entry
from hessianlens.lab.claims.finding import Verdict
from hessianlens.lab.claims.ledger import Ledger
from hessianlens.lab.claims.summary import counts, most_surprising_first, surprise
from hessianlens.lab.plots.claim import claim_figure
from hessianlens.lab.plots.style import to_svg

SURPRISING = 6
"""Entries of at least this weight (see `surprise`) come first."""

_STYLES = {Verdict.HOLDS: "holds", Verdict.HOLDS_IF: "partly", Verdict.FAILS: "fails"}


@dataclass(frozen=True)
class CountRow:
    """How many claims of a document have each verdict."""

    document: str
    numbers: tuple[int, ...]
    total: int


@dataclass(frozen=True)
class Group:
    """Entries under one heading, each as `Entry.to_dict` with its style and picture."""

    title: str
    entries: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class LedgerChapter:
    """What the page shows of a ledger."""

    total: int
    summary: str
    verdicts: tuple[str, ...]
    counts: tuple[CountRow, ...]
    groups: tuple[Group, ...]


def ledger_chapter(ledger: Ledger) -> LedgerChapter:
    """The chapter of a ledger."""
    ordered = most_surprising_first(ledger)
    first = [entry for entry in ordered if surprise(entry) >= SURPRISING]
    rest: dict[str, list[Entry]] = {}
    for entry in ledger:
        if entry not in first:
            rest.setdefault(DOCUMENTS[entry.claim.document], []).append(entry)
    groups = [_group("The surprising ones", first), *(_group(title, entries) for title, entries in rest.items())]
    return LedgerChapter(
        total=len(ledger),
        summary=ledger_summary(ledger),
        verdicts=tuple(map(str, Verdict)),
        counts=tuple(_count_rows(ledger)),
        groups=tuple(group for group in groups if group.entries),
    )


def ledger_summary(ledger: Ledger) -> str:
    """The counts in one sentence."""
    of = Counter(entry.verdict for entry in ledger)
    computed = Counter(entry.verdict for entry in ledger if entry.finding is not None)
    read = of[Verdict.FAILS] - computed[Verdict.FAILS]
    return (
        f"Of {len(ledger)} claims {computed.total()} were computed: {computed[Verdict.HOLDS]} hold as written, "
        f"{computed[Verdict.HOLDS_IF]} hold under a condition and {computed[Verdict.FAILS]} fail; "
        + (f"{read} {'fails' if read == 1 else 'fail'} by reading alone, " if read else "")
        + f"{of[Verdict.NEEDS_TRAINING]} need training runs, "
        f"{of[Verdict.NOT_CHECKABLE]} cannot be checked by computation."
    )


def _count_rows(ledger: Ledger) -> list[CountRow]:
    found = counts(ledger)
    rows = [
        CountRow(DOCUMENTS[letter], tuple(of[verdict] for verdict in Verdict), of.total())
        for letter, of in found.items()
        if of.total()
    ]
    sums = tuple(map(sum, zip(*(row.numbers for row in rows), strict=True)))
    return [*rows, CountRow("all", sums, sum(row.total for row in rows))]


def _group(title: str, entries: Sequence[Entry]) -> Group:
    return Group(title, tuple(map(_shown, entries)))


def _shown(entry: Entry) -> dict[str, Any]:
    curves = entry.finding.curves if entry.finding else None
    told = {"checks": [], "conditional": [], "support": [], "condition": "", "correction": "", "example": ""}
    svg = (
        to_svg(claim_figure(curves, ""), f"claim-{entry.claim.id}", f"curves of claim {entry.claim.id}")
        if curves
        else ""
    )
    style = _STYLES.get(entry.verdict, "open") if entry.verdict else "fails"
    return {**told, **entry.to_dict(), "style": style, "svg": Markup(svg)}
