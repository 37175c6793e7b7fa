"""What layer normalisation does to the growth of the blocks (Figure 3b)."""

from __future__ import annotations

from dataclasses import replace

from hessianlab.claims.definition import claim
from hessianlab.claims.finding import Check, Curves, Finding, at_least, at_most
from hessianlab.claims.networks import Network, growth, mean_norms
from hessianlab.claims.samples import fixed

SIGMAS = (0.01, 0.1, 1.0, 10.0)
"""The range of Figure 3b."""

SMALL = (0.01, 0.1)
REPEATS = 3
PLAIN = Network(d_model=16)
QUERY, VALUE = (0, "q", "full"), (0, "v", "full")


def exponents(attention: str, norm: str | None, sigmas: tuple[float, ...] = SIGMAS) -> tuple[float, float]:
    """Fitted exponents of the full query and value blocks."""
    network = replace(PLAIN, attention=attention, norm=norm)
    return growth(network, sigmas, QUERY, REPEATS), growth(network, sigmas, VALUE, REPEATS)


def difference(attention: str, norm: str | None, sigmas: tuple[float, ...] = SIGMAS) -> float:
    """How far apart the two exponents are."""
    return _apart(exponents(attention, norm, sigmas))


def smaller_with_norm() -> tuple[Check, ...]:
    """The exponents of the two blocks come closer with Pre-LN, over the whole range and for small embeddings."""
    return (
        at_least("difference of exponents without norm, sigma 0.01 to 0.1", difference("softmax", None, SMALL), 2.5),
        at_most("difference of exponents with Pre-LN, sigma 0.01 to 0.1", difference("softmax", "pre", SMALL), 0.5),
        at_most(
            "difference of exponents with Pre-LN over that without, sigma 0.01 to 10",
            difference("softmax", "pre") / difference("softmax", None),
            0.5,
        ),
    )


def _curves() -> Curves:
    drawn = {}
    for norm in (None, "pre"):
        network = replace(PLAIN, norm=norm)
        for key, name in ((QUERY, "W_Q"), (VALUE, "W_V")):
            drawn[f"{name}, {'Pre-LN' if norm else 'no norm'}"] = (
                SIGMAS,
                tuple(mean_norms(network, SIGMAS, key, REPEATS)),
            )
    return Curves.log_log("standard deviation of the embeddings", "Frobenius norm", drawn)


@claim("P51")
def pre_norm_evens_growth() -> Finding:
    """Exponents with and without the norm."""
    return Finding(checks=smaller_with_norm(), curves=_curves())


@claim("A29")
def pre_norm_evens_growth_in_article() -> Finding:
    """The same measurement as P51."""
    return Finding(checks=smaller_with_norm(), curves=_curves())


@claim("A30")
def norm_against_softmax() -> Finding:
    """A norm that only fixes the scale, and the same norm with other activations."""
    kinds = ("softmax", "sigmoid", "linear")
    bare, normed, scaled = ({kind: exponents(kind, norm, SMALL) for kind in kinds} for norm in (None, "pre", "scale"))
    post = difference("softmax", "post", SMALL)
    shown = "; ".join(f"{kind}: ({fixed(bare[kind])}) without, ({fixed(normed[kind])}) with" for kind in kinds)
    return Finding(
        checks=(
            at_least("difference without norm, softmax", _apart(bare["softmax"]), 1),
            at_most("difference with Pre-LN, softmax", _apart(normed["softmax"]), 0.5),
            at_least("difference left by a division by the root mean square, softmax", _apart(scaled["softmax"]), 1),
            at_most("difference without norm and without softmax, linear", _apart(bare["linear"]), 1),
            at_most("difference without norm and without softmax, sigmoid", _apart(bare["sigmoid"]), 1),
        ),
        support=(
            at_most("difference left by a division by the root mean square, softmax", _apart(scaled["softmax"]), 0.5),
            at_least("difference without norm, sigmoid", _apart(bare["sigmoid"]), 3.5),
            at_most("difference with Pre-LN, sigmoid", _apart(normed["sigmoid"]), 0.5),
            at_least("powers removed from the query block, linear", bare["linear"][0] - normed["linear"][0], 5),
            at_least("difference with Post-LN, softmax", post, 2.5),
        ),
        example=f"exponents of (W_Q, W_V), d = 16, sigma 0.01 to 0.1, without and with Pre-LN: {shown}; softmax with "
        f"a division by the root mean square: ({fixed(scaled['softmax'])}).",
    )


def _apart(exponents: tuple[float, float]) -> float:
    return abs(exponents[0] - exponents[1])
