"""What exact answers are expected to take, against what they take: a bar that ends where it was said to end."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from hessianlens.network.planner import Choice
from hessianlens.network.watch import Deadline, Watch


class Planned:
    """Tells a watch how far a number of exact answers has come.

    Answers that share their products need them once, and curvature that can be carried through simple steps needs
    none; so what was planned for an answer and was not needed is told when the answer is there.

    Args:
        watch: Is told.
        answers: What will be found.
        batches: Over how many batches a product goes; each is told of.
    """

    def __init__(self, watch: Watch, answers: Sequence[Choice], batches: int) -> None:
        self._watch, self._share, self._left = watch, 1 / batches, dict[int, float]()
        paid: set[Hashable] = set()
        for answer in answers:
            fresh = answer.cost.shared is None or answer.cost.shared not in paid
            paid.add(answer.cost.shared)
            made = answer.cost.upfront_hvps if fresh else 0
            self._left[id(answer)] = float(max(1, made + answer.cost.certificate_hvps))
        self._made = 0.0
        watch.begin(sum(self._left.values()), Deadline())

    def product(self) -> None:
        """A product with one batch was made for the answer at work."""
        self._made += self._share
        self._watch.products(self._share)

    def done(self, answer: Choice) -> None:
        """An answer is there, and with it all that was planned for it."""
        self._watch.spared(self._left.pop(id(answer)) - self._made)
        self._made = 0.0


def assigned(answers: Sequence[Choice], places: int) -> list[int]:
    """Which of several processes finds each answer: those that share their products together, the costly ones first.

    Args:
        answers: What will be found.
        places: How many processes there are.
    """
    groups: dict[Hashable, list[int]] = {}
    for number, answer in enumerate(answers):
        groups.setdefault(("alone", number) if answer.cost.shared is None else answer.cost.shared, []).append(number)
    costs = {key: max(1, answers[numbers[0]].cost.upfront_hvps) for key, numbers in groups.items()}
    loads, found = [0.0] * places, [0] * len(answers)
    for key in sorted(groups, key=lambda key: -costs[key]):
        place = loads.index(min(loads))
        loads[place] += costs[key]
        for number in groups[key]:
            found[number] = place
    return found
