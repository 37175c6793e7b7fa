"""The report: results in, one self-contained page out. It reads results only."""

from hessianlab.report.page import render

__all__ = ["render"]
