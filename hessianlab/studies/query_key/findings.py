"""Differences between the two ways to write the scores."""

from __future__ import annotations

from hessianlens.lab.studies.query_key.measure import EXPERIMENT
from hessianlens.lab.trials.findings.reading import study_findings

FINDINGS = study_findings(EXPERIMENT)
