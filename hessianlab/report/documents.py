"""The documents whose statements are tested: who wrote them, where they are, and which of them a source names."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup, escape

PAPER = "https://openreview.net/forum?id=3ddi7Uss2A"


@dataclass(frozen=True)
class Document:
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

LIST: tuple[Document, ...] = (
    Document(
        "P",
        "What Does It Mean to Be a Transformer? Insights from a Theoretical Hessian Analysis (the paper)",
        "Weronika Ormaniec, Felix Dangel and Sidak Pal Singh; International Conference on Learning Representations "
        "2025",
        (("OpenReview", PAPER), ("arXiv 2410.10986", "https://arxiv.org/abs/2410.10986")),
        ("the paper",),
    ),
    Document("A", "Softmax versus sigmoid attention", _UNSIGNED, (), ("softmax and sigmoid",)),
    Document("B", "One query-key matrix or two", _UNSIGNED, (), ("one matrix or two",)),
    Document(
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
