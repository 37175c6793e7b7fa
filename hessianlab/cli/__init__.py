"""The laboratory's commands, one file per command; `hessianlens.cli` imports them where the laboratory is installed."""

from hessianlab.cli import claims, export, report, reproduce, study

COMMANDS = (report, reproduce, export, claims, study)
"""Importing a command's module registers it."""
