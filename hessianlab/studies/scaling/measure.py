"""Scores divided by the square root of the head's width, or not: training, and the entropy of attention along it."""

from __future__ import annotations

from dataclasses import replace

from hessianlab.trials.measure import FULL, Arm, TrialConfig, minus, study

SCALED, UNSCALED = "scaled", "unscaled"

EXPERIMENT = study(
    name="study_scaling",
    title="Scaled or unscaled scores, in training",
    source="Article on softmax, brain teaser 2",
    question="What does leaving out the factor 1/sqrt(d_head) do to training, and to how peaked attention becomes?",
    hypothesis="Without the factor, attention begins and stays more peaked, and training is slower and ends worse; "
    "with the learning rate tuned for each, the difference may vanish, since the weights can shrink.",
    arms=(Arm(SCALED), Arm(UNSCALED, scaled=False)),
    comparisons=(minus(UNSCALED, SCALED),),
    quick=TrialConfig(tasks=("characters", "addition"), d_model=32, checkpoints=20),
    full=replace(FULL, tasks=("characters", "addition"), heads=1, steps=1500, batch=32),
)
