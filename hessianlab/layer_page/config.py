"""What the page of a layer is asked to look at."""

from __future__ import annotations

from dataclasses import dataclass

from hessianlens.errors import check_choice, expect
from hessianlens.notation import ACTIVATION_NAMES

MOST_WEIGHTS = 3072
"""The check forms the dense Hessian by autograd and all its eigenvalues, so the layer has to be small."""

MOST_CHECK_ENTRIES = 5 * 10**7
"""Largest intermediate tensor of that check: weights x sequences x length squared."""

TEMPERATURES = (1e-3, 1e3)
"""Temperatures for which every figure can be measured in double precision."""


@dataclass(frozen=True)
class LayerConfig:
    """A random attention layer, random tokens and random targets.

    Attributes:
        seed: Draws the weights; seed + 1 draws tokens and targets.
        length: Tokens in a sequence, L.
        d_model: Width of a token, d, and of the output.
        d_k: Width of queries and keys.
        batch: Sequences.
        activation: A name from `hessianlens.activations.ACTIVATIONS`.
        causal: Whether a token sees only itself and the tokens before it.
        temperature: Divides the scores.

    >>> LayerConfig(length=5, d_model=4, d_k=3).weights
    40
    """

    seed: int = 0
    length: int = 17
    d_model: int = 16
    d_k: int = 8
    batch: int = 1
    activation: str = "softmax"
    causal: bool = False
    temperature: float = 1.0

    def __post_init__(self) -> None:
        """Every value can be used, and the dense check stays affordable."""
        for name, least in (("length", 2), ("d_model", 1), ("d_k", 1), ("batch", 1)):
            value = getattr(self, name)
            expect(value >= least, f"{name}: got {value}, expected a whole number of at least {least}.")
        expect(0 <= self.seed < 2**63, f"seed: got {self.seed}, expected a whole number from 0 to 2^63 - 1.")
        low, high = TEMPERATURES
        expect(
            low <= self.temperature <= high,
            f"temperature: got {self.temperature:g}, expected a number from {low:g} to {high:g}; beyond, attention is "
            "one-hot or uniform to working precision.",
        )
        check_choice("activation", self.activation, ACTIVATION_NAMES)
        self._expect_small()

    @property
    def weights(self) -> int:
        """Number of weights of the layer, the size of its Hessian."""
        return 2 * self.d_model * self.d_k + self.d_model**2

    def _expect_small(self) -> None:
        reason = "because the report checks every number against the dense Hessian by autograd; choose smaller"
        expect(
            self.weights <= MOST_WEIGHTS,
            f"d_model and d_k: got {self.d_model} and {self.d_k}, a layer of {self.weights} weights, expected at most "
            f"{MOST_WEIGHTS}, {reason} widths.",
        )
        entries = self.weights * self.batch * self.length**2
        expect(
            entries <= MOST_CHECK_ENTRIES,
            f"length and batch: got {self.length} and {self.batch}, an intermediate tensor of {entries} entries for "
            f"{self.weights} weights, expected at most {MOST_CHECK_ENTRIES}, {reason} sizes.",
        )
