"""Elements of HTML and SVG with everything escaped; the palette; the styles of a notebook cell and of a page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

PALETTE = {
    "ink": ("#1b2431", "#e7ebf0"),
    "muted": ("#5d6875", "#9aa5b1"),
    "grid": ("#dde2e8", "#333c47"),
    "blue": ("#0072b2", "#4ea8de"),
    "orange": ("#e69f00", "#f0b53a"),
    "green": ("#009e73", "#35c79a"),
    "red": ("#d55e00", "#ff8a47"),
    "purple": ("#b5568c", "#e08fbd"),
    "sky": ("#56b4e9", "#2f7fb5"),
}
"""Okabe and Ito's colours, which colour-blind readers can tell apart, by CSS variable: on light and on dark ground."""
_GROUND = ("#ffffff", "#12161b")


def tag(name: str, *children: str, **attributes: object) -> str:
    """An element around markup. ``class_`` is written class, ``stroke_width`` stroke-width; None is left out.

    >>> tag("p", escape("a < b"), class_="x", title='"q"')
    '<p class="x" title="&quot;q&quot;">a &lt; b</p>'
    >>> tag("circle", r=2.50001, stroke_width=1)
    '<circle r="2.5" stroke-width="1"/>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_plain(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}>{''.join(children)}</{name}>" if children else f"<{name}{written}/>"


def _plain(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def html_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of texts, the first column as headings of rows.

    >>> html_table(["block", "norm"], [["<q>", "1"]])
    '<table><thead><tr><th>block</th><th>norm</th></tr></thead><tbody><tr><th>&lt;q&gt;</th><td>1</td></tr></tbody></table>'
    """
    words = [any(row[k][:1].isalpha() for row in rows) or None for k in range(len(columns))]
    sides = ["left" if k and word else None for k, word in enumerate(words)]
    head = tag("tr", *(tag("th", escape(c) or " ", class_=side) for c, side in zip(columns, sides, strict=True)))
    body = [
        tag("tr", *(tag("td" if k else "th", escape(cell) or " ", class_=sides[k]) for k, cell in enumerate(row)))
        for row in rows
    ]
    return tag("table", tag("thead", head), tag("tbody", *body) if body else "<tbody> </tbody>")


def variables(dark: bool) -> str:
    """The palette as declarations of CSS variables.

    >>> variables(dark=False).split("; ")[0]
    '--paper: #ffffff'
    """
    named = {"paper": _GROUND, **PALETTE}
    return "; ".join(f"--{name}: {colours[dark]}" for name, colours in named.items()) + ";"


_DARK = ("body.vscode-dark", "body[data-jp-theme-light=false]", "html[data-theme=dark]", "html[theme=dark]")
_LIGHT = ("body.vscode-light", "body[data-jp-theme-light=true]", "html[data-theme=light]")


def cell_style() -> str:
    """The style of what a notebook shows: as light or dark as the notebook is, or the screen if it does not say."""
    own = ".hessianlens"
    dark, light = (", ".join(f"{theme} {own}" for theme in themes) for themes in (_DARK, _LIGHT))
    return tag(
        "style",
        f"{own} {{ {variables(False)} color: var(--ink); font: 13px/1.45 system-ui, sans-serif; overflow-x: auto }} "
        f"@media (prefers-color-scheme: dark) {{ {own} {{ {variables(True)} }} }} "
        f"{dark} {{ {variables(True)} }} {light} {{ {variables(False)} }} "
        f"{own} p {{ margin: 0 0 .5em; max-width: 60em }} {own} .muted {{ color: var(--muted) }} "
        f"{own} svg {{ display: block; margin: .4em 0 .6em }} "
        f"{own} table {{ border-collapse: collapse; margin: 0; color: inherit; font: inherit; "
        "font-variant-numeric: tabular-nums } "
        f"{own} tr, {own} tr:hover {{ background: none }} "
        f"{own} th, {own} td {{ padding: .15em .9em .15em 0; text-align: right; white-space: nowrap; border: 0; "
        "border-bottom: 1px solid var(--grid) } "
        f"{own} th:first-child, {own} td:first-child {{ text-align: left }} "
        f"{own} .words td {{ white-space: pre-line; max-width: 50em }} {own} .left {{ text-align: left }} "
        f"{own} thead th {{ border-bottom: 1.5px solid var(--muted); font-weight: 600 }} {own} tbody th "
        "{ font-weight: 500 }",
    )


def page_style() -> str:
    """The style sheet of every page, with the palette on light and on dark ground."""
    rules = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    return (
        f":root {{ {variables(dark=False)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {variables(dark=True)} }} }}\n{rules}"
    )
