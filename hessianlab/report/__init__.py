"""The report: results in, one self-contained page out. It reads results only."""

from hessianlens.lab.report.page import render

__all__ = ["render"]
