"""How commands end: bad input and Ctrl-C with one plain message and their exit code, never a traceback."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

FINDING, BAD_INPUT, INTERRUPTED = 1, 2, 130

_PACKAGES = ("rich", "matplotlib", "jinja2", "threadpoolctl")
"""What commands need beside the parser of the command line itself; each is installed by the name of its import."""

_OF_A_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What the system says while a file is written, without its name."""


@contextmanager
def errors_as_exit_codes(kept: str) -> Iterator[None]:
    """Turn `InputError` and what the system says of a file into exit code 2, and Ctrl-C into 130.

    Args:
        kept: What an interrupted user still has, as text.
    """
    from hessianlens.errors import InputError, RankError

    try:
        yield
    except (InputError, RankError) as error:
        stop(str(error), BAD_INPUT)
    except KeyboardInterrupt:
        stop(f"interrupted; {kept}", INTERRUPTED)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _PACKAGES:
            raise
        text = f"this command needs {error.name}, which is not installed; install it with"
        stop(f"{text}: pip install {package}.", BAD_INPUT)
    except OSError as error:
        if error.filename is None and error.errno not in _OF_A_DISK:
            raise
        name = "a file" if error.filename is None else repr(os.fsdecode(error.filename))
        stop(f"{name}: {error.strerror}; name another file or folder.", BAD_INPUT)
    except (MemoryError, RuntimeError) as error:
        if "torch" not in sys.modules:  # nothing heavy has run; typer's own endings pass here too
            raise
        from hessianlens.memory import lacks_memory

        if not lacks_memory(error):
            raise
        stop(f"memory: an allocation failed ({' '.join(str(error).split())[:200]}); ask for less at once.", BAD_INPUT)


def stop(message: str, code: int) -> NoReturn:
    """End the command with one line on standard error."""
    typer.echo(f"hessianlens: {message}", err=True)
    raise typer.Exit(code)
