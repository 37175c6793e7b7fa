"""SGD with momentum against Adam for softmax, sigmoid and linear attention, with and without pre-norm."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from hessianlab.trials.measure import FULL, Arm, Comparison, TrialConfig, minus, study

ATTENTIONS = ("softmax", "sigmoid", "linear")
NORMS = {None: "no norm", "pre": "pre-norm"}


def arm_name(attention: str, norm: str | None, optimiser: str) -> str:
    """Of one arm."""
    return f"{attention}, {NORMS[norm]}, {'Adam' if optimiser == 'adam' else 'SGD'}"


def gap(attention: str, norm: str | None) -> Comparison:
    """SGD minus Adam."""
    return minus(arm_name(attention, norm, "sgd"), arm_name(attention, norm, "adam"))


def gap_of_gaps(attention: str, norm: str | None) -> Comparison:
    """The gap of softmax minus that of another activation."""
    here, there = dict(gap("softmax", norm).weights), dict(gap(attention, norm).weights)
    weights = {**here, **{arm: -weight for arm, weight in there.items()}}
    return Comparison(f"gap of softmax minus gap of {attention}, {NORMS[norm]}", tuple(weights.items()))


SETTINGS = tuple(product(ATTENTIONS, NORMS))

EXPERIMENT = study(
    name="study_optimisers",
    title="SGD with momentum against Adam, by attention and norm",
    source="Article on softmax and sigmoid, back to the exam mistake; article on one matrix or two",
    question="Does softmax attention need Adam more than sigmoid or linear attention does, and does the unlikeness of "
    "the Hessian's blocks at initialisation tell where?",
    hypothesis="Adam ends lower than SGD with softmax attention; the gap is smaller with sigmoid and with linear "
    "attention, and with pre-norm; it grows with the ratio of the largest to the smallest block curvature.",
    arms=tuple(
        Arm(arm_name(attention, norm, optimiser), attention=attention, norm=norm, optimiser=optimiser)
        for (attention, norm), optimiser in product(SETTINGS, ("sgd", "adam"))
    ),
    comparisons=(
        *(gap(attention, norm) for attention, norm in SETTINGS),
        *(gap_of_gaps(attention, norm) for attention, norm in product(ATTENTIONS[1:], NORMS)),
    ),
    quick=TrialConfig(tasks=("characters",), curvatures=1, checkpoints=6),
    full=replace(FULL, tasks=("characters",), curvatures=1),
)
