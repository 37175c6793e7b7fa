"""Sentences of the page that quote a claim, against the ledger: none may say another verdict, and none may escape."""

import ast
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hessianlab.claims.catalogue import all_claims, find
from hessianlab.claims.finding import Check, Finding, Verdict
from hessianlab.claims.ledger import RECORDED_VERDICTS, Entry, Ledger, read_verdicts
from hessianlab.report import render_labbook
from hessianlab.report.argument import CHAPTERS
from hessianlab.report.chapter import Answer, Chapter
from hessianlab.report.quotation import Quotation, agreeing_kinds, answers_yes, shown_quotations
from hessianlab.report.references import explanations, relations
from tests.hessianlab.report.page_parts import Tags
from tests.hessianlab.report.results import result

LAB = Path(__file__).parents[3] / "hessianlab"
CLAIM_ID = re.compile(r"(?<![\w.])[PABCD]\d{1,2}(?![\w.]*\w)")
NAMED = "named"


def ledger_verdicts() -> dict[str, Verdict]:
    """As recorded; a slip of the pen that was recorded before there was a word for it counts as one."""
    known = {str(verdict) for verdict in Verdict}
    recorded = {id: entry["verdict"] for id, entry in read_verdicts(RECORDED_VERDICTS).items()}
    misprints = {claim.id for claim in all_claims() if claim.misprint}
    found = {id: Verdict(verdict) for id, verdict in recorded.items() if verdict in known}
    return {id: Verdict.MISPRINT if id in misprints and v is Verdict.FAILS else v for id, v in found.items()}


def entry_with(id: str, verdict: Verdict) -> Entry:
    """An entry of the ledger with this verdict."""
    (claim,) = find([id])
    yes, no = Check("it", "1", "1", True), Check("it", "0", "1", False)
    findings = {
        Verdict.HOLDS: Finding((yes,)),
        Verdict.HOLDS_IF: Finding((no,), conditional=(yes,), condition="it is so"),
        Verdict.FAILS: Finding((no,), correction="It is not so."),
        Verdict.MISPRINT: Finding((no,), misprint=True, correction="It is not so."),
        Verdict.NOT_SEEN: Finding((no,), not_seen=True, correction="It is not so."),
        Verdict.OPEN: Finding((no,), undecided="nobody knows"),
    }
    return Entry(claim, findings[verdict])


def quoted_ids() -> list[str]:
    pairs = {one.id for pair in explanations() for one in pair}
    return sorted({claim.id for chapter in CHAPTERS for claim in chapter.quoted} | pairs)


def recorded_ledger() -> Ledger:
    """Every claim that some sentence quotes, with its recorded verdict."""
    verdicts = ledger_verdicts()
    return Ledger(tuple(entry_with(id, verdicts[id]) for id in quoted_ids() if id in verdicts))


# --- what sentences say -----------------------------------------------------------------------------------------------


def contradictions(chapter: Chapter) -> str:
    """What is wrong with the claims that a chapter's answer rests on; empty if some answer agrees with the ledger."""
    verdicts = ledger_verdicts()
    if agreeing_kinds(chapter.quoted, verdicts) - {"open"} or not any(one.implied for one in chapter.quoted):
        return ""
    told = {one.id: str(verdicts.get(one.id)) for one in chapter.quoted}
    return f"{chapter.slug}: no answer agrees with the ledger, {told}"


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.slug)
def test_every_chapter_can_agree_with_the_ledger(chapter) -> None:
    assert chapter.quoted, "an answer rests on some claim"
    assert contradictions(chapter) == ""
    assert len(agreeing_kinds(chapter.quoted, ledger_verdicts()) - {"open"}) == 1 or chapter.slug == "training"


def test_a_chapter_that_rests_on_contradicting_claims_is_caught() -> None:
    norm = next(chapter for chapter in CHAPTERS if chapter.slug == "norm")
    wrong = Chapter(**{**vars(norm), "quoted": answers_yes("P51", "A30")})
    assert "A30" in contradictions(wrong)


def test_every_explanation_names_the_verdicts_of_the_ledger() -> None:
    verdicts = ledger_verdicts()
    for pair, why in explanations().items():
        assert [verdicts.get(one.id) for one in pair] == [one.says for one in pair], pair
        assert set(CLAIM_ID.findall(why)) <= {one.id for one in pair}
    ids = {one.id for pair in explanations() for one in pair}
    assert set(relations(recorded_ledger())) == ids, "each of them stands on the page"


CITED: dict[tuple[str, str], str] = {
    ("P31", "P77"): NAMED,
    ("P55", "P54"): NAMED,
    ("P66", "P33"): NAMED,
    ("P66", "P44"): NAMED,
    ("P66", "P51"): NAMED,
    ("P74", "P51"): NAMED,
    ("P75", "P76"): NAMED,
    ("A5", "P33"): NAMED,
    ("A16", "A15"): NAMED,
    ("A20", "P47"): "holds",
    ("A20", "A15"): "holds",
    ("A26", "P33"): "holds",
    ("A26", "A5"): "holds",
    ("A27", "A12"): "fails",
    ("A27", "A13"): "fails",
    ("A29", "P51"): NAMED,
    ("A32", "P66"): NAMED,
    ("A35", "A17"): NAMED,
    ("A35", "A26"): NAMED,
    ("A35", "A5"): NAMED,
    ("B8", "P18"): "holds",
    ("B13", "B12"): "holds if",
    ("B13", "B14"): "holds if",
    ("B13", "B24"): "holds if",
    ("B23", "B20"): "fails",
    ("B23", "B21"): "fails",
    ("B25", "B2"): NAMED,
    ("C2", "C1"): "misprint",
    ("C10", "C11"): NAMED,
    ("C21", "C18"): NAMED,
    ("C25", "C24"): NAMED,
    ("C27", "C3"): NAMED,
    ("C38", "C40"): "holds",
    ("C39", "C40"): "holds",
    ("C41", "C51"): NAMED,
    ("C42", "C41"): NAMED,
    ("C43", "C27"): NAMED,
    ("C45", "C6"): NAMED,
    ("C46", "C4"): NAMED,
    ("C50", "C44"): NAMED,
    ("C51", "C41"): NAMED,
}
"""What the text of a claim says of another claim that it cites: a verdict, or nothing, if it only names it."""


def cited() -> set[tuple[str, str]]:
    fields = ("statement", "method", "condition", "correction", "reason")
    return {
        (claim.id, id)
        for claim in all_claims()
        for field in fields
        for id in CLAIM_ID.findall(getattr(claim, field))
        if id != claim.id
    }


def test_texts_of_the_ledger_agree_with_the_claims_they_cite() -> None:
    assert cited() == set(CITED), "read what the text says of the other claim, and add it to CITED"
    verdicts = ledger_verdicts()
    for (id, other), says in CITED.items():
        assert says == NAMED or verdicts[other] == says, f"{id} says of {other} that it {says}"


# --- the built page ---------------------------------------------------------------------------------------------------


class QuotingPage(HTMLParser):
    """Sentences of a page that name a claim: those with a verdict beside it, and those that escaped."""

    OWN = ("claim", "surprises", "mosaic")
    """Classes of parts that are made of an entry of the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self.verdicts = {entry.claim.id: str(entry.verdict) for entry in ledger}
        self.open: list[dict[str, str]] = []
        self.quoted: list[str] = []
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in Tags.VOID:
            self.open.append({"tag": tag, **{name: value or "" for name, value in attrs}})

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        if tag not in Tags.VOID:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        classes = {name for element in self.open for name in element.get("class", "").split()}
        if any(e["tag"] in ("style", "script", "title") for e in self.open) or classes.intersection(self.OWN):
            return
        here = self.open[-1] if self.open else {}
        for id in CLAIM_ID.findall(data):
            place = here.get("href", "").removeprefix("labbook.html")
            if "quoted" in classes and place == f"#claim-{id}":
                self.quoted.append(id)
                if data != f"{id} {self.verdicts[id]}" or here["data-verdict"] != self.verdicts[id]:
                    self.wrong.append(f"{data!r}: the ledger has {self.verdicts[id]!r}")
            elif not (place == f"#claim-{id}" and data == id):  # a bare link says nothing
                self.wrong.append(f"{data.strip()!r} names {id} without its verdict")


def read_page(page: str, ledger: Ledger) -> QuotingPage:
    found = QuotingPage(ledger)
    found.feed(page)
    return found


PAGE_FIGURES = ("fig1", "activation_offset", "moment_strata", "parameterisations", "weight_powers")


@pytest.fixture(scope="module")
def quoting_page() -> Iterator[str]:
    """A page of words alone: no picture is drawn."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("figures", "recorded", "claims"):
            patch.setattr(f"hessianlab.report.{module}.panel_svgs", lambda *_: [])
        patch.setattr("hessianlab.report.recorded.draw_chart", lambda *_: None)
        yield render_labbook([result(name) for name in PAGE_FIGURES], recorded_ledger())


def test_no_sentence_of_the_page_says_another_verdict(quoting_page: str) -> None:
    found = read_page(quoting_page, recorded_ledger())
    assert found.wrong == []
    shown = [
        chapter for chapter in CHAPTERS if chapter.slug in ("blocks", "moments", "softmax", "query-key", "weights")
    ]
    assert {one.id for chapter in shown for one in chapter.quoted} <= set(found.quoted)


def test_a_wrong_sentence_is_caught(quoting_page: str) -> None:
    sentence = '<p class="lead">Softmax is the cause of it, as the article says (A10 holds).</p>'
    found = read_page(quoting_page.replace('<main id="top">', f'<main id="top">{sentence}'), recorded_ledger())
    assert found.wrong == [
        "'Softmax is the cause of it, as the article says (A10 holds).' names A10 without its verdict"
    ]
    assert "A10 fails</a>" in quoting_page
    other = read_page(quoting_page.replace("A10 fails</a>", "A10 holds</a>"), recorded_ledger())
    assert other.wrong == ["'A10 holds': the ledger has 'fails'"]


def test_an_answer_that_the_ledger_contradicts_says_so_on_the_page(monkeypatch) -> None:
    softmax = next(chapter for chapter in CHAPTERS if chapter.slug == "softmax")
    ledger = recorded_ledger()
    yes = {one.id: one.agrees for one in shown_quotations(softmax.quoted, "yes", ledger)}
    no = {one.id: one.agrees for one in shown_quotations(softmax.quoted, "no", ledger)}
    assert not any(yes.values()) and all(no.values())
    wrong = Chapter(**{**vars(softmax), "answer": lambda _results, _ledger: Answer("yes", "yes", "It is softmax.")})
    monkeypatch.setattr("hessianlab.report.contents.CHAPTERS", (wrong,))
    page = render_labbook([], ledger)
    assert page.count("which this run, of its size, does not show") == len(softmax.quoted)


# --- the source -------------------------------------------------------------------------------------------------------

SPEAKING = ("report", "figures", "studies", "growth", "plots")
"""Folders whose words stand on the page."""


def strings(tree: ast.AST) -> Iterator[str]:
    """Every text in a module but its docstrings."""
    documented = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            yield node.value


def declared(text: str) -> bool:
    """Whether a text that names a claim is an id, an id with a verdict, or one of the explanations."""
    if CLAIM_ID.fullmatch(text) or text in explanations().values():
        return True
    try:
        return bool(CLAIM_ID.fullmatch(Quotation.of(text).id))
    except ValueError:
        return False


def undeclared(source: str) -> list[str]:
    return [text for text in strings(ast.parse(source)) if CLAIM_ID.search(text) and not declared(text)]


def test_no_sentence_in_the_source_names_a_claim_in_words() -> None:
    files = [file for folder in SPEAKING for file in sorted((LAB / folder).rglob("*.py"))]
    assert len(files) > 20
    found = {file.name: undeclared(file.read_text(encoding="utf-8")) for file in files}
    assert {name: texts for name, texts in found.items() if texts} == {}
    for template in LAB.rglob("*.jinja"):
        assert not CLAIM_ID.search(re.sub(r"{#.*?#}", "", template.read_text(encoding="utf-8"))), template.name


def test_a_sentence_in_the_source_is_caught() -> None:
    assert undeclared('"""Docstrings may: A10."""\nx = f"softmax is the cause (A10), {1} times"') == [
        "softmax is the cause (A10), "
    ]
    assert undeclared('x = ("A10", "A10 fails", "QA10", "d_A10", "4.A10")') == []
