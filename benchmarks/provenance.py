"""Where the numbers come from, with what matters for times only: how threads wait, and what else was running."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from hessianlab.results import collect as circumstances


def collect() -> dict[str, Any]:
    """The circumstances of a run."""
    common = dataclasses.asdict(circumstances())
    return {
        "date": common.pop("created"),
        **common,
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY", "default"),
        "load_average": [round(x, 2) for x in os.getloadavg()] if hasattr(os, "getloadavg") else None,
    }
