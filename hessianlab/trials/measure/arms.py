"""An arm of a study: one way to build and to train the model, everything else being equal."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from hessianlab.results import Scalar
from hessianlens.errors import check_choice
from hessianlens.models.arguments import QUERY_KEY, check_norm
from hessianlens.notation import ACTIVATION_NAMES

OPTIMISER_NAMES = ("sgd", "adam")
"""What `hessianlab.training.OPTIMISERS` has; without torch."""

REDUNDANT = ("none", "temperature", "value gain")
"""A parameter more a head that adds no function: a temperature of the scores, or a factor of the values."""

BLOCK_RATES = ("one", "measured", "searched")
"""One learning rate for all blocks, one a block from measured curvature, or one a block found by search."""


@dataclass(frozen=True)
class Arm:
    """One way to build and train.

    Attributes:
        name: For readers, unique within a study.
        attention: Attention activation.
        norm: None, "pre" or "post".
        optimiser: "sgd" (momentum 0.9) or "adam".
        query_key: "dual", or "single" for one matrix that begins as the product of the two.
        scaled: Whether scores are divided by the square root of the head's width.
        redundant: A parameter more a head, see `REDUNDANT`.
        block_rates: See `BLOCK_RATES`.
    """

    name: str
    attention: str = "softmax"
    norm: str | None = "pre"
    optimiser: str = "adam"
    query_key: str = "dual"
    scaled: bool = True
    redundant: str = "none"
    block_rates: str = "one"

    def __post_init__(self) -> None:
        """Names that are known."""
        check_choice("attention", self.attention, ACTIVATION_NAMES)
        check_norm(self.norm)
        check_choice("optimiser", self.optimiser, OPTIMISER_NAMES)
        check_choice("query_key", self.query_key, QUERY_KEY)
        check_choice("redundant", self.redundant, REDUNDANT)
        check_choice("block_rates", self.block_rates, BLOCK_RATES)

    def parameters(self) -> dict[str, Scalar]:
        """As part of a cell's parameters; the name is "arm" there."""
        fields = asdict(self)
        return {"arm": fields.pop("name"), **fields}
