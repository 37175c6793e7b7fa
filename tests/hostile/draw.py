"""Choices from a seed: what a random module is made of."""

from __future__ import annotations

from random import Random
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """Choices from a seed; what is out of the ordinary is written down.

    Args:
        seed: The same choices on every machine.

    Attributes:
        most: How many things may be out of the ordinary: none in modules as textbooks write them, often one, or any.
        theme: What is most likely to be out of the ordinary; "anything" in a third of the modules.
        traits: What was chosen and is out of the ordinary.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.most = self.random.choice((0, 0, 1, 1, 1, 1, 2, 100))
        self.theme = self.random.choice(("side", "side", "way", "again", "anything", "anything"))
        self.traits: list[str] = []

    def number(self, low: int, high: int) -> int:
        """Between two numbers, which are among them."""
        return self.random.randint(low, high)

    def of(self, *options: T) -> T:
        """Any of several that are equally ordinary."""
        return self.random.choice(options)

    def chance(self, probability: float) -> bool:
        """Of something ordinary."""
        return self.random.random() < probability

    def rare(self, trait: str, probability: float, theme: str = "") -> bool:
        """Of something out of the ordinary."""
        if theme == self.theme:
            probability = min(0.8, 4 * probability)
        elif self.theme != "anything":
            probability *= 0.15
        happens = self.random.random() < probability and len(self.traits) < self.most
        if happens:
            self.traits.append(trait)
        return happens

    def way(self, ordinary: tuple[str, ...], odd: tuple[str, ...], probability: float, theme: str = "") -> str:
        """One of some ordinary ways, or now and then an odd one."""
        plain, strange = self.random.choice(ordinary), self.random.choice(odd)
        return strange if self.rare(strange, probability, theme) else plain
