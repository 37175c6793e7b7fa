"""Which positions of a network's inner outputs the loss couples: none, or those of a sequence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Grouping:
    """Positions ``[N]`` as groups ``[group, member]``.

    Attributes:
        groups: Number of groups.
        members: Positions of a group.
        members_first: Whether the members of different groups alternate, as where the length comes before the batch.
    """

    groups: int
    members: int
    members_first: bool = False

    def arrange(self, positions: Tensor) -> Tensor:
        """``[N, ...]`` to ``[group, member, ...]``.

        >>> Grouping(2, 3, members_first=True).arrange(torch.arange(6)).tolist()
        [[0, 2, 4], [1, 3, 5]]
        """
        if self.members_first:
            return positions.unflatten(0, (self.members, self.groups)).transpose(0, 1)
        return positions.unflatten(0, (self.groups, self.members))

    def flatten(self, groups: Tensor) -> Tensor:
        """``[group, member, ...]`` to ``[N, ...]``."""
        return (groups.transpose(0, 1) if self.members_first else groups).flatten(0, 1)

    def numbers(self, device: torch.device) -> Tensor:
        """The group of every position, ``[N]``."""
        return self.flatten(torch.arange(self.groups, device=device)[:, None].expand(-1, self.members))


def groupings(outputs: tuple[int, ...], sequences: int) -> Iterator[Grouping]:
    """What the positions of a site may be grouped by, the finest first.

    Args:
        outputs: Shape of what is put out there, ``[..., f]``.
        sequences: Sequences of the batch.

    >>> [(g.groups, g.members, g.members_first) for g in groupings((2, 3, 4), 2)]
    [(6, 1, False), (2, 3, False)]
    >>> [(g.groups, g.members, g.members_first) for g in groupings((3, 2, 4), 2)]
    [(6, 1, False), (2, 3, True)]
    >>> [(g.groups, g.members, g.members_first) for g in groupings((6, 3, 4), 2)]
    [(18, 1, False), (2, 9, False)]
    """
    *leading, _ = outputs
    positions = int(torch.Size(leading).numel())
    yield Grouping(positions, 1)
    if positions % sequences or positions == sequences:
        return
    length = positions // sequences
    if len(leading) == 1 or leading[0] == sequences:  # one axis may be either; a batch usually comes first
        yield Grouping(sequences, length)
    if len(leading) == 1 or leading[-1] == sequences:
        yield Grouping(sequences, length, members_first=True)
    if len(leading) > 1 and leading[0] != sequences and leading[0] % sequences == 0:
        yield Grouping(sequences, length)  # choices or windows of a sequence, folded into the batch
