"""Elements of HTML and SVG, with everything escaped; and the style of a notebook cell."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from hessianlens.display.colours import variables

LETTER = 6.9
"""Pixels that a letter of twelve pixels takes on average, generously."""


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


def label(x: float, y: float, text: str, anchor: str = "start", fill: str = "ink", **more: object) -> str:
    """Words in a drawing, never smaller than twelve pixels."""
    return tag("text", escape(text), x=x, y=y, text_anchor=anchor, fill=f"var(--{fill})", **more)


def line(x1: float, y1: float, x2: float, y2: float, stroke: str = "grid", width: float = 1.0, **more: object) -> str:
    """A straight line."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=f"var(--{stroke})", stroke_width=width, **more)


def drawing(width: float, height: float, description: str, *children: str) -> str:
    """An inline SVG element of its own size in pixels, that follows the colours around it."""
    return tag(
        "svg",
        *children,
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        width=round(width),
        height=round(height),
        role="img",
        aria_label=description,
        style="font: 12px system-ui, sans-serif; overflow: visible",
    )


def shortened(text: str, most: int) -> str:
    """A name that fits, with its beginning and its end.

    >>> shortened("decoder.layer11.attn.query.bias", 20)
    'decoder.la…uery.bias'
    """
    if len(text) <= most:
        return text
    tail = (most - 1) // 2
    return f"{text[: most - 1 - tail]}…{text[len(text) - tail :]}"


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
