"""Differences between the two ways to write the scores."""

from __future__ import annotations

from hessianlab.studies.query_key.measure import EXPERIMENT
from hessianlab.trials.findings.reading import study_findings

FINDINGS = study_findings(EXPERIMENT)
