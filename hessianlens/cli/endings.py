"""How commands end: bad input and Ctrl-C with one plain message and their exit code, never a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

FINDING, BAD_INPUT, INTERRUPTED = 1, 2, 130


@contextmanager
def clear_endings(kept: str) -> Iterator[None]:
    """Turn `InputError` into exit code 2 and Ctrl-C into 130; `kept` tells an interrupted user what they still have."""
    from hessianlens.errors import InputError

    try:
        yield
    except InputError as error:
        stop(str(error), BAD_INPUT)
    except KeyboardInterrupt:
        stop(f"interrupted; {kept}", INTERRUPTED)
    except MemoryError:
        stop("memory: there was not enough of it; ask for less at once.", BAD_INPUT)
    except RuntimeError as error:
        # Only torch raises this one, so that asking for it imports nothing that is not there already.
        if "alloc" not in str(error).lower() and "memory" not in str(error).lower():
            raise
        stop(f"memory: {' '.join(str(error).split())[:200]}; ask for less at once.", BAD_INPUT)


def stop(message: str, code: int) -> NoReturn:
    """End the command with one line on standard error."""
    typer.echo(f"hessianlens: {message}", err=True)
    raise typer.Exit(code)
