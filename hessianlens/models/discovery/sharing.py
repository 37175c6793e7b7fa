"""Parameters that several modules share, and names that several parameters claim."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from torch import Tensor

from hessianlens.models.discovery.claims import ParameterClaim


def groups_of(parameters: Mapping[str, Tensor]) -> list[list[str]]:
    """The names of every tensor, the first being that of ``named_parameters``."""
    groups: dict[int, list[str]] = defaultdict(list)
    for name, tensor in parameters.items():
        groups[id(tensor)].append(name)
    return list(groups.values())


def settle(
    claims: list[ParameterClaim], names: Mapping[str, tuple[str, ...]], groups: list[list[str]]
) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """The names without those that several tensors claim, and the parameters that lost theirs.

    None of the claimants gets a contested name: which one deserves it is not ours to guess.
    """
    own = {claim.parameter: claim.name.own for claim in claims}
    tensor_of = {name: number for number, group in enumerate(groups) for name in group}
    settled = {claim.parameter: tuple(name + claim.name.suffix for name in names[claim.parameter]) for claim in claims}
    lost: list[str] = []
    while True:
        claimants: dict[str, set[int]] = defaultdict(set)
        for parameter, given in settled.items():
            for name in given or (own[parameter],):
                claimants[name].add(tensor_of[parameter])
        losers = [p for p, given in settled.items() if any(len(claimants[name]) > 1 for name in given)]
        if not losers:
            return {p: names[p] if given else () for p, given in settled.items()}, lost
        lost += losers
        settled.update(dict.fromkeys(losers, ()))
