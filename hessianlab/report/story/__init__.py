"""The argument of the report: chapters in their order, and an answer to each from the results of a run."""

from hessianlab.report.story.chapter import Answer, Chapter, Number, Results
from hessianlab.report.story.order import CHAPTERS, chapter_of_claim

__all__ = ["CHAPTERS", "Answer", "Chapter", "Number", "Results", "chapter_of_claim"]
