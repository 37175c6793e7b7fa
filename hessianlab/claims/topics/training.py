"""Statements about training, decided by recorded studies; the studies say what was trained and how."""

from __future__ import annotations

import math

from hessianlab.claims.definition import claim
from hessianlab.claims.finding import Finding
from hessianlab.claims.trained import Effect, StudyRecord, decided, number_or_missing
from hessianlens.tasks import Characters

SCALING, ACTIVATIONS = "study_scaling", "study_activations"
OPTIMISERS, QUERY_KEY, TEMPERATURE = "study_optimisers", "study_query_key", "study_temperature"

TEXT = "characters"
"""The task nearest to what the documents speak of: a language model."""

UNSCALED = "unscaled minus scaled"
_NORMS = (("no norm", "plain"), ("pre-norm", "normed"))
BEHIND, FAR_BEHIND = 0.05, 0.1
"""Shares of the loss by which a model is behind another, and far behind."""


SUMS = "addition"
"""Told beside the text: there the factor matters more."""


def _factor(name: str, what: str, least: float, most: float) -> tuple[StudyRecord, Effect, list[float]]:
    """An effect that is a logarithm, claimed as a range of factors; and its means as such, on text and on addition."""
    found = StudyRecord(SCALING)
    effect = found.effect(f"{TEXT}: {name}, {UNSCALED}", f"logarithm of {what}", math.log(least), math.log(most))
    return found, effect, [math.exp(found.mean(f"{task}: {name}, {UNSCALED}")) for task in (TEXT, SUMS)]


@claim("C19")
def slower_without_scaling() -> Finding:
    """By the steps that the scaled model takes to the same loss."""
    found, slow, times = _factor("log slowdown", "the quotient of steps", 3, 5)
    text, sums = (number_or_missing(one) for one in times)
    return decided(found, [slow], {"times": text, "sums": sums, "models": found.models})


@claim("C20")
def perplexity_without_scaling() -> Finding:
    """By the difference of losses, which is the logarithm of the quotient of perplexities."""
    found, worse, times = _factor("loss", "the quotient of perplexities", 1.1, 1.2)
    text, sums = (number_or_missing(100 * (one - 1)) for one in times)
    return decided(found, [worse], {"percent": text, "sums": sums, "models": found.models})


@claim("C21")
def peaked_without_scaling() -> Finding:
    """By the entropy of attention after training: less than half of that of the scaled model."""
    found = StudyRecord(SCALING)
    peaked = found.effect(
        f"{TEXT}: log ratio of entropies, unscaled over scaled",
        "logarithm of the quotient of the entropies of attention after training",
        most=math.log(0.5),
    )
    arms = ("unscaled", "scaled")
    numbers = {arm: found.formatted(f"{TEXT}: entropy of {arm}") for arm in arms}
    sums = {f"{arm}_sums": found.formatted(f"{SUMS}: entropy of {arm}") for arm in arms}
    return decided(found, [peaked], {**numbers, **sums, "models": found.models})


@claim("C13")
def without_the_exponential() -> Finding:
    """Behind softmax, and flatter: both, for each of three."""
    found = StudyRecord(ACTIVATIONS)
    names = ("row_sum", "relu_normalised", "linear")
    effects = []
    for name in names:
        effects.append(found.relative("loss", TEXT, name, f"{name}: loss over softmax's, minus 1", BEHIND))
        effects.append(
            found.effect(
                f"{TEXT}: entropy, {name} minus softmax", f"{name}: entropy of attention minus softmax's", least=0.0
            )
        )
    numbers = {name: found.formatted(f"{TEXT}: relative loss, {name} over softmax", 100) for name in names}
    flat = {f"{name}_flat": found.formatted(f"{TEXT}: entropy, {name} minus softmax") for name in names}
    return decided(found, effects, {**numbers, **flat, "models": found.models})


@claim("C25")
def raw_dot_products() -> Finding:
    """They do not work if a model with them knows no more than the frequencies of characters."""
    found = StudyRecord(ACTIVATIONS)
    unigram = Characters.generated().unigram_entropy
    loss = found.effect(f"{TEXT}: loss of linear", "loss with raw dot products, in nats", least=unigram)
    numbers = {
        "loss": found.formatted(f"{TEXT}: loss of linear"),
        "softmax": found.formatted(f"{TEXT}: loss of softmax"),
        "unigram": f"{unigram:.3g}",
        "models": found.models,
    }
    return decided(found, [loss], numbers)


@claim("C31")
def relu_attention() -> Finding:
    """5 to 15 % behind on two of three tasks, by what is right: a quotient of losses has no meaning near zero."""
    found = StudyRecord(ACTIVATIONS)
    tasks = ("addition", TEXT, "recall")
    effects = [
        found.relative(
            "accuracy", task, "relu_normalised", f"{task}: share right over softmax's, minus 1", -0.15, -0.05
        )
        for task in tasks
    ]
    numbers = {
        task: found.formatted(f"{task}: relative accuracy, relu_normalised over softmax", -100) for task in tasks
    }
    return decided(found, effects, {**numbers, "models": found.models}, needed=2)


@claim("C42")
def temperatures_by_layer() -> Finding:
    """First layer against last."""
    found = StudyRecord(TEMPERATURE)
    name = f"{TEXT}: log temperature, first layer minus last"
    apart = found.effect(name, "logarithm of the learned temperature, first layer minus last", least=0.0)
    return decided(found, [apart], {"apart": found.formatted(name), "models": found.models})


def _gap(found: StudyRecord, sgd: str, adam: str, share: float, what: str) -> tuple[str, Effect]:
    """The gap of SGD, which has to be at least a share of Adam's loss."""
    name = f"{TEXT}: loss, {sgd} minus {adam}"
    return name, found.effect(name, what, least=share * found.mean(f"{TEXT}: loss of {adam}"))


def _softmax_gaps(share: float) -> Finding:
    """SGD against Adam for softmax attention, with and without a norm."""
    found = StudyRecord(OPTIMISERS)
    effects: list[Effect] = []
    numbers: dict[str, str | float] = {}
    for norm, short in _NORMS:
        sgd, adam = (f"softmax, {norm}, {optimiser}" for optimiser in ("SGD", "Adam"))
        name, effect = _gap(found, sgd, adam, share, f"{norm}: loss of SGD minus loss of Adam, in nats")
        effects.append(effect)
        numbers[short] = found.formatted(name)
        numbers[f"{short}_adam"] = found.formatted(f"{TEXT}: loss of {adam}")
    return decided(found, effects, {**numbers, "models": found.models})


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
    names = {short: f"{TEXT}: loss, gap of softmax minus gap of sigmoid, {norm}" for norm, short in _NORMS}
    effects = [
        found.effect(names[short], f"{norm}: gap of softmax minus gap of sigmoid, in nats", least=0.0)
        for norm, short in _NORMS
    ]
    numbers = {short: found.formatted(name) for short, name in names.items()}
    return decided(found, effects, {**numbers, "models": found.models})


@claim("B23")
def sgd_and_two_matrices() -> Finding:
    """SGD against Adam with two matrices and with one."""
    found = StudyRecord(QUERY_KEY)
    effects: list[Effect] = []
    numbers: dict[str, str | float] = {}
    for kind, short in (("two matrices", "two"), ("one matrix", "one")):
        name, effect = _gap(found, f"{kind}, SGD", f"{kind}, Adam", BEHIND, f"{kind}: loss of SGD minus loss of Adam")
        effects.append(effect)
        numbers[short] = found.formatted(name)
    return decided(found, effects, {**numbers, "models": found.models})
