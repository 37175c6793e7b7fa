"""What a model, a loss or a function of the user raises, said in one line with what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hessianlens.errors import InputError, RankError
from hessianlens.memory import lacks_memory


@contextmanager
def failures_as_input_errors(what: str, remedy: str) -> Iterator[None]:
    """Any failure inside becomes one `InputError` that quotes it; a lack of memory stays what it is.

    Args:
        what: The argument, and what could not be done with it.
        remedy: What to do.

    >>> import torch
    >>> with failures_as_input_errors("model: Linear could not be run", "check the data"):
    ...     torch.ones(2) @ torch.ones(3)
    Traceback (most recent call last):
    hessianlens.errors.InputError: model: Linear could not be run: inconsistent tensor size, ...; check the data.
    """
    try:
        yield
    except (InputError, RankError):
        raise
    except Exception as error:  # a model or a loss may raise anything
        if lacks_memory(error) or "vmap" in str(error):  # what cannot be vectorised is looped over, not refused
            raise
        raise InputError(f"{what}: {error_line(error)}; {remedy}.") from error


def error_line(error: BaseException) -> str:
    """What an error says, in one line; its kind where it says nothing, or only a name."""
    said = " ".join(str(error).split())[:300].rstrip(".;")
    return said if " " in said else f"{type(error).__name__} {said}".rstrip()
