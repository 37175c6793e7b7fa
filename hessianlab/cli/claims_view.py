"""How the ledger looks in a terminal: a table of claims, counts, and one claim explained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hessianlab.claims.definition import DOCUMENTS
from hessianlab.claims.finding import Check, Verdict
from hessianlab.claims.ledger import Entry, counts, distinct
from hessianlab.claims.trained import protocols_of

STYLES = {
    Verdict.HOLDS: "green",
    Verdict.HOLDS_IF: "yellow",
    Verdict.FAILS: "bold red",
    Verdict.MISPRINT: "red",
    Verdict.NOT_SEEN: "blue",
    Verdict.OPEN: "bright_black",
    None: "bold white on red",
}

_NARROW = 70
"""Columns below which a statement goes under its verdict instead of beside it."""


def verdict_text(verdict: Verdict | None) -> Text:
    """A verdict in its colour; None is a test that broke."""
    return Text(str(verdict or "error"), style=STYLES[verdict])


def claims_table(entries: Sequence[Entry], width: int) -> RenderableType:
    """One row per claim, by document."""
    parts: list[RenderableType] = []
    for letter, name in DOCUMENTS.items():
        own = [entry for entry in entries if entry.claim.document == letter]
        if own:
            parts += [Text(f"{letter}  {name}", style="bold"), _rows(own, width), Text()]
    return Group(*parts)


def _rows(entries: Sequence[Entry], width: int) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True, min_width=4)
    if width >= _NARROW:
        table.add_column(no_wrap=True, min_width=len(Verdict.NOT_SEEN))
    table.add_column(ratio=1)
    for entry in entries:
        verdict, statement = verdict_text(entry.verdict), Text(entry.claim.statement)
        if width >= _NARROW:
            table.add_row(entry.claim.id, verdict, statement)
        else:
            table.add_row(entry.claim.id, Group(verdict, statement))
    return table


def counts_table(entries: Iterable[Entry]) -> Table:
    """Documents by verdicts."""
    by_document = {letter: found for letter, found in counts(entries).items() if found}
    verdicts: list[Verdict | None] = [*Verdict, *([None] if any(found[None] for found in by_document.values()) else [])]
    table = Table(box=None, padding=(0, 1), show_footer=len(by_document) > 1, footer_style="bold", header_style="")
    table.add_column(Text("document"), footer=Text("all"), ratio=1)
    for verdict in verdicts:
        total = sum(found[verdict] for found in by_document.values())
        heading = Text(str(verdict or "error").replace(" ", "\n"), style=STYLES[verdict], justify="right")
        table.add_column(heading, footer=Text(str(total)), justify="right", no_wrap=True)
    table.add_column("total", footer=Text(str(sum(map(_total, by_document.values())))), justify="right", style="bold")
    for letter, found in by_document.items():
        cells = [
            Text(str(found[verdict] or "."), style="" if found[verdict] else "bright_black") for verdict in verdicts
        ]
        table.add_row(Text(f"{letter}  {DOCUMENTS[letter]}"), *cells, str(_total(found)))
    return table


def repeats_note(entries: Sequence[Entry]) -> str:
    """How many facts the entries state, if some of them repeat others; empty otherwise."""
    facts = len(distinct(entries))
    return f"Distinct facts: {facts} of {len(entries)} entries." if facts < len(entries) else ""


def _total(found: dict[Verdict | None, int]) -> int:
    return sum(found.values())


def explanation(entry: Entry) -> RenderableType:
    """Everything about one claim."""
    claim = entry.claim
    heading = Text.assemble((f"{claim.id}  ", "bold cyan"), verdict_text(entry.verdict))
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bright_black", min_width=12)
    table.add_column(ratio=1)
    for name, content in _facts(entry):
        table.add_row(name, content)
    return Group(heading, Text(claim.statement, style="bold"), Padding(table, (0, 0, 1, 0)))


def _facts(entry: Entry) -> Iterator[tuple[str, RenderableType]]:
    claim, finding = entry.claim, entry.finding
    yield "document", Text(f"{DOCUMENTS[claim.document]}: {claim.source}")
    if claim.repeats:
        yield "repeats", Text(claim.repeats)
    if entry.reason:
        yield "why", Text(entry.reason)
    if entry.error:
        yield "error", Text(entry.error, style="red")
    if finding is not None:
        yield "test", Text(claim.method)
        if protocol := protocols_of(claim.method):
            yield "protocol", Text("\n".join(protocol))
        yield "as written", _checks(finding.checks)
        if finding.verdict is Verdict.HOLDS_IF:
            yield "holds if", Text(finding.condition, style=STYLES[Verdict.HOLDS_IF])
            further = [check for check in finding.conditional if check not in finding.checks]
            yield "then", _checks(further) if further else Text("those checks above that fall under the condition pass")
    if entry.correction:
        label = "remark" if entry.verdict in (Verdict.HOLDS, Verdict.OPEN) else "correction"
        yield label, Text(entry.correction, style="yellow")
    if finding is not None:
        if finding.support:
            yield "supported by", _checks(finding.support)
        if finding.example:
            yield "example", Text(finding.example)
        if not finding.confirmed:
            yield "attention", Text("what is said here did not pass its own checks", style="bold red")
        if finding.curves is not None:
            yield "plot", Text(f"hessianlens claims {claim.id} --plot DIR")
    if claim.chapter:
        yield "more", Text(f"hessianlens report {claim.chapter}")
    sentence = f"{entry.location}  ({entry.seconds:.1f} s)" if claim.test else entry.location
    yield "code", Text(sentence, overflow="fold")


def _checks(checks: Sequence[Check]) -> Table:
    """One line a check: whether it passed, what was measured, and the figure beside its threshold."""
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    for check in checks:
        mark = Text("yes", style="green") if check.passed else Text("no ", style="red")
        figure = Text.assemble(
            f"{check.what}: ", (check.measured, "bold"), (f"  (wanted {check.wanted})", "bright_black")
        )
        table.add_row(mark, figure)
    return table


def show(console: Console, entries: Sequence[Entry], explain: bool) -> None:
    """Explanations, or the table with its counts below, where a terminal ends up."""
    if explain:
        for entry in entries:
            console.print(explanation(entry))
    else:
        console.print(claims_table(entries, console.width))
        console.print(counts_table(entries))
        if note := repeats_note(entries):
            console.print(Text(note))
