"""Which part of the gap to Adam the rates of blocks close."""

from __future__ import annotations

from hessianlab.results import Result
from hessianlab.results.table import choices
from hessianlab.studies.block_rates.measure import ADAM, EXPERIMENT, MEASURED, SEARCHED, SGD
from hessianlab.trials.findings.paired import difference
from hessianlab.trials.findings.reading import study_findings
from hessianlab.trials.findings.sentences import told
from hessianlab.trials.measure import minus
from hessianlab.trials.measure.config import TASKS
from hessianlab.wording import percent


def tell(result: Result) -> list[str]:
    """The closed part, where there is a gap."""
    sentences = []
    for task in choices(result, "task"):
        gap = difference(result, task, minus(SGD, ADAM))
        closed = difference(result, task, minus(SGD, MEASURED))
        if gap.seeds < 2 or closed.seeds < 2:
            continue
        if not gap.decided or gap.mean <= 0:
            sentences.append(f"On {TASKS[task]}, Adam is not shown to be ahead of SGD, so there is no gap to close.")
        elif not closed.decided:
            sentences.append(f"On {TASKS[task]}, rates by curvature are not shown to close any of SGD's gap to Adam.")
        elif closed.mean < 0:
            sentences.append(
                f"On {TASKS[task]}, rates by curvature make SGD worse, and close nothing of its gap to Adam."
            )
        else:
            sentences.append(
                f"On {TASKS[task]}, rates by curvature close {percent(closed.mean / gap.mean)} of SGD's gap to Adam: "
                f"{told(closed)} of {told(gap)} nats."
            )
        searched = difference(result, task, minus(SEARCHED, SGD))
        if searched.seeds > 1 and searched.low == searched.high == 0:
            sentences.append(f"On {TASKS[task]}, a search with the same budget found no rates better than equal ones.")
    return sentences


FINDINGS = study_findings(EXPERIMENT, tell)
