"""What the paper says about the exponent of each series, and what counting powers of sigma gives; kept apart.

Ranges have a meaning by name: "small" (leading powers of sigma dominate), "practical" (sigma below 1, the paper's
word), "large" (far above the crossover) and "all" (one line through everything).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from hessianlab.growth.findings.series import SeriesKey
from hessianlens.theory.growth import linear_attention_growth, linear_mlp_growth, predicted_growth

Prediction: TypeAlias = int | Literal["zero"] | None
"""An exponent, a block that is identically zero, or nothing said."""

_LETTERS = {"query": "Q", "value": "V"}


def counted(config: Mapping[str, Any], key: SeriesKey, span: str) -> Prediction:
    """The exponent that counting powers of sigma gives for this series in the range named `span`.

    Without norm, every layer's tokens go as sigma, so each layer has the exponents of a single one, with one exception:
    a lower layer's values enter the scores of later layers, and its functional value block is not zero.

    >>> softmax = {"model": "transformer", "attention": "softmax", "norm": None}
    >>> [counted(softmax, SeriesKey(0, 2, layer, "value", "functional"), "small") for layer in (0, 1)]
    [3, 'zero']
    """
    if config["model"] == "linear_mlp":
        return linear_mlp_growth(key.depth)
    if config["norm"] == "pre":
        return _counted_pre_norm(key, span)
    if config["attention"] == "linear":
        return _counted_linear(key, span)
    return _counted_attention(config["attention"], key) if span == "small" else None


def _counted_attention(activation: str, key: SeriesKey) -> Prediction:
    letter = _LETTERS[key.block]
    if key.block == "value" and key.part == "functional":
        # Tokens of a later layer change by sigma, and its output holds two changed tokens times a third: the scores'
        # share of the output is cubic in the tokens, as that of a value and a query in one layer.
        return "zero" if key.last else predicted_growth(activation, "functional", "V", "Q")
    found = predicted_growth(activation, key.part, letter, letter)
    return "zero" if found is None else found


def _counted_linear(key: SeriesKey, span: str) -> Prediction:
    """Logits are sigma^n times those at sigma = 1, n = 3^D.

    The outer product has 2 n everywhere; the functional part is the residual, targets at small sigma and logits at
    large, times sigma^n. It is zero for the last layer, in whose query and value weights the logits are linear.
    """
    twice = linear_attention_growth(key.depth)
    if key.part == "outer" or (key.part == "full" and key.last):
        return twice
    if key.last:
        return "zero"
    return {"small": twice // 2, "large": twice}.get(span)


def _counted_pre_norm(key: SeriesKey, span: str) -> Prediction:
    """Attention sees normalised tokens; sigma enters through the residual stream that the later norms divide by.

    Small sigma: the attention's output outweighs the embeddings, and nothing depends on sigma. Large sigma: logits
    move with the attention's output as 1 / sigma and bend as 1 / sigma^2, and the output itself bends in the queries,
    not in the values.
    """
    if span == "small":
        return 0
    if span == "large":
        return -1 if key.block == "query" and key.part != "outer" else -2
    return None


def published(config: Mapping[str, Any], key: SeriesKey, span: str) -> Prediction:
    """The exponent the paper draws or states for this series in the range named `span`; None where it states none.

    >>> linear = {"model": "transformer", "attention": "linear", "norm": None}
    >>> [published(linear, SeriesKey(0, 2, 0, "query", "full"), span) for span in ("small", "large")]
    [None, 18]
    """
    if config["model"] == "linear_mlp":
        return 2
    if config["norm"] is not None:
        return None
    if config["attention"] == "linear":
        return _published_linear(key, span)
    if config["attention"] != "softmax":
        return None
    return _published_softmax(key, span)


def _published_linear(key: SeriesKey, span: str) -> Prediction:
    """Figure 7: 2 3^D for the outer product; for the full block in the last layer, elsewhere at larger sigma only."""
    if key.part == "functional":
        return "zero" if key.depth == 1 else None
    if key.part == "full" and not key.last and span != "large":
        return None
    return 2 * 3**key.depth


def _published_softmax(key: SeriesKey, span: str) -> Prediction:
    """Figures 3a, 5 and 6: equation (5) for every layer below sigma = 1; above it, in stacks, for the top layer."""
    if key.block == "value" and key.part == "functional":
        return "zero" if key.last else None
    if span == "large" and not (key.depth > 1 and key.last):
        return None
    return {"query": {"outer": 6, "functional": 5, "full": 5}, "value": {"outer": 2, "full": 2}}[key.block][key.part]
