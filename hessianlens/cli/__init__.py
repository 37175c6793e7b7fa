"""The command line: parse, call the library or the laboratory, print what was found; one file per command.

Everything heavy is imported inside the commands. Exit codes: 0 done, 1 a finding (a check that failed, a verdict that
changed), 2 bad input, 74 standard output cannot be written, 130 interrupted, 141 the reader of a pipe has gone.
"""

from hessianlens.cli import doctor, inspect, layer, scenes, softmax, watch
from hessianlens.cli.application import app
from hessianlens.cli.laboratory import import_laboratory

COMMANDS = (inspect, watch, layer, softmax, scenes, doctor, import_laboratory())
"""Importing a command's module registers it; the laboratory's commands are one package."""

__all__ = ["COMMANDS", "app"]
