"""References of the page: documents and where they say something, lines of code, and related work."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata

from markupsafe import Markup, escape

from hessianlab.claims.ledger import Ledger

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


BESIDE = ".."
"""From the folder that `make report` writes into, the checkout."""


def code_address(location: str) -> str:
    """Where ``file:line`` can be read.

    >>> code_address("hessianlab/claims/check.py:12").endswith("/hessianlab/claims/check.py#L12")
    True
    """
    path, _, line = location.partition(":")
    return f"{_root()}/{path}" + (f"#L{line}" if line else "")


@cache
def _root() -> str:
    try:
        named = metadata("hessianlens").get_all("Project-URL") or []
    except PackageNotFoundError:
        named = []
    addresses = dict(entry.split(", ", 1) for entry in named if ", " in entry)
    return f"{addresses['Source'].rstrip('/')}/blob/main" if "Source" in addresses else BESIDE


_WHY = {
    ("P33", "A6"): "Both look at the same entries. P33 states the ratio of the two blocks, which is a property of the "
    "network; A6 states their absolute sizes, which depend on how the loss is averaged.",
    ("A5", "A6"): "A5 states the ratio of the two blocks, A6 their absolute sizes.",
    ("P33", "A31"): "P33 counts orders of magnitude and is right to within half of one; A31 asks for a factor of "
    "hundreds, which only smaller embeddings give.",
    (
        "P34",
        "A10",
    ): "P34 says what is seen when softmax is left out; A10 takes that as proof that softmax is the cause. "
    "Other activations, which are not softmax and separate the blocks as well, show that it is none.",
    ("P35", "A10"): "P35 says which block softmax changes, at one size of the embeddings; A10 says that softmax is the "
    "cause.",
    ("A11", "A12"): "A11 speaks of linear attention alone; A12 extends it to every activation without normalised rows.",
    (
        "P51",
        "A30",
    ): "P51 states what layer norm does to the growth of the blocks; A30 gives a reason, that it counteracts "
    "softmax, and layer norm does the same without softmax.",
    ("A29", "A30"): "A29 states what is seen with softmax; A30 gives a reason for it.",
    ("P46", "A28"): "P46 names the layers and scales at which the powers appear; A28 states them for every block.",
    (
        "P24",
        "B20",
    ): "P24 bounds the rank of one part, and is right; B20 concludes that few directions are curved, which "
    "the other part prevents.",
    ("B18", "B19"): "B18 compares the bound with the size of a merged matrix; B19 speaks of the directions of the "
    "parameters, of which there are fewer.",
    ("B6", "B9"): "B6 speaks of the Gauss-Newton part of a single matrix; B9 of the T-outer part of two, which also "
    "contains softmax's second derivative.",
    ("B24", "B21"): "B24 says that one source of mixed signs belongs to the two matrices; B21 that it is the only one.",
    ("P25", "P29"): "P25 counts powers, which decide for small data; P29 draws a conclusion for large data, where "
    "attention itself changes.",
}
"""By hand and without numbers; shown where both claims are tested and their verdicts differ."""


@dataclass(frozen=True)
class Relation:
    """Another claim with its verdict, and why it differs."""

    id: str
    verdict: str
    why: str


def relations(ledger: Ledger) -> dict[str, tuple[Relation, ...]]:
    """For every claim those on the same matter whose verdict differs."""
    verdicts = {entry.claim.id: entry.verdict for entry in ledger}
    found: dict[str, list[Relation]] = {}
    for pair, why in _WHY.items():
        both = [verdicts.get(id) for id in pair]
        if all(both) and both[0] is not both[1]:
            for own, other in (pair, pair[::-1]):
                found.setdefault(own, []).append(Relation(other, str(verdicts[other]), why))
    return {id: tuple(own) for id, own in found.items()}
