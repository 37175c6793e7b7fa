"""Curvature that was backpropagated to a map, cached with that of the maps on the way."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from hessianlens.memory import available_bytes
from hessianlens.network.linear_maps.backpropagation import backpropagate_curvature
from hessianlens.network.linear_maps.readout import Readout
from hessianlens.network.linear_maps.steps import steps_behind
from hessianlens.network.linear_maps.uses import Use
from hessianlens.problems import Problem

_ROOM = 2**29
"""Bytes of curvature at other maps that are kept for later."""
_SHARE = 0.25
"""Share of the free memory that they may take."""

Curvature = tuple[Tensor, Tensor]
"""Gauss-Newton and functional part, ``[position, feature, feature]``."""


class BackpropagatedCurvature:
    """What lies behind the last attention layer of a problem.

    Args:
        problem: From `hessianlens.problem`.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._known: dict[tuple[int, int], Curvature] = {}
        self._refused: set[tuple[int, int]] = set()
        self._before: dict[tuple[int, str], int] = {}

    def curvature(
        self, number: int, use: Use, readout: Readout, agrees: Callable[[Curvature], bool]
    ) -> Curvature | None:
        """The curvature at what a map puts out; None if what lies behind it has no simple form.

        Args:
            number: Of the batch.
            use: The map, or a bias that is added behind one.
            readout: The network's last map.
            agrees: Whether a curvature is that of the network, by a product with it.
        """
        key = number, self._before.get((number, use.parameter), use.site)
        if (number, use.site) in self._refused:
            return None
        if key not in self._known:
            found = self._found(number, use, readout)
            if found is None or not agrees(found):
                self._refused.add((number, use.site))
                self._known.pop(key, None)
                return None
            return found
        return self._known[key]

    def _found(self, number: int, use: Use, readout: Readout) -> Curvature | None:
        steps = steps_behind(self.problem, self.problem.data[number], use, readout.use)
        if steps is None:
            return None
        self._before |= {(number, parameter): site for parameter, site in steps.shifted.items()}
        self._known.clear()  # before there is more
        each = 2 * readout.at.element_size() * len(readout.at) * len(readout.weight) ** 2
        room = min(_ROOM, int(_SHARE * available_bytes(self.problem.device)))
        found = backpropagate_curvature(readout, steps, others=room // each)
        self._known |= {(number, site): parts for site, parts in found.items()}
        return found[steps.site]
