"""Every claim of the ledger: the topic modules, named one by one, and their claims in the order of the documents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import ModuleType

from hessianlens.errors import InputError
from hessianlens.lab.claims.definition import Claim
from hessianlens.lab.claims.index import known_ids, order
from hessianlens.lab.claims.topics import (
    activation_growth,
    activation_heterogeneity,
    activation_moments,
    activation_peaked,
    activation_signs,
    activation_values,
    depth_growth,
    formula_identities,
    growth_exponents,
    heads_blocks,
    heads_values,
    hessian_blocks,
    hessian_weights,
    linear_attention,
    linear_depth,
    literature_text,
    moments_attention,
    moments_formulas,
    network_growth,
    network_initialisation,
    network_mlp,
    network_powers,
    network_setup,
    norm_pre,
    query_key_choice,
    query_key_pair,
    query_key_rank,
    query_key_sign,
    query_key_single,
    query_key_spectrum,
    query_key_split,
    scores_peaked,
    scores_scaling,
    softmax_alternatives,
    softmax_division,
    softmax_left_out,
    softmax_masking,
    softmax_numbers,
    softmax_properties,
    softmax_temperature,
    softmax_text,
    temperature_blocks,
    training,
)

TOPICS: tuple[ModuleType, ...] = (
    softmax_numbers,
    softmax_properties,
    softmax_division,
    softmax_masking,
    softmax_temperature,
    softmax_alternatives,
    softmax_left_out,
    softmax_text,
    scores_scaling,
    scores_peaked,
    training,
    hessian_blocks,
    hessian_weights,
    formula_identities,
    moments_formulas,
    moments_attention,
    growth_exponents,
    linear_depth,
    linear_attention,
    query_key_single,
    query_key_pair,
    query_key_split,
    query_key_spectrum,
    query_key_sign,
    query_key_rank,
    query_key_choice,
    temperature_blocks,
    network_growth,
    network_initialisation,
    network_powers,
    network_setup,
    network_mlp,
    norm_pre,
    depth_growth,
    heads_blocks,
    heads_values,
    activation_values,
    activation_growth,
    activation_heterogeneity,
    activation_signs,
    activation_moments,
    activation_peaked,
    literature_text,
)
"""Modules that each hold a tuple ``CLAIMS``; a new topic is one more name here."""


def all_claims(topics: Iterable[ModuleType] = TOPICS) -> tuple[Claim, ...]:
    """Every claim, the paper's first, then by number.

    >>> [claim.id for claim in all_claims() if claim.document == "C"][:3]
    ['C1', 'C2', 'C3']
    """
    claims: list[Claim] = [claim for topic in topics for claim in topic.CLAIMS]
    seen: dict[str, Claim] = {}
    for claim in claims:
        if claim.id in seen:
            first = seen[claim.id].topic
            raise InputError(
                f"claim {claim.id}: given by the topics {first!r} and {claim.topic!r}; expected one of them."
            )
        seen[claim.id] = claim
    return tuple(sorted(claims, key=lambda claim: order(claim.id)))


def find(ids: Sequence[str]) -> tuple[Claim, ...]:
    """The claims with these ids, in this order; upper or lower case.

    >>> [claim.topic for claim in find(["c8"])]
    ['softmax division']
    """
    known = {claim.id: claim for claim in all_claims()}
    return tuple(known[id] for id in known_ids(ids, known))
