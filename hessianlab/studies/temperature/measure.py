"""A learned temperature per head, and a control: it is a reparametrisation of the query weights."""

from __future__ import annotations

from dataclasses import replace

from hessianlab.trials.measure import FULL, Arm, TrialConfig, minus, study

FIXED, LEARNED, CONTROL = "fixed", "learned temperature", "learned value gain"

EXPERIMENT = study(
    name="study_temperature",
    title="A learned temperature for every head",
    source="Article on softmax, the temperature knob",
    question="Does a learned temperature for every head help, more than any other redundant factor does, and where do "
    "temperatures end?",
    hypothesis="A temperature can be taken into W_Q and adds no function, so any gain comes from how training moves: "
    "it is small, and no larger than that of a factor of the values, which is as redundant.",
    arms=(Arm(FIXED), Arm(LEARNED, redundant="temperature"), Arm(CONTROL, redundant="value gain")),
    comparisons=(minus(LEARNED, FIXED), minus(CONTROL, FIXED), minus(LEARNED, CONTROL)),
    quick=TrialConfig(tasks=("characters",), layers=2, heads=2, checkpoints=8),
    full=replace(FULL, tasks=("characters",), layers=2),
)
