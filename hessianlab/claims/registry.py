"""Every claim of the ledger, in the order of the documents; nothing but the texts asked for is read."""

from __future__ import annotations

from collections.abc import Sequence

from hessianlab.claims.definition import Claim
from hessianlab.claims.index import claim_topics, known_ids
from hessianlab.claims.texts import topic_claims


def all_claims() -> tuple[Claim, ...]:
    """Every claim, the paper's first, then by number.

    >>> [claim.id for claim in all_claims() if claim.document == "C"][:3]
    ['C1', 'C2', 'C3']
    """
    return find(list(claim_topics()))


def find(ids: Sequence[str]) -> tuple[Claim, ...]:
    """The claims with these ids, in this order; upper or lower case.

    >>> [claim.topic for claim in find(["c8"])]
    ['softmax division']
    """
    topics = claim_topics()
    return tuple(topic_claims(topics[id])[id] for id in known_ids(ids, topics))
