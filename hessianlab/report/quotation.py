"""Claims that a sentence of the page rests on: which verdict the sentence asserts, and which one the ledger has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from hessianlab.claims.finding import Verdict
from hessianlab.claims.ledger import Entry, Ledger
from hessianlab.wording import several

Kind: TypeAlias = Literal["yes", "no", "if", "open"]
"""Which of the four colours an answer has."""


@dataclass(frozen=True)
class Quotation:
    """A claim, and the verdict that a sentence asserts of it.

    >>> Quotation.of("P33 holds"), Quotation.of("A28 holds if").says.name
    (Quotation(id='P33', says=<Verdict.HOLDS: 'holds'>), 'HOLDS_IF')
    """

    id: str
    says: Verdict

    @classmethod
    def of(cls, words: str) -> Quotation:
        """From an id and a verdict with a space between them."""
        id, _, verdict = words.partition(" ")
        return cls(id, Verdict(verdict))


@dataclass(frozen=True)
class QuotedClaim:
    """A claim that an answer rests on.

    Attributes:
        id: Of the claim.
        implied: The verdict that each kind of answer implies; a kind that is not here contradicts every verdict.
            Empty for a claim that is only named: the answer asserts nothing of it.
    """

    id: str
    implied: Mapping[Kind, Verdict] = field(default_factory=dict)

    def agrees(self, kind: Kind, verdict: Verdict | None) -> bool:
        """Whether an answer of this kind and this verdict can both be true; an undecided answer asserts nothing."""
        return not self.implied or kind == "open" or self.implied.get(kind) is verdict


def answers_yes(*ids: str) -> tuple[QuotedClaim, ...]:
    """Claims that answer the question of a chapter with yes.

    >>> answers_yes("P51")[0].agrees("yes", Verdict.HOLDS), answers_yes("P51")[0].agrees("if", Verdict.HOLDS)
    (True, False)
    """
    return tuple(QuotedClaim(id, {"yes": Verdict.HOLDS, "if": Verdict.HOLDS_IF, "no": Verdict.FAILS}) for id in ids)


def named_only(*ids: str) -> tuple[QuotedClaim, ...]:
    """Claims whose verdict stands beside an answer that asserts nothing of them."""
    return tuple(QuotedClaim(id) for id in ids)


@dataclass(frozen=True)
class ShownQuotation:
    """A quoted claim as the page shows it: its verdict in the ledger, and whether the answer agrees with that.

    Attributes:
        condition: What a claim that holds under a condition needs; else empty.
    """

    id: str
    verdict: Verdict
    statement: str
    agrees: bool
    condition: str = ""


def shown_quotations(quoted: Iterable[QuotedClaim], kind: Kind, ledger: Ledger | None) -> tuple[ShownQuotation, ...]:
    """Those of the quoted claims that were tested, beside an answer of this kind."""
    entries = {entry.claim.id: entry for entry in ledger or ()}
    found = []
    for claim in quoted:
        entry = entries.get(claim.id)
        if entry is not None and entry.verdict is not None:
            agrees = claim.agrees(kind, entry.verdict)
            found.append(ShownQuotation(claim.id, entry.verdict, entry.claim.statement, agrees, _condition(entry)))
    return tuple(found)


def _condition(entry: Entry) -> str:
    if entry.verdict is not Verdict.HOLDS_IF or entry.finding is None:
        return ""
    return entry.finding.condition.rstrip(".")


def agreeing_kinds(quoted: Iterable[QuotedClaim], verdicts: Mapping[str, Verdict]) -> set[Kind]:
    """The kinds of answer that agree with the ledger's verdicts on all claims they rest on.

    >>> sorted(agreeing_kinds(answers_yes("A10"), {"A10": Verdict.FAILS}))
    ['no', 'open']
    """
    kinds: tuple[Kind, ...] = ("yes", "no", "if", "open")
    claims = tuple(quoted)
    return {kind for kind in kinds if all(one.agrees(kind, verdicts.get(one.id)) for one in claims)}


_COUNTED = {
    Verdict.HOLDS: ("holds as written", "hold as written"),
    Verdict.HOLDS_IF: ("holds under a condition", "hold under a condition"),
    Verdict.FAILS: ("fails", "fail"),
    Verdict.MISPRINT: ("is a misprint", "are misprints"),
    Verdict.NOT_SEEN: ("is not seen at this size", "are not seen at this size"),
    Verdict.OPEN: ("is open", "are open"),
}
"""A verdict with its verb, of one claim and of several."""


def counted_verdicts(verdicts: Sequence[Verdict | None]) -> str:
    """How many claims have each verdict, every claim counted once; a test that raised has no verdict.

    >>> counted_verdicts([Verdict.HOLDS, Verdict.FAILS, Verdict.HOLDS])
    '2 hold as written and 1 fails'
    """
    of = Counter(verdicts)
    words = [f"{of[v]} {one if of[v] == 1 else many}" for v, (one, many) in _COUNTED.items() if of[v]]
    errors = [f"{of[None]} could not be tested"] if of[None] else []
    return several([*words, *errors])
