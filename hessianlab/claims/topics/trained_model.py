"""Statements about Transformers that have been trained, decided by the recorded atlas of a language model."""

from __future__ import annotations

import math
from dataclasses import replace

from hessianlab.claims.definition import claim
from hessianlab.claims.finding import Finding
from hessianlab.claims.trained import Effect, StudyRecord

ATLAS = "study_atlas"
GAP = "log values over queries"
TWO_ORDERS, ONE_ORDER = math.log(100), math.log(10)


def _setting(weights: str) -> str:
    return f"{weights}, 32 tokens"


def _gap(record: StudyRecord, weights: str, layer: int | None = None, least: float = TWO_ORDERS) -> Effect:
    """Logarithm of the root mean square eigenvalue of values over that of queries, over layers or in one of them."""
    where = "mean over layers" if layer is None else f"layer {layer}"
    name = f"{_setting(weights)}: {GAP}" + ("" if layer is None else f", layer {layer}")
    effect = record.effect(name, f"{weights} weights, {where}: logarithm of values over queries", least)
    return replace(effect, over="layers" if layer is None else "probe vectors")


def _layers(record: StudyRecord, weights: str) -> list[int]:
    start = f"{_setting(weights)}: {GAP}, layer "
    return sorted(int(name.removeprefix(start)) for name in record.names() if name.startswith(start))


def _in_the_encoder(record: StudyRecord) -> str:
    """The mean over layers in the sentence encoder that is recorded beside the language model."""
    for other in record.replications():
        if other.model == "minilm":
            return _factor(other.effect(f"trained, 16 tokens: {GAP}", "values over queries"))
    return "(not measured)"


def _factor(effect: Effect) -> str:
    return "(not measured)" if effect.mean is None else f"{math.exp(effect.mean):.3g}"


@claim("A39")
def gap_in_a_trained_model() -> Finding:
    """Two orders of magnitude on average over layers: said of every trained model, so that one decides against it."""
    found = StudyRecord(ATLAS)
    layers = _layers(found, "trained")
    by_layer = {layer: _gap(found, "trained", layer) for layer in layers}
    means = {layer: effect.mean for layer, effect in by_layer.items() if effect.mean is not None}
    small = [layer for layer, mean in means.items() if mean < ONE_ORDER]
    return Finding(
        checks=(_gap(found, "trained").check(),),
        support=(_gap(found, "fresh", least=ONE_ORDER).check(),),
        example="; ".join(
            f"{effect.what} {effect.shown}" for effect in (by_layer[n] for n in layers[:: len(layers) - 1 or 1])
        ),
        numbers={
            "model": found.model,
            "mean": _factor(_gap(found, "trained")),
            "first": _factor(by_layer[layers[0]]) if layers else "(not measured)",
            "last": _factor(by_layer[layers[-1]]) if layers else "(not measured)",
            "fresh": _factor(_gap(found, "fresh")),
            "small": len(small),
            "layers": len(layers),
            "encoder": _in_the_encoder(found),
        },
        undecided="" if layers else "the atlas is not recorded",
    )


@claim("A40")
def diffuse_attention_and_queries() -> Finding:
    """By the rank correlation, over the layers of a trained model, of entropy and the queries' eigenvalues."""
    found, name = StudyRecord(ATLAS), "rank correlation of entropy and queries over layers"
    what = "rank correlation over layers of entropy and the queries' eigenvalues"
    effect = replace(found.effect(f"{_setting('trained')}: {name}", what, 0.0), over="layers")
    return Finding(
        checks=(effect.check(),),
        numbers={
            "model": found.model,
            "correlation": effect.shown,
            "entropy": found.formatted(f"{_setting('trained')}: entropy of heads"),
            "first_token": found.formatted(f"{_setting('trained')}: weight of the first token"),
        },
        example=f"{what}: {effect.shown}",
        undecided=f"the interval {effect.shown} holds 0" if effect.state is None else "",
        not_seen=True,
    )
