"""Short names of experiments for tables and lists."""

from __future__ import annotations

import re


def short_name(experiment: str) -> str:
    """What a reader calls it.

    >>> short_name("fig3a"), short_name("table1"), short_name("moment_strata")
    ('Figure 3a', 'Table 1', 'Moment strata')
    """
    numbered = re.fullmatch(r"(fig|table)(\d+\w?)", experiment)
    if numbered:
        return f"{'Figure' if numbered[1] == 'fig' else 'Table'} {numbered[2]}"
    return experiment.replace("_", " ").capitalize()
