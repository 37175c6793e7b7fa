"""Numbers and lists as a reader wants them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hessianlens.notation import ACTIVATION_TITLES

if TYPE_CHECKING:
    import numpy as np

MINUS = "\N{MINUS SIGN}"
GLUE = "\N{NO-BREAK SPACE}"
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


ACTIVATIONS = ACTIVATION_TITLES
"""Names that say the formula, the same in every text, table, picture and scene."""


def activation_in_words(name: str) -> str:
    """An attention activation as every text, table and picture calls it.

    >>> activation_in_words("relu_normalised"), activation_in_words("softmax")
    ('ReLU / row sum', 'softmax')
    """
    return ACTIVATIONS.get(name, name.replace("_", " "))


def superscript(exponent: int) -> str:
    """A whole number as an exponent.

    >>> f"x{superscript(-54)}"
    'x⁻⁵⁴'
    """
    return str(exponent).translate(_SUPERSCRIPT)


def power_of_ten(exponent: float) -> str:
    """Ten to a whole power, as text.

    >>> power_of_ten(-3)
    '10⁻³'
    """
    return f"10{superscript(round(exponent))}"


def scientific(value: float, digits: int = 1) -> str:
    """A number as a product with a power of ten, as text.

    >>> scientific(4.49e-7), scientific(0.0)
    ('4.5 × 10⁻⁷', '0')
    """
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.{digits}e}".split("e")
    return f"{mantissa} × {power_of_ten(int(exponent))}"


def number(value: float | None, digits: int = 3) -> str:
    """A number with some significant digits; very large and very small ones as a power of ten.

    >>> number(0.12345), number(-3.1), number(0.0), number(None)
    ('0.123', '−3.10', '0', '–')
    >>> number(-3.1e-9, 2).replace(GLUE, " ")
    '−3.1 × 10⁻⁹'
    """
    if value is None:
        return "\N{EN DASH}"
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    if -4 < int(exponent) < 5:
        places = max(0, digits - 1 - int(exponent))
        return f"{value:.{places}f}".replace("-", MINUS)
    return f"{mantissa}{GLUE}×{GLUE}{power_of_ten(int(exponent))}".replace("-", MINUS)


def column(values: Sequence[float], digits: int = 4) -> list[str]:
    """Numbers for one column of a table: with the same decimals if they are of similar size.

    >>> column([1.08062, 0.39, 0.0]), column([2.0, 0.0015])
    (['1.081', '0.390', '0'], ['2.00', '0.00150'])
    """
    sizes = [abs(v) for v in values if v]
    if not sizes or not 1e-2 <= min(sizes) <= max(sizes) < 1e3:
        return [number(v, digits - 1) for v in values]
    decimals = max(0, digits - 1 - math.floor(math.log10(max(sizes))))
    return [f"{v:.{decimals}f}".replace("-", MINUS) if v else "0" for v in values]


def percent(share: float) -> str:
    """A share as a percentage.

    >>> percent(0.2656), percent(0.0004), percent(0.0)
    ('27%', 'less than 0.1%', '0%')
    """
    if 0 < share < 0.001:
        return "less than 0.1%"
    return f"{100 * share:.1f}%" if 0 < share < 0.0995 else f"{100 * share:.0f}%"


def several(words: Sequence[str]) -> str:
    """A list in a sentence.

    >>> several(["a", "b", "c"]), several(["a"])
    ('a, b and c', 'a')
    """
    return words[-1] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def either(words: Sequence[str]) -> str:
    """Alternatives in a sentence.

    >>> either(["a", "b", "c"]), either(["a"])
    ('a, b or c', 'a')
    """
    return words[-1] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def be(n: int) -> str:
    """The verb for so many things.

    >>> be(1), be(0)
    ('is', 'are')
    """
    return "is" if n == 1 else "are"


def duration(seconds: float | None) -> str:
    """Seconds as a reader says them.

    >>> duration(0.04), duration(75), duration(7500), duration(None)
    ('0.04 s', '1 min 15 s', '2 h 5 min', 'not known')
    """
    if seconds is None:
        return "not known"
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    return f"{hours} h {minutes_left} min" if hours else f"{minutes} min {rest} s"


def span(values: Sequence[float] | np.ndarray, show: Callable[[float], str] | None = None) -> str:
    """A range as text.

    >>> span([3.0, 17.2])
    '3 to 17.2'
    """
    write = show or short
    low, high = write(float(min(values))), write(float(max(values)))
    return low if low == high else f"{low} to {high}"


def short(value: float) -> str:
    r"""Three digits, in powers of ten where that is shorter.

    >>> short(123.4), short(1.0), short(999.7)
    ('123', '1', '1,000')
    >>> short(0.000012345).replace("\N{NO-BREAK SPACE}", " ")
    '1.23 × 10⁻⁵'
    """
    if value == 0 or -4 < math.floor(math.log10(abs(value))) < 6:
        return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"
    return number(value)


def about(value: float) -> str:
    """Two digits, which is what a story needs; the lab book has three.

    >>> about(1403.2), about(73.3), about(0.8652), about(1.1)
    ('1,400', '73', '0.87', '1.1')
    >>> about(-0.00799)
    '−0.008'
    """
    if value != 0 and not 1e-3 <= abs(value) < 1e6:
        return short(value)
    rounded = float(f"{value:.1e}")
    return (f"{rounded:,.0f}" if abs(rounded) >= 10 else f"{rounded:.2g}").replace("-", MINUS)
