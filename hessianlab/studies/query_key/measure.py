"""One query-key matrix or two, from the same function at initialisation."""

from __future__ import annotations

from dataclasses import replace

from hessianlab.trials.measure import FULL, Arm, TrialConfig, minus, study

ARMS = (
    Arm("two matrices, Adam"),
    Arm("one matrix, Adam", query_key="single"),
    Arm("two matrices, SGD", optimiser="sgd"),
    Arm("one matrix, SGD", query_key="single", optimiser="sgd"),
)

EXPERIMENT = study(
    name="study_query_key",
    title="One query-key matrix or two, in training",
    source="Article on one matrix or two",
    question="Do models train differently with one query-key matrix than with two, if both begin as the same function "
    "and can express the same?",
    hypothesis="With one head as wide as the model both can express the same functions, and the difference in loss is "
    "small with Adam; with SGD the product of two matrices moves more slowly from small weights, and may end higher.",
    arms=ARMS,
    comparisons=(
        minus(ARMS[1].name, ARMS[0].name),
        minus(ARMS[3].name, ARMS[2].name),
        minus(ARMS[2].name, ARMS[0].name),
        minus(ARMS[3].name, ARMS[1].name),
    ),
    quick=TrialConfig(tasks=("characters", "recall"), checkpoints=8),
    full=replace(FULL, tasks=("characters",), heads=1),
)
