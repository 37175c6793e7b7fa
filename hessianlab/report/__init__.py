"""The report: results in, one self-contained page out. It reads results only."""

from hessianlab.report.labbook import render

__all__ = ["render"]
