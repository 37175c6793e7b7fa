"""How parameters enter a network: one `Use` for every operation that takes one, all of a run in a `ParameterUses`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from torch import Tensor

from hessianlens.errors import Refusal


class Kind(Enum):
    """How a parameter enters."""

    IN_OUT = "a W"
    OUT_IN = "a W^T"
    GAIN = "a * w"
    SHIFT = "+ w"


@dataclass(frozen=True, eq=False)
class Use:
    """One operation that takes a parameter.

    Attributes:
        parameter: Its name.
        kind: How it enters.
        site: Number of the operation, in the order in which the network runs.
        inputs: What it is multiplied with, ``[..., p]``; None for a shift.
        outputs: Shape of z, ``[..., f]``.
        places: Where its numbers lie in the parameter, ``[p, f]`` or ``[f]``, if that was rearranged before; None if it
            enters as it is, or transposed.
    """

    parameter: str
    kind: Kind
    site: int
    inputs: Tensor | None
    outputs: tuple[int, ...]
    places: Tensor | None = None

    def matrix(self, parameter: Tensor) -> Tensor:
        """The parameter as it enters: inputs by outputs, or a vector."""
        if self.places is not None:
            return parameter.reshape(-1)[self.places.to(parameter.device)]
        return parameter.T if self.kind is Kind.OUT_IN else parameter


@dataclass(eq=False)
class ParameterUses:
    """What a run has shown.

    Attributes:
        uses: Every operation that was understood, in order.
        unknown: Parameters that something else was done to, and what.
    """

    uses: list[Use] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)

    def only_use(self, parameter: str) -> Use | Refusal:
        """The only use of a parameter; a refusal where there are none or several."""
        found = [use for use in self.uses if use.parameter == parameter]
        if parameter in self.unknown:
            return Refusal(f"it enters the network through {self.unknown[parameter]}")
        if len(found) != 1:
            return Refusal("it is used in several places" if found else "it was not seen to enter through a linear map")
        return found[0]
