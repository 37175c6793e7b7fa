"""References of the page: documents and where they say something, lines of code, and related work."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from markupsafe import Markup, escape

from hessianlab.claims.ledger import Ledger
from hessianlab.report.quotation import Quotation

PAPER = "https://openreview.net/forum?id=3ddi7Uss2A"


@dataclass(frozen=True)
class CitedDocument:
    """A document.

    Attributes:
        letter: Its claims begin with it.
        title: In full.
        authors: And where it appeared.
        links: Name and address.
        names: Words by which a source means it; the first document with one of them is meant.
    """

    letter: str
    title: str
    authors: str
    links: tuple[tuple[str, str], ...]
    names: tuple[str, ...]


_UNSIGNED = (
    "An article on the web. The text at hand names neither author nor address; places in it are named by heading."
)

LIST: tuple[CitedDocument, ...] = (
    CitedDocument(
        "P",
        "What Does It Mean to Be a Transformer? Insights from a Theoretical Hessian Analysis (the paper)",
        "Weronika Ormaniec, Felix Dangel and Sidak Pal Singh; International Conference on Learning Representations "
        "2025",
        (("OpenReview", PAPER), ("arXiv 2410.10986", "https://arxiv.org/abs/2410.10986")),
        ("the paper",),
    ),
    CitedDocument("A", "Softmax versus sigmoid attention", _UNSIGNED, (), ("softmax and sigmoid",)),
    CitedDocument("B", "One query-key matrix or two", _UNSIGNED, (), ("one matrix or two",)),
    CitedDocument(
        "C",
        "Understanding Softmax: The Mathematical Foundation Behind Transformer Attention",
        _UNSIGNED,
        (),
        ("article on softmax", "articles on softmax"),
    ),
    CitedDocument(
        "D",
        "QK-norm, sinks, gates, latent attention and embeddings (recent practice)",
        "What is said of changes of attention since 2020 and of embeddings, here and where it was proposed",
        (
            ("Henry et al. 2020", "https://arxiv.org/abs/2010.04245"),
            ("Dehghani et al. 2023", "https://arxiv.org/abs/2302.05442"),
            ("Xiao et al. 2023", "https://arxiv.org/abs/2309.17453"),
            ("Miller 2023", "https://www.evanmiller.org/attention-is-off-by-one.html"),
            ("Hu et al. 2021", "https://arxiv.org/abs/2106.09685"),
            ("Qiu et al. 2025", "https://arxiv.org/abs/2505.06708"),
            ("DeepSeek-V2 2024", "https://arxiv.org/abs/2405.04434"),
            ("Press and Wolf 2017", "https://arxiv.org/abs/1608.05859"),
            ("Kunstner et al. 2024", "https://arxiv.org/abs/2402.19449"),
            ("Zhang et al. 2024", "https://arxiv.org/abs/2406.16793"),
            ("Dong et al. 2025", "https://arxiv.org/abs/2505.02809"),
        ),
        (
            "qk-norm",
            "attention sinks",
            "off by one",
            "gated",
            "factored weights",
            "latent attention",
            "tied embeddings",
            "class imbalance",
            "hessian structure",
        ),
    ),
)


def place_of(letter: str) -> str:
    """The address of a document on the page."""
    return f"#document-{letter}"


def linked_source(source: str) -> Markup:
    """A source with a link for each document that it names.

    >>> print(linked_source("Article on one matrix or two, Figure 4; the paper, Lemma D.2"))
    <a href="#document-B">Article on one matrix or two, Figure 4</a>; <a href="#document-P">the paper, Lemma D.2</a>
    """
    return Markup("; ").join(_linked(piece) for piece in source.split("; "))


def _linked(piece: str) -> Markup:
    meant = next((d for d in LIST if any(name in piece.lower() for name in d.names)), None)
    text = escape(piece)
    return Markup(f'<a href="{place_of(meant.letter)}">{text}</a>') if meant else text


CHECKOUT = Path(__file__).parents[2]
"""What locations of code are relative to."""


def code_address(location: str) -> str:
    """Where ``file:line`` can be read on the web; empty if the package names no address of its sources.

    A page may be moved or sent, so that no path beside it is an address.
    """
    path, _, line = location.partition(":")
    return f"{_root()}/{path}" + (f"#L{line}" if line else "") if _root() else ""


def code_at(location: str) -> str:
    """The function, or the section of a text, that begins at ``file:line``: it goes wherever the page goes.

    >>> print(code_at("hessianlab/report/references.py:1"))
    \"\"\"References of the page: ...
    """
    path, _, line = location.partition(":")
    try:
        lines = (CHECKOUT / path).read_text(encoding="utf-8").splitlines(keepends=True)[int(line or 1) - 1 :]
    except OSError:
        return ""
    if not path.endswith(".py"):
        end = next((n for n, text in enumerate(lines) if n and text.startswith("[")), len(lines))
        return "".join(lines[:end]).rstrip()
    return "".join(inspect.getblock(lines)).rstrip()


@cache
def _root() -> str:
    try:
        named = metadata("hessianlens").get_all("Project-URL") or []
    except PackageNotFoundError:
        named = []
    addresses = dict(entry.split(", ", 1) for entry in named if ", " in entry)
    return f"{addresses['Source'].rstrip('/')}/blob/main" if "Source" in addresses else ""


_WHY = {
    ("P33 holds", "A6 fails"): (
        "Both look at the same entries. P33 states the ratio of the two blocks, which is a property of the "
        "network; A6 states their absolute sizes, which depend on how the loss is averaged."
    ),
    ("A5 holds", "A6 fails"): ("A5 states the ratio of the two blocks, A6 their absolute sizes."),
    ("P33 holds", "A31 holds if"): (
        "P33 counts orders of magnitude, to within half of one; A31 asks for a factor of hundreds, which only "
        "smaller embeddings give."
    ),
    ("P34 holds", "A10 fails"): (
        "P34 says what is seen when softmax is left out; A10 takes that as proof that softmax is the cause. Other "
        "activations, which are not softmax and separate the blocks as well, show that it is none."
    ),
    ("P35 holds if", "A10 fails"): (
        "P35 says which block softmax changes, at one size of the embeddings; A10 says that softmax is the cause."
    ),
    ("A11 holds", "A12 fails"): (
        "A11 speaks of linear attention alone; A12 extends it to every activation without normalised rows."
    ),
    ("P51 holds", "A30 fails"): (
        "P51 states what layer norm does to the growth of the blocks; A30 gives a reason, that it counteracts "
        "softmax, and layer norm does the same without softmax."
    ),
    ("A29 holds", "A30 fails"): ("A29 states what is seen with softmax; A30 gives a reason for it."),
    ("P46 holds", "A28 holds if"): (
        "P46 names the layers and scales at which the powers appear; A28 states them for every block."
    ),
    ("P24 holds", "B20 fails"): (
        "P24 bounds the rank of one part, and is right; B20 concludes that few directions are curved, which the "
        "other part prevents."
    ),
    ("B18 holds", "B19 fails"): (
        "B18 compares the bound with the size of a merged matrix; B19 speaks of the directions of the parameters, "
        "of which there are fewer."
    ),
    ("B6 holds", "B9 fails"): (
        "B6 speaks of the Gauss-Newton part of a single matrix; B9 of the T-outer part of two, which also contains "
        "softmax's second derivative."
    ),
    ("B24 holds if", "B21 fails"): (
        "B24 says that one source of mixed signs belongs to the two matrices; B21 that it is the only one."
    ),
    ("P25 holds", "P29 holds if"): (
        "P25 counts powers, which decide for small data; P29 draws a conclusion for large data, where attention "
        "itself changes."
    ),
}
"""By hand and without numbers; each is true of the two verdicts that it names, and shown where the ledger has these."""


def explanations() -> dict[tuple[Quotation, Quotation], str]:
    """Why two claims on the same matter have different verdicts."""
    return {(Quotation.of(first), Quotation.of(second)): why for (first, second), why in _WHY.items()}


@dataclass(frozen=True)
class Relation:
    """Another claim with its verdict, and why it differs."""

    id: str
    verdict: str
    why: str


def relations(ledger: Ledger) -> dict[str, tuple[Relation, ...]]:
    """For every claim those on the same matter whose verdict differs, where the ledger has the verdicts explained."""
    verdicts = {entry.claim.id: entry.verdict for entry in ledger}
    found: dict[str, list[Relation]] = {}
    for (first, second), why in explanations().items():
        if all(verdicts.get(one.id) is one.says for one in (first, second)):
            for own, other in ((first, second), (second, first)):
                found.setdefault(own.id, []).append(Relation(other.id, str(other.says), why))
    return {id: tuple(own) for id, own in found.items()}
