"""The program imports nothing from the folder it is started in: a file there may have the name of a library's module.

`python -m hessianlens` puts that folder in front of every other, and so does an empty part of PYTHONPATH. Used as a
library, hessianlens leaves the path as its user has made it.
"""

from __future__ import annotations

import os
import sys


def is_program() -> bool:
    """Whether Python is just about to run this package: ``python -m hessianlens``."""
    original = getattr(sys, "orig_argv", [])
    return sys.argv[:1] == ["-m"] and len(original) > len(sys.argv) and original[-len(sys.argv)].endswith("hessianlens")


def forget_current_folder() -> None:
    """Take the current folder off the path of modules, unless Python itself or its packages live there."""
    import site  # Python has imported it at its start

    try:
        here = os.path.realpath(os.getcwd())
    except OSError:  # it has been deleted
        here = ""
    of_python = [os.path.dirname(os.__file__), *site.getsitepackages(), site.getusersitepackages()]
    if here not in map(os.path.realpath, of_python):
        sys.path[:] = [entry for entry in sys.path if entry and os.path.realpath(entry) != here]
