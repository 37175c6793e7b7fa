"""What the tests of the ledger share."""

from hessianlab.claims.catalogue import find
from hessianlab.claims.finding import Finding, Verdict


def examine(id: str, first_seed: int = 0) -> Finding:
    """What the test of a claim finds, with the claim's words."""
    (claim,) = find([id])
    return claim.examine(first_seed)


def verdict(id: str) -> Verdict:
    """The verdict as it is now."""
    return examine(id).verdict
