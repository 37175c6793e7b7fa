"""What is said of input that cannot be used: what was given, what was expected and what to do.

Without torch, so that a command can refuse its arguments at once; `hessianlens.checks` has the checks of tensors.
"""

from __future__ import annotations

import math
import os
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from numbers import Integral, Real
from pathlib import Path

__all__ = ["InputError", "RankError"]
"""Of interest to users; the rest is for this package."""


class InputError(ValueError):
    """Input that cannot be used; the message names the argument, what it got and what was expected."""


@dataclass(frozen=True)
class Refusal:
    """Why something cannot be had: what a function returns in place of it.

    Attributes:
        reason: In a few words, for the user; empty where the question was not meant for whoever refuses.
        at_this_price: Whether a higher limit would change the answer.
        hvps: The least HVPs that it would take, where a limit of HVPs is the reason.

    >>> str(Refusal("it is used in several places"))
    'it is used in several places'
    """

    reason: str
    at_this_price: bool = False
    hvps: float = 0.0

    def __str__(self) -> str:
        return self.reason


class RankError(RuntimeError):
    """A rank has ended, does not answer, or makes another call than the others; the message says which."""


class MissingExtra(InputError, ImportError):
    """Something needs a package of an optional extra, which is not installed; the message says how to get it."""


@contextmanager
def needs_extra(extra: str, what: str) -> Iterator[None]:
    """Imports inside may lack a package; without it `MissingExtra` is raised.

    Args:
        extra: The extra that brings the package; empty for a package that every installation brings.
        what: What needs it.

    >>> with needs_extra("frames", "it"):
    ...     import nosuch
    Traceback (most recent call last):
    hessianlens.errors.MissingExtra: it needs nosuch, which is not installed; ...: pip install 'hessianlens[frames]'.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = f"'hessianlens[{extra}]'" if extra else (error.name or "").partition(".")[0]
        raise MissingExtra(
            f"{what} needs {error.name}, which is not installed; install it with: pip install {package}."
        ) from error


def expect(condition: bool, message: str) -> None:
    """Raise `InputError` with `message` unless `condition` holds."""
    if not condition:
        raise InputError(message)


def describe_value(value: object) -> str:
    """A value in a message: one short line, whatever it is.

    >>> import torch
    >>> describe_value("both"), describe_value(torch.zeros(3, 4)), describe_value([0] * 100)
    ("'both'", 'Tensor of shape (3, 4)', '[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 ...')
    """
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return f"{type(value).__name__} of shape {tuple(shape)}"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # an object that cannot even be shown
        text = type(value).__name__
    return text if len(text) <= 60 else f"{text[:59].rstrip(' ,')} ..."


def check_that(condition: bool, name: str, value: object, wanted: str) -> None:
    """As `expect`, with a message that is made only where it is needed: showing a value may take long.

    >>> check_that(False, "causal", 3, "True or False")
    Traceback (most recent call last):
    hessianlens.errors.InputError: causal: got 3, expected True or False.
    """
    if not condition:
        raise InputError(f"{name}: got {describe_value(value)}, expected {wanted}.")


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """`value` is one of the named choices."""
    listed = list(choices)
    known = isinstance(value, Hashable) and value in listed  # an array in a list is no question of true or false
    expect(known, f"{name}: got {describe_value(value)}, expected one of {', '.join(map(repr, listed))}.")


def suggest_names(given: object, known: Iterable[object], most: int = 12, otherwise: str = "expected one of") -> str:
    """What a name that is not known may have been meant to be, as the end of a message.

    >>> suggest_names("layer0.atn.q", ["layer0.attn.q", "layer0.attn.k"])
    'did you mean layer0.attn.q or layer0.attn.k?'
    >>> suggest_names(3, ["Q", "K"])
    'expected one of Q, K.'
    """
    names = [str(name) for name in known]
    close = get_close_matches(given, names, n=3) if isinstance(given, str) else []
    if close:
        return f"did you mean {' or '.join(close)}?"
    more = f", ... ({len(names)} in all)" if len(names) > most else ""
    return f"{otherwise} {', '.join(names[:most])}{more}."


def first_names(names: Iterable[str], most: int = 6) -> str:
    """The first of some names, and how many more there are.

    >>> first_names("abcdef", 3), first_names(["q", "k"])
    ('a, b, c and 3 more', 'q, k')
    """
    found = list(names)
    return ", ".join(found[:most]) + (f" and {len(found) - most} more" if len(found) > most else "")


def check_flag(name: str, value: object) -> None:
    """`value` is True or False."""
    check_that(isinstance(value, bool), name, value, "True or False")


def check_whole(name: str, value: object, least: int = 1, most: int | None = None, why: str = "") -> int:
    """A whole number in a range.

    >>> check_whole("heads", 4), check_whole("seed", 0, 0)
    (4, 0)
    """
    if isinstance(value, Integral) and not isinstance(value, bool):
        number = int(value)
        if least <= number and (most is None or number <= most):
            return number
    wanted = f"of at least {least}" if most is None else f"from {least} to {most}"
    raise InputError(
        f"{name}: got {describe_value(value)}, expected a whole number {wanted}{f' ({why})' if why else ''}."
    )


def check_number(name: str, value: object, lowest: float = -math.inf, strictly: bool = False) -> float:
    """A finite number, not below `lowest` (or, strictly, above it)."""
    if isinstance(value, bool) or not isinstance(value, Real) or not _is_finite(value):
        raise InputError(f"{name}: got {describe_value(value)}, expected a finite number.")
    number = float(value)
    inside = number > lowest if strictly else number >= lowest
    wanted = f"above {lowest:g}" if strictly else f"of at least {lowest:g}"
    check_that(inside, name, value, f"a number {wanted}")
    return number


def _is_finite(value: Real) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all floating ones
        return False


def check_seed(seed: object) -> int:
    """A whole number that a generator takes as its seed."""
    return check_whole("seed", seed, 0, 2**63 - 1)


def check_path(name: str, value: object, what: str) -> Path:
    """The name of a file, as a path.

    >>> check_path("page", 3, "the name of a file")
    Traceback (most recent call last):
    hessianlens.errors.InputError: page: got 3, expected the name of a file.
    """
    named = isinstance(value, str | os.PathLike) and "\0" not in os.fspath(value)
    check_that(named, name, value, what)
    assert isinstance(value, str | os.PathLike)
    return Path(value)


def check_function(name: str, value: object, what: str) -> None:
    """Something that can be called."""
    check_that(callable(value), name, value, what)
