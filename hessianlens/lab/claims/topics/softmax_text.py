"""What the article on softmax says about its own text and about other people's work."""

from __future__ import annotations

from hessianlens.lab.claims.check import equal
from hessianlens.lab.claims.definition import claim, unmeasured
from hessianlens.lab.claims.finding import Finding, Verdict

LISTED = (
    "raw scores",
    "scores to probabilities",
    "what softmax is",
    "causal masking",
    "teaser 1: simple normalisation",
    "teaser 2: no scaling",
    "teaser 3: no softmax",
    "teaser 4: masking without softmax",
    "teaser 5: no shift",
    "temperature",
    "practical implications",
    "putting it together",
)
"""Sections by the table of contents, in short."""

WRITTEN = (
    "raw scores",
    "scores to probabilities",
    "what softmax is",
    "causal masking",
    "teaser 1: simple normalisation",
    "teaser 2: no scaling",
    "teaser 3: no softmax",
    "teaser 4: masking without softmax",
    "temperature",
    "putting it together",
)
"""Sections that the text has, in short; a closing question to the reader aside."""


@claim(
    "C46",
    source="Table of contents",
    statement="The article has the sections that its table of contents lists, five brain teasers among them.",
    method="the listed sections against the headings of the text, by hand; the fifth teaser's question is answered "
    "under C4",
)
def table_of_contents() -> Finding:
    """Two listed sections are not there."""
    missing = [title for title in LISTED if title not in WRITTEN]
    return Finding(
        checks=(equal("listed sections that the text has", len(LISTED) - len(missing), len(LISTED)),),
        support=(equal("listed sections that are missing", missing, ["teaser 5: no shift", "practical implications"]),),
        correction="Two listed sections are missing: the fifth brain teaser, on leaving out the shift by the maximum, "
        "and the practical implications. So the promise to show what breaks without each of the three steps is not "
        "kept for the shift. C4 measures it: without the shift the exponential overflows.",
        example=f"{len(LISTED)} sections listed, {len(WRITTEN)} written.",
    )


efficient_variants = unmeasured(
    "C32",
    "Brain teaser 3, case study",
    "Attention variants of linear cost consistently lag behind softmax on long-range dependencies, precise "
    "selection and few-shot learning.",
    Verdict.NOT_CHECKABLE,
    "A statement about many published large models and tasks, without names of benchmarks or numbers to compare with.",
    topic="softmax text",
)

papers = unmeasured(
    "C47",
    "Closing remarks",
    "Papers that replace softmax usually have not tested the tasks where its properties matter.",
    Verdict.NOT_CHECKABLE,
    "A statement about the literature; it names neither papers nor tasks.",
    topic="softmax text",
)

CLAIMS = (efficient_variants, table_of_contents, papers)
