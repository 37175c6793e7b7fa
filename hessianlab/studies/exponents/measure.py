"""The exponents and block ratios of the paper along training: do they survive it?"""

from __future__ import annotations

from dataclasses import replace

from hessianlab.trials.measure import FULL, Arm, TrialConfig, minus, study

SOFTMAX, LINEAR, NORMED = "softmax", "linear", "softmax, pre-norm"

EXPERIMENT = study(
    name="study_exponents",
    title="Exponents and block ratios along training",
    source="The paper, Figures 3 and 7, which are taken at initialisation",
    question="Do the powers with which query and value blocks grow with the embeddings, and the ratio of the two "
    "blocks, survive training?",
    hypothesis="The powers at small embeddings are a matter of counting and survive; the ratio of the blocks, and the "
    "power at the scale that the embeddings have, change as attention becomes peaked.",
    arms=(Arm(SOFTMAX, norm=None), Arm(LINEAR, attention="linear", norm=None), Arm(NORMED)),
    comparisons=(minus(LINEAR, SOFTMAX), minus(NORMED, SOFTMAX)),
    quick=TrialConfig(tasks=("addition",), rates=3, curvatures=3, growth=True, checkpoints=6),
    full=replace(FULL, tasks=("addition", "characters"), heads=1, curvatures=5, growth=True),
)
