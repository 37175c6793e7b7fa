"""The command in a process that sends itself the signal read from standard input, after a few products."""

from __future__ import annotations

import os
import signal
import sys

from hessianlens.cli import app, progress_lines


class Signalled(progress_lines.LineWatch):
    def products(self, count: float) -> None:
        super().products(count)
        if self._done == 10:
            os.kill(os.getpid(), number)


if __name__ == "__main__":
    number = int(sys.stdin.read())
    # Processes in the background ignore Ctrl-C, and so would their children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    progress_lines.LineWatch = Signalled  # type: ignore[misc]
    app(["inspect", *sys.argv[1:]])
