"""A page of its own: text, figures and tables in the style of the report, in one file that asks for nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from hessianlens.display.chart import Picture
from hessianlens.display.markup import html_table, page_style, tag
from hessianlens.errors import InputError, check_path
from hessianlens.files import write_whole

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True)
class Figure:
    """A picture with a title above and words below it."""

    picture: Picture
    caption: str = ""
    title: str = ""

    def html(self) -> str:
        """A figure element that scrolls by itself where the window is narrow."""
        head = tag("p", tag("strong", escape(self.title))) if self.title else ""
        words = tag("figcaption", escape(self.caption)) if self.caption else ""
        return tag("figure", head, tag("div", self.picture.svg(), class_="drawn"), words)


@dataclass(frozen=True)
class Table:
    """A table of texts; `folded` hides it behind these words until it is asked for."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    folded: str = ""

    def html(self) -> str:
        """A table that scrolls by itself."""
        long = any(len(cell) > 60 for row in self.rows for cell in row)
        table = html_table(self.columns, self.rows)
        words = tag("p", escape(self.caption), class_="caption") if self.caption else ""
        whole = words + tag("div", table, class_="scroll words" if long else "scroll")
        return tag("details", tag("summary", escape(self.folded)), whole) if self.folded else whole


@dataclass(frozen=True)
class CodeBlock:
    """Something to copy."""

    text: str

    def html(self) -> str:
        """Preformatted text."""
        return tag("pre", tag("code", escape(self.text)))


@dataclass(frozen=True)
class SideBySide:
    """Figures side by side; small ones closer to each other."""

    figures: Sequence[Figure]
    small: bool = False

    def html(self) -> str:
        """As many in a line as fit."""
        return tag(
            "div", *(figure.html() for figure in self.figures), class_="panels three" if self.small else "panels"
        )


Part = str | Figure | Table | CodeBlock | SideBySide


@dataclass(frozen=True)
class Section:
    """A heading and what follows; a text is a paragraph."""

    title: str
    parts: Sequence[Part]

    def html(self, number: int) -> str:
        """The section, numbered."""
        head = tag("h2", tag("span", str(number), class_="n"), escape(self.title))
        parts = [tag("p", escape(part)) if isinstance(part, str) else part.html() for part in self.parts]
        return tag("section", head, *parts, id=f"section-{number}")


@dataclass(frozen=True)
class Document:
    """A page.

    Attributes:
        title: Its name.
        lead: One sentence about it.
        short: What a reader should take away, each with a heading.
        sections: The rest.

    >>> page = Document("<A>", "lead", [("First", "one")], [Section("Two", ["a & b"])])
    >>> "<h1>&lt;A&gt;</h1>" in page.html(), "a &amp; b" in page.html()
    (True, True)
    """

    title: str
    lead: str
    short: Sequence[tuple[str, str]]
    sections: Sequence[Section]

    def html(self) -> str:
        """The file; nothing in it comes from elsewhere."""
        items = [tag("li", tag("strong", escape(name)), tag("span", escape(text))) for name, text in self.short]
        summary = tag("section", tag("h2", "In short"), tag("ul", *items), class_="short") if items else ""
        sections = [section.html(k) for k, section in enumerate(self.sections, 1)]
        header = tag("header", tag("h1", escape(self.title)), tag("p", escape(self.lead), class_="lead"))
        head = tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
            tag("title", escape(self.title)),
            tag("style", page_style()),
        )
        body = tag("body", tag("main", header, summary, *sections))
        return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"

    def write(self, path: Any) -> Path:
        """Write the file whole or not at all.

        Raises:
            InputError: If it cannot be written.
        """
        target = check_path("page", path, "the name of a file to be written, such as page.html")
        try:
            write_whole(target, self.html())
        except OSError as error:
            raise InputError(
                f"page: cannot write {str(target)!r} ({error.strerror}); expected a file in a folder that exists."
            ) from error
        return target
