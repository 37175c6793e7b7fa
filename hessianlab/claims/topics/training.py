"""Statements about training, decided by recorded studies; the studies say what was trained and how."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from hessianlab.claims.definition import claim, seeds
from hessianlab.claims.finding import Finding, at_most
from hessianlab.claims.samples import normal
from hessianlab.claims.trained import TASK_NAMES, Cases, Effect, StudyRecord, decided, number_or_missing
from hessianlens.attention import SelfAttention

SCALING, ACTIVATIONS = "study_scaling", "study_activations"
OPTIMISERS, QUERY_KEY, TEMPERATURE = "study_optimisers", "study_query_key", "study_temperature"
BLOCK_RATES = "study_block_rates"
SIX_SEEDS = "500 steps and six seeds for each rate"
"""The condition under which every learning rate is tried with enough seeds to compare the rates."""

TEXT, SUMS, RECALL = "characters", "addition", "recall"
"""Tasks; a text is nearest to what the documents speak of, a language model."""

UNSCALED = "unscaled minus scaled"
_NORMS = (("no norm", "plain"), ("pre-norm", "normed"))
BEHIND, FAR_BEHIND = 0.05, 0.1
"""Shares of the loss, or of what is right, by which a model is behind another, and far behind: ours, where a document
gives no number."""

NOT_NOTHING = 0.01
"""A difference of shares that is more than none: seeds that all agree have an interval of no width."""

ALTERNATIVES = {
    "row_sum": "weights by row sum",
    "relu_normalised": "ReLU / row sum",
    "relu_length": "ReLU / length",
    "linear": "raw dot products",
}
"""Attention without an exponential, by the name of the arm."""
RELU = ("relu_normalised", "relu_length")


def _factor(name: str, what: str, least: float) -> Finding:
    """An effect that is a logarithm, claimed as a factor of at least so much; the text names its means as factors."""
    found = StudyRecord(SCALING)

    def effects(record: StudyRecord, task: str) -> Cases:
        logarithm = f"{task}: {name}, {UNSCALED}"
        return {"": [record.effect(logarithm, f"logarithm of {what}", math.log(least))]}

    means = {t: number_or_missing(math.exp(found.mean(f"{t}: {name}, {UNSCALED}"))) for t in (TEXT, SUMS)}
    return decided(found, effects, {TASK_NAMES[task]: mean for task, mean in means.items()}, (TEXT, SUMS))


def _range(name: str, least: float) -> dict[str, str]:
    """Smallest and largest factor among the conditions under which it is surely at least so large."""
    found = [
        one.effect(f"{task}: {name}, {UNSCALED}", "", math.log(least))
        for one in StudyRecord(SCALING).conditions()
        for task in (TEXT, SUMS)
    ]
    means = [effect.mean for effect in found if effect.state is True and effect.mean is not None] or [math.nan]
    return {"least": number_or_missing(math.exp(min(means))), "most": number_or_missing(math.exp(max(means)))}


@claim("C19")
def slower_without_scaling() -> Finding:
    """By the steps that the scaled model takes to the same loss."""
    return _factor("log slowdown", "the quotient of steps", 3)


@claim("C20")
def perplexity_without_scaling() -> Finding:
    """By the difference of losses, which is the logarithm of the quotient of perplexities."""
    finding = _factor("loss", "the quotient of perplexities", 1.1)
    return replace(finding, numbers={**finding.numbers, **_range("loss", 1.1)})


@claim("C21")
def peaked_without_scaling() -> Finding:
    """By the entropy of attention after training: less than half of that of the scaled model."""
    found = StudyRecord(SCALING)

    def effects(record: StudyRecord, task: str) -> Cases:
        what = "logarithm of the quotient of the entropies of attention after training"
        return {"": [record.effect(f"{task}: log ratio of entropies, unscaled over scaled", what, most=math.log(0.5))]}

    arms = ("unscaled", "scaled")
    numbers = {arm: found.formatted(f"{TEXT}: entropy of {arm}") for arm in arms}
    sums = {f"{arm}_sums": found.formatted(f"{SUMS}: entropy of {arm}") for arm in arms}
    return decided(found, effects, {**numbers, **sums}, (TEXT, SUMS))


def _behind(record: StudyRecord, task: str, arm: str) -> str:
    """By how many per cent the mean share that is right is below that of softmax; a seed that fails counts once."""
    right, base = (record.mean(f"{task}: accuracy of {name}") for name in (arm, "softmax"))
    return number_or_missing(100 * (1 - right / base))


@claim("C13")
def without_the_exponential() -> Finding:
    """Behind softmax, and flatter: both, for each alternative apart."""
    found = StudyRecord(ACTIVATIONS)

    def effects(record: StudyRecord, task: str) -> Cases:
        return {
            name: [
                record.relative("loss", task, arm, "loss over softmax's, minus 1", BEHIND),
                record.effect(f"{task}: entropy, {arm} minus softmax", "entropy of attention minus softmax's", 0.0),
            ]
            for arm, name in ALTERNATIVES.items()
        }

    numbers = {arm: found.formatted(f"{TEXT}: relative loss, {arm} over softmax", 100) for arm in ALTERNATIVES}
    flat = {f"{arm}_flat": found.formatted(f"{TEXT}: entropy, {arm} minus softmax") for arm in ALTERNATIVES}
    return decided(found, effects, {**numbers, **flat}, (TEXT, SUMS, RECALL), universal=True)


@claim("C25")
def raw_dot_products() -> Finding:
    """They do not work if a model with them is far behind softmax: at least a tenth less right."""
    found = StudyRecord(ACTIVATIONS)

    def effects(record: StudyRecord, task: str) -> Cases:
        what = "share right over softmax's, minus 1"
        return {"": [record.relative("accuracy", task, "linear", what, most=-FAR_BEHIND)]}

    tasks = (TEXT, SUMS, RECALL)
    right = {task: _behind(found, task, "linear") for task in tasks}
    losses = {
        "loss": found.formatted(f"{TEXT}: loss of linear"),
        "softmax": found.formatted(f"{TEXT}: loss of softmax"),
    }
    return decided(found, effects, {**right, **losses}, tasks, universal=True)


@claim("C31")
def relu_attention() -> Finding:
    """5 to 15 % behind, by what is right: a quotient of losses has no meaning near zero. With either normaliser."""
    found, tasks = StudyRecord(ACTIVATIONS), (TEXT, SUMS, RECALL)

    def effects(record: StudyRecord, task: str) -> Cases:
        what = "share right over softmax's, minus 1"
        return {ALTERNATIVES[arm]: [record.relative("accuracy", task, arm, what, -0.15, -0.05)] for arm in RELU}

    numbers = {f"{task}_{arm}": _behind(found, task, arm) for task in tasks for arm in RELU}
    return decided(found, effects, numbers, tasks)


def _fewer_rates_work(arms: Sequence[str]) -> Finding:
    """Whether a smaller share of the learning rates works than with softmax."""
    found, tasks = StudyRecord(ACTIVATIONS), (TEXT, SUMS, RECALL)

    def effects(record: StudyRecord, task: str) -> Cases:
        what = "share of the learning rates that work, minus softmax's"
        name = f"{task}: share of rates that work, {{}} minus softmax"
        return {ALTERNATIVES[arm]: [record.effect(name.format(arm), what, most=-NOT_NOTHING)] for arm in arms}

    tried = StudyRecord(ACTIVATIONS, condition=SIX_SEEDS)
    shares = {arm: tried.mean(f"{TEXT}: share of rates that work, {arm}") for arm in ("softmax", *arms)}
    return decided(found, effects, shares, tasks)


@claim("C32")
def linear_cost_and_selection() -> Finding:
    """By what is right in the two tasks that ask for single tokens: digits of a sum, and the value of a key."""
    found, tasks = StudyRecord(ACTIVATIONS), (SUMS, RECALL)

    def effects(record: StudyRecord, task: str) -> Cases:
        what = "share right with raw dot products over softmax's, minus 1"
        return {"": [record.relative("accuracy", task, "linear", what, most=-BEHIND)]}

    return decided(found, effects, {task: _behind(found, task, "linear") for task in tasks}, tasks)


@claim("C49")
def relu_is_harder_to_train() -> Finding:
    """By the share of learning rates that work, and whether the scale of W_Q and W_K does anything."""
    changes = []
    for seed in seeds(5):
        head = SelfAttention.random(8, 4, seed=seed, dtype=torch.float64, activation="relu_normalised")
        larger = SelfAttention(10 * head.W_Q, 10 * head.W_K, head.W_V, activation="relu_normalised")
        X = normal(seed, 9, 8)
        changes.append(float((larger.attention(X) - head.attention(X)).abs().max()))
    what = "change of the weights of ReLU / row sum with tenfold W_Q and W_K"
    finding = _fewer_rates_work(RELU)
    return replace(finding, support=(*finding.support, at_most(what, changes, 1e-12)))


@claim("C50")
def unnormalised_training_is_unstable() -> Finding:
    """By the share of learning rates that work, with raw dot products."""
    return _fewer_rates_work(("linear",))


@claim("C42")
def temperatures_by_layer() -> Finding:
    """First layer against last."""
    found = StudyRecord(TEMPERATURE)

    def effects(record: StudyRecord, task: str) -> Cases:
        name = f"{task}: log temperature, first layer minus last"
        return {"": [record.effect(name, "logarithm of the learned temperature, first layer minus last", least=0.0)]}

    return decided(found, effects, {"apart": found.formatted(f"{TEXT}: log temperature, first layer minus last")})


@claim("C51")
def gain_of_temperatures() -> Finding:
    """What learned temperatures take off the loss, 1 to 3 % of which is claimed."""
    found = StudyRecord(TEMPERATURE)

    def gain(record: StudyRecord, task: str) -> Effect:
        loss = record.mean(f"{task}: loss of fixed")
        name = f"{task}: loss, learned temperature minus fixed"
        return record.effect(name, "loss with learned temperatures minus that without", -0.03 * loss, -0.01 * loss)

    own = gain(found, TEXT)
    numbers = {"gain": own.shown, "low": number_or_missing(-own.most), "high": number_or_missing(-own.least)}
    return decided(found, lambda record, task: {"": [gain(record, task)]}, numbers)


def _gap(record: StudyRecord, task: str, sgd: str, adam: str, share: float, what: str) -> Effect:
    """The gap of SGD, which has to be at least a share of Adam's loss."""
    least = share * record.mean(f"{task}: loss of {adam}")
    return record.effect(f"{task}: loss, {sgd} minus {adam}", what, least=least)


@claim("A26")
def sgd_cannot_cope() -> Finding:
    """SGD against Adam for softmax attention, without a norm and with one."""
    found = StudyRecord(OPTIMISERS)
    arms = {norm: tuple(f"softmax, {norm}, {optimiser}" for optimiser in ("SGD", "Adam")) for norm, _ in _NORMS}

    def effects(record: StudyRecord, task: str) -> Cases:
        what = "loss of SGD minus loss of Adam, in nats"
        return {norm: [_gap(record, task, sgd, adam, BEHIND, what)] for norm, (sgd, adam) in arms.items()}

    numbers: dict[str, str | float] = {}
    for norm, short in _NORMS:
        sgd, adam = arms[norm]
        numbers[short] = found.formatted(f"{TEXT}: loss, {sgd} minus {adam}")
        numbers[f"{short}_adam"] = found.formatted(f"{TEXT}: loss of {adam}")
    return decided(found, effects, numbers, universal=True)


@claim("A35")
def adaptive_necessary() -> Finding:
    """The same measurement: the statement says the same once more, and names no number."""
    return sgd_cannot_cope()


@claim("A27")
def sigmoid_needs_adam_less() -> Finding:
    """The gap of softmax minus the gap of sigmoid, without a norm and with one."""
    found = StudyRecord(OPTIMISERS)

    def effects(record: StudyRecord, task: str) -> Cases:
        what, name = (
            "gap of softmax minus gap of sigmoid, in nats",
            f"{task}: loss, gap of softmax minus gap of sigmoid",
        )
        return {norm: [record.effect(f"{name}, {norm}", what, least=0.0)] for norm, _ in _NORMS}

    numbers = {
        short: found.formatted(f"{TEXT}: loss, gap of softmax minus gap of sigmoid, {norm}") for norm, short in _NORMS
    }
    return decided(found, effects, numbers)


@claim("B23")
def sgd_and_two_matrices() -> Finding:
    """SGD against Adam with two matrices, of which the statement speaks; the text also names the gap with one."""
    found, kinds = StudyRecord(QUERY_KEY), {"two matrices": "two", "one matrix": "one"}

    def effects(record: StudyRecord, task: str) -> Cases:
        sgd, adam = "two matrices, SGD", "two matrices, Adam"
        return {"": [_gap(record, task, sgd, adam, BEHIND, "loss of SGD minus loss of Adam")]}

    numbers = {short: found.formatted(f"{TEXT}: loss, {kind}, SGD minus {kind}, Adam") for kind, short in kinds.items()}
    return decided(found, effects, numbers, universal=True)


@claim("B27")
def two_matrices_are_harder() -> Finding:
    """By what SGD loses with two matrices against one."""
    found = StudyRecord(QUERY_KEY)
    name = "loss, one matrix, SGD minus two matrices, SGD"

    def effects(record: StudyRecord, task: str) -> Cases:
        return {"": [record.effect(f"{task}: {name}", "SGD: loss with one matrix minus loss with two", most=0.0)]}

    return decided(found, effects, {"apart": found.formatted(f"{TEXT}: {name}")}, universal=True)


@claim("P75")
def rates_by_block() -> Finding:
    """By what rates inverse to the curvature of each block gain over one rate."""
    found, name = StudyRecord(BLOCK_RATES), "loss, SGD, rates by curvature minus SGD"

    def effects(record: StudyRecord, task: str) -> Cases:
        return {
            "": [record.effect(f"{task}: {name}", "SGD: loss with rates by curvature minus loss with one", most=0.0)]
        }

    numbers = {"apart": found.formatted(f"{TEXT}: {name}"), "gap": found.formatted(f"{TEXT}: loss, SGD minus Adam")}
    return decided(found, effects, numbers)


@claim("P76")
def one_adaptive_rate_per_block() -> Finding:
    """By what Adam loses with one second moment per block in place of one per weight: less than 5 % of its loss."""
    found, name = StudyRecord(BLOCK_RATES), "loss, Adam, one second moment per block minus Adam"

    def effects(record: StudyRecord, task: str) -> Cases:
        most = BEHIND * record.mean(f"{task}: loss of Adam")
        return {"": [record.effect(f"{task}: {name}", "loss with one second moment per block minus Adam's", most=most)]}

    numbers = {"apart": found.formatted(f"{TEXT}: {name}"), "adam": found.formatted(f"{TEXT}: loss of Adam")}
    return decided(found, effects, numbers)
