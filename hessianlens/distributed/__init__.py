"""Processes that hold a share of the data each: sums over all of them, and decisions that all of them make alike."""

from hessianlens.distributed.alone import ALONE, Ranks
from hessianlens.distributed.group import RankGroup, ranks_of
from hessianlens.distributed.traffic import Traffic

__all__ = ["ALONE", "RankGroup", "Ranks", "Traffic", "ranks_of"]
