"""Processes that hold a share of the data each: sums over all of them, and decisions that all of them make alike."""

from hessianlens.ranks.alone import ALONE, Ranks
from hessianlens.ranks.group import RankGroup, ranks_of
from hessianlens.ranks.traffic import Traffic

__all__ = ["ALONE", "RankGroup", "Ranks", "Traffic", "ranks_of"]
