"""Training studies: activation, scaling, temperature, query-key matrices, and SGD against Adam."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from hessianlab.studies.training_study import (
    DOCUMENTATION,
    FULL,
    Arm,
    Condition,
    Contrast,
    TrialConfig,
    minus,
    study,
    under,
)

TEXT = ("characters",)
CONSTANT = under("a constant rate without warm-up", warm_up=0.0, decay=False)
NO_NORM = under("no norm", norm=None)
NATURAL = under("natural text", TEXT, text=DOCUMENTATION)
WIDE = under("width 128 for 500 steps", TEXT, d_model=128, steps=500)
SMALL_EMBEDDINGS = under("embeddings a tenth as large", embedding_scale=0.1)
NO_NORM_SMALL_EMBEDDINGS = under("no norm and embeddings a tenth as large", norm=None, embedding_scale=0.1)
NO_MOMENTUM = under("no momentum", momentum=0.0, sgd_low=-1.0, sgd_high=1.5)
WIDER = under("width 128 for 300 steps with six seeds", TEXT, d_model=128, steps=300, seeds=6)
"""Conditions that several studies try; others are those of one study."""


def _steps(*numbers: int) -> tuple[Condition, ...]:
    return tuple(under(f"{number} steps", steps=number) for number in numbers)


SOFTMAX = "softmax"
RELU_LENGTH = "relu_length"
OTHERS = ("sigmoid", "sigmoid_log_length", "relu_normalised", RELU_LENGTH, "linear", "row_sum")
SIX_SEEDS = under("500 steps and six seeds for each rate", steps=500, tuning_seeds=6)
WIDER_LONGER = under("width 128 for 500 steps with six seeds", TEXT, d_model=128, steps=500, seeds=6)
DOUBTED = (SOFTMAX, "relu_normalised", RELU_LENGTH, "linear", "row_sum")
"""Softmax, and the alternatives of which an article says that they do not work, or work worse."""

ACTIVATIONS = study(
    name="study_activations",
    title="Attention activations, in training",
    source="Articles on softmax, and on softmax and sigmoid",
    question="How well do small models learn with other attention activations than softmax, each at its own tuned "
    "learning rate?",
    hypothesis="Softmax ends with the lowest loss on every task; sigmoid with the bias minus log L comes close; "
    "weights by row sum, whose denominator can vanish, are worst or diverge.",
    arms=tuple(
        Arm(name, attention="relu", temperature="length") if name == RELU_LENGTH else Arm(name, attention=name)
        for name in (SOFTMAX, *OTHERS)
    ),
    comparisons=tuple(minus(name, SOFTMAX) for name in OTHERS),
    quick=TrialConfig(tasks=("addition", "characters", "recall"), checkpoints=6),
    full=replace(
        FULL, tasks=("addition", "characters", "recall"), conditions=(SIX_SEEDS.name, NATURAL.name, WIDER_LONGER.name)
    ),
    conditions=tuple(
        replace(condition, arms=DOUBTED)
        for condition in (
            SIX_SEEDS,
            NATURAL,
            WIDER_LONGER,
            under("2000 steps", ("addition",), steps=2000),
            replace(NO_NORM, tasks=("characters", "addition")),
        )
    ),
)


SCALED, UNSCALED = "scaled", "unscaled"

SCALING = study(
    name="study_scaling",
    title="Scaled or unscaled scores, in training",
    source="Article on softmax, brain teaser 2",
    question="What does leaving out the factor 1/sqrt(d_head) do to training, and to how peaked attention becomes?",
    hypothesis="Without the factor, attention begins and stays more peaked, and training is slower and ends worse; "
    "with the learning rate tuned for each, the difference may vanish, since the weights can shrink.",
    arms=(Arm(SCALED), Arm(UNSCALED, scaled=False)),
    comparisons=(minus(UNSCALED, SCALED),),
    quick=TrialConfig(tasks=("characters", "addition"), d_model=32, checkpoints=20),
    full=replace(FULL, tasks=("characters", "addition"), heads=1, steps=1500, batch=32, conditions=("all",)),
    conditions=(
        *_steps(300, 700, 3000),
        CONSTANT,
        NO_NORM,
        under("W_Q and W_K twice as large", query_key_scale=2.0),
        under("W_Q and W_K half as large", query_key_scale=0.5),
        under("rates of W_Q and W_K tuned apart", query_key_rates=3),
        NATURAL,
        WIDE,
    ),
)


FIXED, LEARNED, CONTROL = "fixed", "learned temperature", "learned value gain"

TEMPERATURE = study(
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
    full=replace(FULL, tasks=("characters",), layers=2, conditions=("300 steps",)),
    conditions=(*_steps(300), CONSTANT, NATURAL),
)


ARMS = (
    Arm("two matrices, Adam"),
    Arm("one matrix, Adam", query_key="single"),
    Arm("two matrices, SGD", optimiser="sgd"),
    Arm("one matrix, SGD", query_key="single", optimiser="sgd"),
)

QUERY_KEY = study(
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
    full=replace(FULL, tasks=("characters",), heads=1, conditions=("all",)),
    conditions=(
        *_steps(300, 3000),
        CONSTANT,
        NO_NORM,
        NO_NORM_SMALL_EMBEDDINGS,
        NO_MOMENTUM,
        NATURAL,
        WIDER,
    ),
)


ATTENTIONS = ("softmax", "sigmoid", "linear")
NORMS = {None: "no norm", "pre": "pre-norm"}


def arm_name(attention: str, norm: str | None, optimiser: str) -> str:
    """Of one arm."""
    return f"{attention}, {NORMS[norm]}, {'Adam' if optimiser == 'adam' else 'SGD'}"


def gap(attention: str, norm: str | None) -> Contrast:
    """SGD minus Adam."""
    return minus(arm_name(attention, norm, "sgd"), arm_name(attention, norm, "adam"))


def gap_of_gaps(attention: str, norm: str | None) -> Contrast:
    """The gap of softmax minus that of another activation."""
    here, there = dict(gap("softmax", norm).weights), dict(gap(attention, norm).weights)
    weights = {**here, **{arm: -weight for arm, weight in there.items()}}
    return Contrast(f"gap of softmax minus gap of {attention}, {NORMS[norm]}", tuple(weights.items()))


SETTINGS = tuple(product(ATTENTIONS, NORMS))

NOT_LINEAR, OF_SOFTMAX = (
    tuple(arm_name(kind, norm, optimiser) for kind, norm, optimiser in product(kinds, NORMS, ("sgd", "adam")))
    for kinds in (("softmax", "sigmoid"), ("softmax",))
)
"""Arms that the conditions try: those of softmax and sigmoid, and where trainings are long or wide those of softmax."""

OPTIMISERS = study(
    name="study_optimisers",
    title="SGD with momentum against Adam, by attention and norm",
    source="Article on softmax and sigmoid, back to the exam mistake; article on one matrix or two",
    question="Does softmax attention need Adam more than sigmoid or linear attention does, and does the heterogeneity "
    "of the Hessian's blocks at initialisation tell where?",
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
    full=replace(
        FULL,
        tasks=("characters",),
        curvatures=1,
        conditions=("300 steps", SMALL_EMBEDDINGS.name, NO_MOMENTUM.name, WIDER.name),
    ),
    conditions=tuple(
        replace(condition, arms=arms, changes=(*condition.changes, ("curvatures", 0)))
        for condition, arms in (
            *((condition, NOT_LINEAR) for condition in (*_steps(300), SMALL_EMBEDDINGS, CONSTANT, NATURAL)),
            *((condition, OF_SOFTMAX) for condition in (NO_MOMENTUM, *_steps(3000))),
            (WIDER, NOT_LINEAR),
        )
    ),
)


SGD, ADAM, MEASURED, SEARCHED = "SGD", "Adam", "SGD, rates by curvature", "SGD, rates searched"
ADAM_BLOCKS = "Adam, one second moment per block"
WIDER_FIVE_RATES = replace(
    WIDER, name="width 128 for 300 steps with six seeds and five rates", changes=(*WIDER.changes, ("rates", 5))
)

BLOCK_RATES = study(
    name="study_block_rates",
    title="One learning rate per block, from measured curvature",
    source="The paper's outlook: blocks differ in curvature, and Adam adapts to it",
    question="Can learning rates for the blocks of weights, set inversely to their measured curvature, take the place "
    "of Adam's second moment?",
    hypothesis="Rates inverse to the curvature of each block at initialisation close a part of the gap between SGD and "
    "Adam, about as much as rates found by a search with the same budget; Adam with one second moment per block, in "
    "place of one per weight, ends where Adam does.",
    arms=(
        Arm(SGD, optimiser="sgd"),
        Arm(ADAM),
        Arm(MEASURED, optimiser="sgd", block_rates="measured"),
        Arm(SEARCHED, optimiser="sgd", block_rates="searched"),
        Arm(ADAM_BLOCKS, optimiser="adam_blocks"),
    ),
    comparisons=(
        minus(SGD, ADAM),
        minus(MEASURED, SGD),
        minus(MEASURED, ADAM),
        minus(MEASURED, SEARCHED),
        minus(ADAM_BLOCKS, ADAM),
    ),
    quick=TrialConfig(tasks=("characters",), rates=7, checkpoints=8),
    full=replace(
        FULL,
        tasks=("characters",),
        rates=9,
        conditions=("300 steps", NO_NORM.name, NO_NORM_SMALL_EMBEDDINGS.name, WIDER_FIVE_RATES.name),
    ),
    conditions=tuple(
        replace(condition, arms=(SGD, ADAM, MEASURED, ADAM_BLOCKS))
        for condition in (
            *_steps(300),
            NO_NORM,
            NO_NORM_SMALL_EMBEDDINGS,
            NO_MOMENTUM,
            NATURAL,
            WIDER_FIVE_RATES,
        )
    ),
)


WITH_SOFTMAX, LINEAR, NORMED = "softmax", "linear", "softmax, pre-norm"

EXPONENTS = study(
    name="study_exponents",
    title="Exponents and block ratios along training",
    source="The paper, Figures 3 and 7, which are taken at initialisation",
    question="Do the powers with which query and value blocks grow with the embeddings, and the ratio of the two "
    "blocks, survive training?",
    hypothesis="The powers at small embeddings are a matter of counting and survive; the ratio of the blocks, and the "
    "power at the scale that the embeddings have, change as attention becomes peaked.",
    arms=(Arm(WITH_SOFTMAX, norm=None), Arm(LINEAR, attention="linear", norm=None), Arm(NORMED)),
    comparisons=(minus(LINEAR, WITH_SOFTMAX), minus(NORMED, WITH_SOFTMAX)),
    quick=TrialConfig(tasks=("addition",), rates=3, curvatures=3, growth=True, checkpoints=6),
    full=replace(FULL, tasks=("addition", "characters"), heads=1, curvatures=5, growth=True),
)
