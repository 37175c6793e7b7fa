"""Plain words as a page sets them: indices and powers raised and lowered, Greek letters, true minus signs."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

from hessianlab.wording import ACTIVATIONS, GLUE

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
    (r"(?<=[a-z])_(?=[a-z])", " "),
    (rf"\b([A-Za-z])_([A-Za-z0-9]+)\b(?:{_EXPONENT})", r"<i>\1</i><sub>\2</sub><sup>\3\4</sup>"),
    (r"\b([A-Za-z])_([A-Za-z0-9]+)\b", r"<i>\1</i><sub>\2</sub>"),
    (_EXPONENT, r"<sup>\1\2</sup>"),
    (r"\bM([123])\b", r"<i>M</i><sub>\1</sub>"),
)


def typeset(words: object) -> Markup:
    """Text as HTML, escaped; what is `Markup` already stays as it is.

    >>> print(typeset("d_V^2 at sigma = -0.5, X^6 <= 1e-03 and +-lambda"))
    <i>d</i><sub>V</sub><sup>2</sup> at σ = −0.5, X<sup>6</sup> ≤ 10<sup>−3</sup> and ±λ
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
