"""Attention activations in training: softmax and what is proposed instead, on three tasks."""

from __future__ import annotations

from dataclasses import replace

from hessianlab.trials.measure import FULL, Arm, TrialConfig, minus, study

SOFTMAX = "softmax"
OTHERS = ("sigmoid", "sigmoid_log_length", "relu_normalised", "linear", "row_sum")

EXPERIMENT = study(
    name="study_activations",
    title="Attention activations, in training",
    source="Articles on softmax, and on softmax and sigmoid",
    question="How well do small models learn with other attention activations than softmax, each at its own tuned "
    "learning rate?",
    hypothesis="Softmax ends with the lowest loss on every task; sigmoid with the bias minus log L comes close; "
    "weights by row sum, whose denominator can vanish, are worst or diverge.",
    arms=tuple(Arm(name, attention=name) for name in (SOFTMAX, *OTHERS)),
    comparisons=tuple(minus(name, SOFTMAX) for name in OTHERS),
    quick=TrialConfig(tasks=("addition", "characters", "recall"), checkpoints=6),
    full=replace(FULL, tasks=("addition", "characters", "recall"), steps=2000),
)
