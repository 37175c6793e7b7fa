"""Short names of experiments for tables and lists."""

from __future__ import annotations

import re

from hessianlab.experiments.registry import registered

_NUMBERED = r"(fig|table)(\d+\w?)"


def reader_name(experiment: str) -> str:
    """What a sentence calls it: the number of a figure of the paper, else the title above it.

    >>> reader_name("fig3a"), reader_name("rank_fraction")[:12]
    ('Figure 3a', '“Rank of the')
    """
    return short_name(experiment) if re.fullmatch(_NUMBERED, experiment) else f"“{registered(experiment).title}”"


def short_name(experiment: str) -> str:
    """What a reader calls it.

    >>> short_name("fig3a"), short_name("table1"), short_name("moment_strata")
    ('Figure 3a', 'Table 1', 'Moment strata')
    """
    numbered = re.fullmatch(_NUMBERED, experiment)
    if numbered:
        return f"{'Figure' if numbered[1] == 'fig' else 'Table'} {numbered[2]}"
    return experiment.replace("_", " ").capitalize()
