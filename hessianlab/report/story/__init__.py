"""The argument of the report: chapters in their order, and an answer to each from the results of a run."""

from hessianlens.lab.report.story.chapter import Answer, Chapter, Number, Results
from hessianlens.lab.report.story.order import CHAPTERS, chapter_of_claim

__all__ = ["CHAPTERS", "Answer", "Chapter", "Number", "Results", "chapter_of_claim"]
