"""Pages: plain words set with indices and Greek letters, templates filled in the common style, files written whole."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from hessianlab.wording import ACTIVATIONS, GLUE, number, percent
from hessianlens.errors import InputError, needs_extra
from hessianlens.files import write_whole

_WORDS = {
    "Sigma": "Σ",
    "sigma": "σ",
    "Omega": "Ω",
    "lambda": "λ",
    "kron": "⊗",
    "sqrt": "√",
}
_SIGNS = {"&lt;=": "≤", "&gt;=": "≥", "!=": "≠", "+-": "±", "-&gt;": "→"}

_EXPONENT = r"\^(?:\(([^()]*)\)|(−?\w+))"
_RULES: tuple[tuple[str, str], ...] = (
    (r"(?<![\w.,)\]])-(?=[\d.]|∞)", "−"),
    (r"(?<=\b[A-Za-z0-9]) - (?=[A-Za-z0-9](?:\b|_))", " − "),
    (r"(?<![\w.])1e([-−]?)0*(\d+)\b", r"10^(\1\2)"),
    (r"(?<=\d)e([-−]?)0*(\d+)\b", rf"{GLUE}×{GLUE}10^(\1\2)"),
    (r"(?<=[\dA-Zs)]) x (?=[\dA-ZdL(])", " × "),
    (r"(?<=[a-z]{2})_(?=[a-z])", " "),
    (rf"\b([A-Za-z])_([A-Za-z0-9]+)\b(?:{_EXPONENT})", r"<i>\1</i><sub>\2</sub><sup>\3\4</sup>"),
    (r"\b([A-Za-z])_([A-Za-z0-9]+)\b", r"<i>\1</i><sub>\2</sub>"),
    (_EXPONENT, r"<sup>\1\2</sup>"),
    (r"\bM([123])\b", r"<i>M</i><sub>\1</sub>"),
)


def typeset(words: object) -> Markup:
    """Text as HTML, escaped; what is `Markup` already stays as it is.

    >>> print(typeset("d_V^2 at sigma = -0.5, X^6 <= 1e-03 and +-lambda"))
    <i>d</i><sub>V</sub><sup>2</sup> at σ = −0.5, X<sup>6</sup> ≤ 10<sup>−3</sup> and ±λ
    >>> print(typeset("x_j x_j^T and d_model of cross_entropy"))
    <i>x</i><sub>j</sub> <i>x</i><sub>j</sub><sup>T</sup> and <i>d</i><sub>model</sub> of cross entropy
    >>> print(typeset("a 3 x 3 grid of sigmoid_log_length, H - H_o, 3 shapes x 2 seeds, T-functional, P3-like"))
    a 3 × 3 grid of sigmoid(t − log L), H − <i>H</i><sub>o</sub>, 3 shapes × 2 seeds, T-functional, P3-like
    """
    if isinstance(words, Markup):
        return words
    text = str(escape(words))
    for sign, symbol in _SIGNS.items():
        text = text.replace(sign, symbol)
    for word, symbol in (ACTIVATIONS | _WORDS).items():
        text = re.sub(rf"\b{word}\b", symbol, text)
    for pattern, becomes in _RULES:
        text = re.sub(pattern, becomes, text)
    return Markup(re.sub(r"(?<=<sup>)-", "−", text))


with needs_extra("", "a page"):
    from jinja2 import ChoiceLoader, DictLoader, Environment, FileSystemLoader, StrictUndefined

FILE_NAME, LABBOOK = "index.html", "labbook.html"
"""The story, or the one page that a command writes; and the page that has everything."""


def write_page(directory: Path, html: str, name: str = FILE_NAME) -> Path:
    """Write the page whole or not at all: under another name first, then renamed.

    Args:
        directory: Made if it does not exist.
        html: The page.
        name: Of the file.

    Returns:
        The file written.

    Raises:
        InputError: If the directory or the file cannot be written.
    """
    target = directory / name
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_whole(target, html)
    except OSError as error:
        raise InputError(f"out: cannot write {target}: {error.strerror or error}; give another directory.") from error
    return target


def render_template(template: Path, **values: Any) -> str:
    """The page; the template may include the common ``page.css.jinja`` and use the filters number, percent and typeset.

    A name that the template uses and `values` does not give is an error, and every text is escaped unless it is
    `markupsafe.Markup`.
    """
    from hessianlens.display import page_style

    environment = Environment(
        loader=ChoiceLoader([DictLoader({"page.css.jinja": page_style()}), FileSystemLoader(template.parent)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "percent": percent, "typeset": typeset}
    return environment.get_template(template.name).render(**values)
