"""Processes that hold a share of the data each: sums over all of them, and decisions that all of them make alike."""

from hessianlens.distributed.all_reduce import RankGroup, ranks_of
from hessianlens.distributed.ranks import SINGLE_RANK, Ranks, Traffic

__all__ = ["SINGLE_RANK", "RankGroup", "Ranks", "Traffic", "ranks_of"]
