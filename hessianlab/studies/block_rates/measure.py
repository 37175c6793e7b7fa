"""One learning rate per block of the Hessian, from its measured curvature: can structure replace the second moment?"""

from __future__ import annotations

from dataclasses import replace

from hessianlab.trials.measure import FULL, Arm, TrialConfig, minus, study

SGD, ADAM, MEASURED, SEARCHED = "SGD", "Adam", "SGD, rates by curvature", "SGD, rates searched"

EXPERIMENT = study(
    name="study_block_rates",
    title="One learning rate per block, from measured curvature",
    source="The paper's outlook: blocks differ in curvature, and Adam adapts to it",
    question="Can learning rates for the blocks of weights, set inversely to their measured curvature, take the place "
    "of Adam's second moment?",
    hypothesis="Rates inverse to the curvature of each block at initialisation close a part of the gap between SGD and "
    "Adam, about as much as rates found by a search with the same budget.",
    arms=(
        Arm(SGD, optimiser="sgd"),
        Arm(ADAM),
        Arm(MEASURED, optimiser="sgd", block_rates="measured"),
        Arm(SEARCHED, optimiser="sgd", block_rates="searched"),
    ),
    comparisons=(minus(SGD, ADAM), minus(MEASURED, SGD), minus(MEASURED, ADAM), minus(MEASURED, SEARCHED)),
    quick=TrialConfig(tasks=("characters",), rates=7, checkpoints=8),
    full=replace(FULL, tasks=("characters",), rates=9),
)
