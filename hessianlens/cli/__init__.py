"""The command line: parse, call the laboratory, say what was found; one file a command.

Everything heavy is imported inside the commands. Exit codes: 0 done, 1 a finding (a check that failed, a verdict that
changed), 2 bad input, 74 standard output cannot be written, 130 interrupted, 141 the reader of a pipe has gone.
"""

from hessianlens.cli import claims, export, inspect, layer, report, reproduce, softmax, study, watch
from hessianlens.cli.application import app

COMMANDS = (report, reproduce, export, claims, study, inspect, watch, layer, softmax)
"""Importing a command's module registers it."""

__all__ = ["COMMANDS", "app"]
