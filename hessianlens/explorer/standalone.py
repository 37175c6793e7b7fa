"""The page that has the scenes alone: one file, no request to anywhere, the one script allowed by its hash."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from html import escape
from pathlib import Path

from hessianlens.display import page_style
from hessianlens.display.markup import tag
from hessianlens.errors import check_choice
from hessianlens.explorer.module import module_source

SCENES = {
    "row": ("One row of scores", "What does an activation make of four scores, and how does the result react?"),
    "tokens": ("Tokens in the plane", "What does a query see of its tokens, and which blocks follow?"),
    "curvature": ("What curvature is", "How much of the loss around a point do its two parabolas have?"),
    "factors": ("Count the tokens in a formula", "Which block dies first as the tokens get small?"),
    "activation": ("Bend the activation", "What decides how far value and query are from each other?"),
    "matrices": ("One matrix or two", "Where do negative eigenvalues come from?"),
    "depth": ("Depth and layer norm", "How much faster do blocks grow in a stack, and what does a norm leave?"),
    "rates": ("Two learning rates", "Can one step size suit queries and values?"),
}
"""Scenes by name: a title and the question it asks."""


def style() -> str:
    """The style sheet of the scenes."""
    return Path(__file__).with_name("style.css").read_text(encoding="utf-8")


def script_hash(script: str) -> str:
    """What a content-security policy allows a script by; it counts every character between the tags.

    >>> script_hash("alert(1)")
    'sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI='
    """
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def content_policy(script: str) -> str:
    """The policy of a page with this one script: nothing from elsewhere, workers from its own text."""
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src '{script_hash(script)}'; "
        "worker-src blob:; base-uri 'none'; form-action 'none'"
    )


def mounting_script() -> str:
    """The module and a last line that draws every scene of the page; goes into ``<script type="module">``."""
    return f"{module_source()}mountAll(document);\n"


def page(scenes: Iterable[str] = tuple(SCENES)) -> str:
    """A page with some of the scenes, or all of them.

    Args:
        scenes: Names from `SCENES`.

    >>> '<div data-scene="row"' in page(["row"])
    True
    """
    chosen = list(scenes)
    for name in chosen:
        check_choice("scene", name, SCENES)
    script = mounting_script()
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=content_policy(script)),
        tag("title", "hessianlens: move it and see it"),
        tag("style", page_style() + style()),
    )
    main = tag("main", tag("header", tag("h1", "Move it and see it")), *map(_section, chosen))
    body = tag("body", main, tag("script", script, type="module"))
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _section(name: str) -> str:
    title, question = SCENES[name]
    return tag(
        "section",
        tag("h2", escape(title)),
        tag("div", tag("noscript", escape(f"{question} This scene needs JavaScript.")), data_scene=name),
        id=name,
    )
