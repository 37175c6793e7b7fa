"""The laboratory's commands, one file per command; `hessianlens.cli` imports them where the laboratory is installed."""

from hessianlab.cli import claims, export, layer, report, reproduce, study

COMMANDS = (report, reproduce, export, claims, study, layer)
"""Importing a command's module registers it."""
