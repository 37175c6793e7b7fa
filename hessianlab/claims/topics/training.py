"""Statements about training, decided by recorded studies; the studies say what was trained and how."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hessianlab.claims.definition import claim
from hessianlab.claims.finding import Finding
from hessianlab.claims.trained import TASK_NAMES, Effect, StudyRecord, decided, number_or_missing

SCALING, ACTIVATIONS = "study_scaling", "study_activations"
OPTIMISERS, QUERY_KEY, TEMPERATURE = "study_optimisers", "study_query_key", "study_temperature"
BLOCK_RATES = "study_block_rates"

TEXT, SUMS, RECALL = "characters", "addition", "recall"
"""Tasks; a text is nearest to what the documents speak of, a language model."""

UNSCALED = "unscaled minus scaled"
_NORMS = (("no norm", "plain"), ("pre-norm", "normed"))
BEHIND, FAR_BEHIND = 0.05, 0.1
"""Shares of the loss by which a model is behind another, and far behind: ours, where a document gives no number."""


def _factor(name: str, what: str, least: float) -> Finding:
    """An effect that is a logarithm, claimed as a factor of at least so much; the text names its means as factors."""
    found = StudyRecord(SCALING)

    def effects(record: StudyRecord, task: str) -> Sequence[Effect]:
        logarithm = f"{task}: {name}, {UNSCALED}"
        return [record.effect(logarithm, f"logarithm of {what}", math.log(least))]

    means = {t: number_or_missing(math.exp(found.mean(f"{t}: {name}, {UNSCALED}"))) for t in (TEXT, SUMS)}
    return decided(found, effects, {TASK_NAMES[task]: mean for task, mean in means.items()}, (TEXT, SUMS))


@claim("C19")
def slower_without_scaling() -> Finding:
    """By the steps that the scaled model takes to the same loss."""
    return _factor("log slowdown", "the quotient of steps", 3)


@claim("C20")
def perplexity_without_scaling() -> Finding:
    """By the difference of losses, which is the logarithm of the quotient of perplexities."""
    return _factor("loss", "the quotient of perplexities", 1.1)


@claim("C21")
def peaked_without_scaling() -> Finding:
    """By the entropy of attention after training: less than half of that of the scaled model."""
    found = StudyRecord(SCALING)

    def effects(record: StudyRecord, task: str) -> Sequence[Effect]:
        what = "logarithm of the quotient of the entropies of attention after training"
        return [record.effect(f"{task}: log ratio of entropies, unscaled over scaled", what, most=math.log(0.5))]

    arms = ("unscaled", "scaled")
    numbers = {arm: found.formatted(f"{TEXT}: entropy of {arm}") for arm in arms}
    sums = {f"{arm}_sums": found.formatted(f"{SUMS}: entropy of {arm}") for arm in arms}
    return decided(found, effects, {**numbers, **sums}, (TEXT, SUMS))


@claim("C13")
def without_the_exponential() -> Finding:
    """Behind softmax, and flatter: both, for each of three."""
    found, names = StudyRecord(ACTIVATIONS), ("row_sum", "relu_normalised", "linear")

    def effects(record: StudyRecord, task: str) -> Sequence[Effect]:
        losses = [
            record.relative("loss", task, name, f"{name}: loss over softmax's, minus 1", BEHIND) for name in names
        ]
        return losses + [
            record.effect(
                f"{task}: entropy, {name} minus softmax", f"{name}: entropy of attention minus softmax's", least=0.0
            )
            for name in names
        ]

    numbers = {name: found.formatted(f"{TEXT}: relative loss, {name} over softmax", 100) for name in names}
    flat = {f"{name}_flat": found.formatted(f"{TEXT}: entropy, {name} minus softmax") for name in names}
    return decided(found, effects, {**numbers, **flat}, (TEXT, SUMS, RECALL), universal=True)


@claim("C25")
def raw_dot_products() -> Finding:
    """They do not work if a model with them is far behind softmax: at least a tenth less right."""
    found = StudyRecord(ACTIVATIONS)

    def effects(record: StudyRecord, task: str) -> Sequence[Effect]:
        what = "raw dot products: share right over softmax's, minus 1"
        return [record.relative("accuracy", task, "linear", what, most=-FAR_BEHIND)]

    tasks = (TEXT, SUMS, RECALL)
    right = {task: found.formatted(f"{task}: relative accuracy, linear over softmax", -100) for task in tasks}
    losses = {
        "loss": found.formatted(f"{TEXT}: loss of linear"),
        "softmax": found.formatted(f"{TEXT}: loss of softmax"),
    }
    return decided(found, effects, {**right, **losses}, tasks, universal=True)


@claim("C31")
def relu_attention() -> Finding:
    """5 to 15 % behind, by what is right: a quotient of losses has no meaning near zero. With either normaliser."""
    found, tasks = StudyRecord(ACTIVATIONS), (TEXT, SUMS, RECALL)
    kinds = {"relu_normalised": "ReLU over its row sum", "relu_length": "ReLU over the length"}

    def effects(record: StudyRecord, task: str) -> Sequence[Effect]:
        return [
            record.relative("accuracy", task, kind, f"{name}: share right over softmax's, minus 1", -0.15, -0.05)
            for kind, name in kinds.items()
        ]

    numbers = {
        f"{task}_{kind}": found.formatted(f"{task}: relative accuracy, {kind} over softmax", -100)
        for task in tasks
        for kind in kinds
    }
    return decided(found, effects, numbers, tasks, needed=1)


@claim("C42")
def temperatures_by_layer() -> Finding:
    """First layer against last."""
    found = StudyRecord(TEMPERATURE)

    def effects(record: StudyRecord, task: str) -> Sequence[Effect]:
        name = f"{task}: log temperature, first layer minus last"
        return [record.effect(name, "logarithm of the learned temperature, first layer minus last", least=0.0)]

    return decided(found, effects, {"apart": found.formatted(f"{TEXT}: log temperature, first layer minus last")})


def _gap(record: StudyRecord, task: str, sgd: str, adam: str, share: float, what: str) -> Effect:
    """The gap of SGD, which has to be at least a share of Adam's loss."""
    least = share * record.mean(f"{task}: loss of {adam}")
    return record.effect(f"{task}: loss, {sgd} minus {adam}", what, least=least)


def _softmax_gaps(share: float) -> Finding:
    """SGD against Adam for softmax attention, with and without a norm."""
    found = StudyRecord(OPTIMISERS)
    arms = {norm: tuple(f"softmax, {norm}, {optimiser}" for optimiser in ("SGD", "Adam")) for norm, _ in _NORMS}

    def effects(record: StudyRecord, task: str) -> Sequence[Effect]:
        what = "loss of SGD minus loss of Adam, in nats"
        return [_gap(record, task, sgd, adam, share, f"{norm}: {what}") for norm, (sgd, adam) in arms.items()]

    numbers: dict[str, str | float] = {}
    for norm, short in _NORMS:
        sgd, adam = arms[norm]
        numbers[short] = found.formatted(f"{TEXT}: loss, {sgd} minus {adam}")
        numbers[f"{short}_adam"] = found.formatted(f"{TEXT}: loss of {adam}")
    return decided(found, effects, numbers, universal=True)


@claim("A26")
def sgd_cannot_cope() -> Finding:
    """SGD is behind in both settings."""
    return _softmax_gaps(BEHIND)


@claim("A35")
def adaptive_necessary() -> Finding:
    """SGD is far behind in both settings."""
    return _softmax_gaps(FAR_BEHIND)


@claim("A27")
def sigmoid_needs_adam_less() -> Finding:
    """The gap of softmax minus the gap of sigmoid."""
    found = StudyRecord(OPTIMISERS)

    def effects(record: StudyRecord, task: str) -> Sequence[Effect]:
        return [
            record.effect(
                f"{task}: loss, gap of softmax minus gap of sigmoid, {norm}",
                f"{norm}: gap of softmax minus gap of sigmoid, in nats",
                least=0.0,
            )
            for norm, _ in _NORMS
        ]

    numbers = {
        short: found.formatted(f"{TEXT}: loss, gap of softmax minus gap of sigmoid, {norm}") for norm, short in _NORMS
    }
    return decided(found, effects, numbers)


@claim("B23")
def sgd_and_two_matrices() -> Finding:
    """SGD against Adam with two matrices and with one."""
    found, kinds = StudyRecord(QUERY_KEY), {"two matrices": "two", "one matrix": "one"}

    def effects(record: StudyRecord, task: str) -> Sequence[Effect]:
        return [
            _gap(record, task, f"{kind}, SGD", f"{kind}, Adam", BEHIND, f"{kind}: loss of SGD minus loss of Adam")
            for kind in kinds
        ]

    numbers = {short: found.formatted(f"{TEXT}: loss, {kind}, SGD minus {kind}, Adam") for kind, short in kinds.items()}
    return decided(found, effects, numbers, universal=True)


@claim("B27")
def two_matrices_are_harder() -> Finding:
    """By what SGD loses with two matrices against one."""
    found = StudyRecord(QUERY_KEY)
    name = "loss, one matrix, SGD minus two matrices, SGD"

    def effects(record: StudyRecord, task: str) -> Sequence[Effect]:
        return [record.effect(f"{task}: {name}", "SGD: loss with one matrix minus loss with two", most=0.0)]

    return decided(found, effects, {"apart": found.formatted(f"{TEXT}: {name}")}, universal=True)


@claim("P75")
def rates_by_block() -> Finding:
    """By what rates inverse to the curvature of each block gain over one rate."""
    found, name = StudyRecord(BLOCK_RATES), "loss, SGD, rates by curvature minus SGD"

    def effects(record: StudyRecord, task: str) -> Sequence[Effect]:
        return [record.effect(f"{task}: {name}", "SGD: loss with rates by curvature minus loss with one", most=0.0)]

    numbers = {"apart": found.formatted(f"{TEXT}: {name}"), "gap": found.formatted(f"{TEXT}: loss, SGD minus Adam")}
    return decided(found, effects, numbers)
