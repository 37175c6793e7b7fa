"""What the program makes of the streams, warnings, settings and interrupts that it gets; the library leaves them alone.

Standard output replaces what its encoding cannot hold. Where it cannot be written at all the program ends: quietly with
exit code 141 if the reader of a pipe has gone (128 + SIGPIPE), else with one line and 74 (EX_IOERR). What standard
error cannot take is dropped. A stream that is closed from the start is the null device.
"""

from __future__ import annotations

import importlib.util
import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import IO, BinaryIO, NoReturn, cast

BROKEN_PIPE, UNWRITABLE = 141, 74


class UnwritableOutput(Exception):
    """Standard output could not be written; not an `OSError`, which libraries take for one of theirs."""


class _Stream(io.TextIOWrapper):
    """A standard stream that replaces what it cannot encode, over the buffer of the one that Python has opened."""

    def __init__(self, given: io.TextIOWrapper, required: bool) -> None:
        super().__init__(
            cast(BinaryIO, given.buffer),
            encoding=given.encoding,
            errors="replace" if required else "backslashreplace",
            line_buffering=given.line_buffering,
            write_through=given.write_through,
        )
        self._given, self._required = given, required  # with the last reference to it the buffer would be closed
        self.failure: OSError | None = None

    def write(self, text: str) -> int:
        """Write; what standard error cannot take is dropped."""
        try:
            return super().write(text)
        except OSError as error:
            self._failed(error)
        return len(text)

    def flush(self) -> None:
        """Flush, as `write`."""
        try:
            super().flush()
        except OSError as error:
            self._failed(error)

    def _failed(self, error: OSError) -> None:
        """What is still held, and all that follows, goes nowhere."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        self.failure = error
        if self._required:
            raise UnwritableOutput


@contextmanager
def program_streams() -> Iterator[None]:
    """A scope with streams that can be written to whatever the terminal, its encoding and the disk; see above."""
    _open_closed_streams()
    output = sys.stdout = _guarded(sys.stdout, required=True)
    sys.stderr = _guarded(sys.stderr, required=False)
    try:
        yield
    except UnwritableOutput:
        pass
    finally:  # also where a library has taken the failure for its own
        with suppress(UnwritableOutput):
            output.flush()
        if isinstance(output, _Stream) and output.failure is not None:
            _end(output.failure)


def _open_closed_streams() -> None:
    """Streams that the shell has closed (``>&-``); a file opened later must not get their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  it stays open


def _guarded(given: IO[str], required: bool) -> IO[str]:
    return _Stream(given, required) if isinstance(given, io.TextIOWrapper) else given


def _end(failure: OSError) -> NoReturn:
    if isinstance(failure, BrokenPipeError):
        sys.exit(BROKEN_PIPE)
    sentence = f"standard output cannot be written ({failure.strerror or failure}); write to another disk or file"
    print(f"hessianlens: {sentence}.", file=sys.stderr)
    sys.exit(UNWRITABLE)


def show_warnings() -> None:
    """Show warnings that ``python -W error`` makes errors of: those of libraries are no failures of the program.

    So do the processes that the program starts.
    """
    options = [_shown(option) for option in sys.warnoptions]
    if options != sys.warnoptions:
        sys.warnoptions[:] = options
        os.environ["PYTHONWARNINGS"] = ",".join(options)
        warnings.simplefilter("default")


def _shown(option: str) -> str:
    """An option of ``-W`` with "default" in place of "error", which may be abbreviated.

    >>> _shown("error"), _shown("err::DeprecationWarning"), _shown("ignore::UserWarning")
    ('default', 'default::DeprecationWarning', 'ignore::UserWarning')
    """
    action, colon, rest = option.partition(":")
    return f"default{colon}{rest}" if action and "error".startswith(action) else option


def draw_into_files() -> None:
    """Let matplotlib draw without a window, whatever ``MPLBACKEND`` says: the program writes pictures to files."""
    os.environ["MPLBACKEND"] = "agg"


def import_torch_uninterrupted() -> None:
    """Let Ctrl-C wait until torch is imported: an exception inside its C++ initialisers aborts the process."""
    if "torch" not in sys.modules:
        sys.meta_path.insert(0, _TorchFinder())


class _TorchFinder(MetaPathFinder):
    """Finds torch as the other finders do, once, and defers interrupts while its module is executed."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """The module's specification; None for all other modules."""
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                with deferred_interrupt():
                    execute(module)

            setattr(spec.loader, "exec_module", exec_module)  # noqa: B010  a method, replaced on this one object
        return spec


@contextmanager
def deferred_interrupt() -> Iterator[None]:
    """A scope at whose end, and not before, a Ctrl-C is handled; threads other than the main one have none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived = list[int]()
    handler = signal.signal(signal.SIGINT, lambda number, _: arrived.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if arrived:
            signal.raise_signal(signal.SIGINT)
