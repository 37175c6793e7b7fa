"""What a backpropagated curvature has reached: matrices between sites, one for those that stand in for each other.

All that writes into a residual stream is read as one sum by what follows, so that the curvature between any two of them
is the same matrix until one of them is left. Such sites are a group, and there is one matrix for two groups.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor

from hessianlens.network.routes.linear_map.curvature_parts import Parts


@dataclass(eq=False)
class SiteGroup:
    """Sites that stand in for each other.

    Attributes:
        sites: The sites.
        gradient: That of the loss at each of them.
        parts: Groups that it was split into since a site was left last, itself among them.
    """

    sites: set[float]
    gradient: Tensor | None = None
    parts: list[SiteGroup] = field(default_factory=list)

    def add_gradient(self, more: Tensor) -> None:
        """Another way to the loss."""
        self.gradient = more if self.gradient is None else self.gradient + more


@dataclass(eq=False)
class _Entry:
    """A matrix; `owned` where nobody else holds its tensors, so that more can be added in place."""

    parts: Parts
    owned: bool

    def add(self, more: Parts, transposed: bool = False) -> None:
        if self.owned and self.parts.add_(more, transposed):
            return
        self.parts, self.owned = self.parts + (more.T if transposed else more), True


@dataclass(eq=False)
class LiveSites:
    """Groups of sites and the matrices between them.

    Attributes:
        groups: In the order in which they came.
    """

    groups: list[SiteGroup] = field(default_factory=list)
    _entries: dict[tuple[int, int], _Entry] = field(default_factory=dict)

    @property
    def last(self) -> float:
        """The site that comes last in the network."""
        return max(site for group in self.groups for site in group.sites)

    def take(self, site: float) -> tuple[Parts, list[tuple[SiteGroup, Parts]], Tensor]:
        """All that is known at a site, which is left: with itself, with other groups, and the gradient."""
        for one in self.groups:
            one.parts = [one]
        (group,) = (one for one in self.groups if site in one.sites)
        gradient, key = group.gradient, (id(group), id(group))
        assert gradient is not None
        own = self._entries[key].parts
        others = [(other, found) for other in self.groups if (found := self._between(group, other)) is not None]
        group.sites.discard(site)
        if group.sites:
            self._entries[key].owned = False
        else:
            self.groups.remove(group)
            self._entries = {pair: one for pair, one in self._entries.items() if id(group) not in pair}
            others = [(other, found) for other, found in others if other is not group]
        return own, others, gradient

    def _between(self, row: SiteGroup, column: SiteGroup) -> Parts | None:
        if (found := self._entries.get((id(row), id(column)))) is not None:
            return found.parts
        found = self._entries.get((id(column), id(row)))
        return None if found is None else found.parts.T

    def of(self, sites: Iterable[float]) -> list[SiteGroup]:
        """Some sites as whole groups; groups of which they are a part are split, and new sites are one of their own."""
        left, found = set(sites), []
        for group in list(self.groups):
            if common := group.sites & left:
                found.append(group if common == group.sites else self._split(group, common))
                left -= common
        if left:
            found.append(SiteGroup(left))
            self.groups.append(found[-1])
        return found

    def _split(self, group: SiteGroup, sites: set[float]) -> SiteGroup:
        """Some sites of a group as one of their own, with the same matrices."""
        group.sites -= sites
        new = SiteGroup(set(sites), group.gradient)
        group.parts.append(new)
        for (row, column), entry in list(self._entries.items()):
            if id(group) in (row, column):
                entry.owned = False
                both = tuple(id(new) if one == id(group) else one for one in (row, column))
                self._entries[both[0], both[1]] = _Entry(entry.parts, False)
                if row == column:
                    self._entries[id(new), id(group)] = _Entry(entry.parts, False)
        self.groups.append(new)
        return new

    def add(self, row: SiteGroup, column: SiteGroup, parts: Parts, owned: bool) -> None:
        """More between two groups.

        Args:
            row: Of the rows.
            column: Of the columns.
            parts: The matrix.
            owned: Whether nobody else holds it.
        """
        for key, transposed in (((id(row), id(column)), False), ((id(column), id(row)), True)):
            if key in self._entries:
                self._entries[key].add(parts, transposed)
                return
        self._entries[id(row), id(column)] = _Entry(parts, owned)

    def add_symmetric(self, row: SiteGroup, column: SiteGroup, parts: Parts) -> None:
        """More between two groups that comes from one of them being a source of what the other meets."""
        if row is not column:
            self.add(row, column, parts, False)
            return
        self.add(row, row, parts, False)
        self._entries[id(row), id(row)].add(parts, transposed=True)
