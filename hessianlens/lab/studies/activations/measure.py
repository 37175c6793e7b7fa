"""Attention activations in training: softmax and what is proposed instead, on three tasks."""

from __future__ import annotations

from hessianlens.lab.trials.measure import Arm, TrialConfig, minus, study

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
    full=TrialConfig(
        tasks=("addition", "characters", "recall"),
        layers=2,
        d_model=64,
        heads=4,
        steps=4000,
        batch=32,
        rates=7,
        seeds=8,
        checkpoints=20,
        digits=3,
        length=48,
        pairs=8,
    ),
)
