"""Norms of blocks without probes: exactly, or for the last attention layer by a sketch of its tokens."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence

from hessianlens.curvature import verify
from hessianlens.errors import InputError, Refusal
from hessianlens.network.base.price import Prices, affordable_hvps, exact_hvps, most_hvps
from hessianlens.network.base.progress import Deadline, Watch
from hessianlens.network.base.question import NO_LIMITS, Limits, Question, probe_vectors
from hessianlens.network.base.sampling import ProbeSource, registered_sources
from hessianlens.network.planner import Choice, planner_of
from hessianlens.network.routes import LastAttentionRoute
from hessianlens.network.routes.last_attention import ExactAttention, SketchedAttention
from hessianlens.network.saved_norms import SavedNorms
from hessianlens.problems import Block, Problem, layer_groups
from hessianlens.spectra import Estimate


class ExactProgress:
    """Reports to a watch how far a number of exact answers has come.

    Answers that share their products need them once, and curvature that can be carried through simple steps needs
    none; so what was planned for an answer and was not needed is reported when the answer is there.

    Args:
        watch: Progress callback.
        answers: What will be found.
        batches: Over how many batches a product goes; each is reported.
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
        self._watch.skip(self._left.pop(id(answer)) - self._made)
        self._made = 0.0


def assign_ranks(answers: Sequence[Choice], places: int) -> list[int]:
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


RTOL = 0.01
"""Half the width of the interval of a sketch, over its norm, where nothing else is asked for."""

Choices = list[tuple[Block, Choice]]


def _not_worth_it(prices: Prices) -> str:
    return f"{prices}; method='exact' asks for it"


class ExactNorms:
    """Finds norms exactly, block by block, as far as that is worth it.

    Args:
        problem: From `hessianlens.problem`.
        parts: Among "full", "ggn" and "functional".
        method: "auto", "exact" or "sketch".
        rtol: Half the width of an interval, over its norm, that is narrow enough; None for exact norms.
        seed: Seed of sketches.
        watch: Progress callback: the next step and the HVPs done.
        saved: Where norms are written as they become known, and read from before anything is done.

    Attributes:
        found: The norms, by block and part.
        why: By block, why it is exact, or why it is not.
        source: A registered source of HVPs, if it takes some of the blocks.
        covered: The blocks that it takes.
    """

    def __init__(
        self,
        problem: Problem,
        parts: Sequence[str],
        method: str,
        rtol: float | None,
        seed: int,
        watch: Watch,
        saved: SavedNorms | None,
    ) -> None:
        self.problem, self.parts, self.method, self.rtol = problem, tuple(parts), method, rtol
        self.seed, self.watch, self.saved = seed, watch, saved
        self.found: dict[tuple[str, str], Estimate] = {}
        self.why: dict[str, str] = {}
        self.source: ProbeSource | None = None
        self.covered: list[Block] = []
        self._planner = planner_of(problem)
        self._sketches: SketchedAttention | None = None
        self._prices: dict[str, Prices] = {}

    @property
    def forced(self) -> bool:
        """Whether every norm must be exact."""
        return self.method == "exact"

    def solve(self, blocks: Sequence[Block], probes: Mapping[str, int]) -> None:
        """All blocks that are worth it.

        Args:
            blocks: What is asked for.
            probes: By block, products with random vectors that it would get otherwise.
        """
        unknown = [block for block in blocks if not self._recall(block)]
        for block in unknown:
            self.why.pop(block.name, None)
        if not self.forced and self.source is None and self.problem.ranks.size == 1:  # it knows the data of one rank
            self._ask_sources(unknown)
        groups = self._agreed(unknown, probes)
        self._expect_exact([block for block in unknown if block.name in self.why])
        ranks, everything = self.problem.ranks, [pair for answers in groups for pair in answers]
        places = assign_ranks([answer for _, answer in everything], ranks.size)
        own = [pair for pair, place in zip(everything, places, strict=True) if place == ranks.rank]
        own_answers = [answer for _, answer in own]
        planned = (
            ExactProgress(self.watch, own_answers, len(self._planner.problem.data))
            if self.forced and own_answers
            else None
        )
        with self._planner.maps.watched(None if planned is None else planned.product):
            for answers in groups:
                self._verify([block for block, _ in answers])
                self._planner.announce([answer.question for _, answer in answers])
            if ranks.size > 1:
                self._solve_among(own, planned)
            else:
                for block, answer in own:
                    self._solve(block, answer, planned)
        self._expect_exact([block for block, _ in everything])

    def _expect_exact(self, blocks: Sequence[Block]) -> None:
        """Where exact norms are asked for, none is refused."""
        refused = {
            block.name: self.why[block.name] for block in blocks if (block.name, self.parts[0]) not in self.found
        }
        if self.forced and refused:
            reasons = "; ".join(f"{name}: {why}" for name, why in list(refused.items())[:3])
            raise InputError(f"method: got 'exact', but {reasons}; expected 'auto' or 'probes'.")

    def _agreed(self, blocks: Sequence[Block], probes: Mapping[str, int]) -> list[Choices]:
        """By layer, the blocks that there are; where several processes look, those that all of them can have."""
        own: list[Choices] = []

        def look() -> dict[str, str]:
            own.extend(self._answers(group, probes) for group in layer_groups(blocks))
            return {block.name: self.why[block.name] for block in blocks if block.name in self.why}

        for refused in self.problem.ranks.all_gather("closed forms", look):
            self.why = {**refused, **self.why}
        return [[(block, answer) for block, answer in group if block.name not in self.why] for group in own]

    def _solve_among(self, own: Choices, planned: ExactProgress | None) -> None:
        """Every rank computes some blocks, those that share their HVPs in one of them, and sends them to the others."""

        def solve() -> dict[str, tuple[dict[str, Estimate], str]]:
            for block, answer in own:
                self._solve(block, answer, planned)
            known = {
                b.name: {p: self.found[b.name, p] for p in self.parts if (b.name, p) in self.found} for b, _ in own
            }
            return {name: (norms, self.why[name]) for name, norms in known.items()}

        for rank, computed in enumerate(self.problem.ranks.all_gather("exact norms", solve)):
            for name, (norms, why) in computed.items():
                self.why[name] = why
                if norms and rank != self.problem.ranks.rank:
                    self._know(name, norms, why)

    def _ask_sources(self, blocks: Sequence[Block]) -> None:
        """Leave the probes of some blocks to the first registered source that agrees with plain autograd."""
        for make in registered_sources():
            source = make(self.problem, blocks, self.parts, self.seed)
            covered = [block for block in blocks if source is not None and source.covers(block)]
            self._verify(covered)  # their layers share a graph
            if source is not None and covered and self._agrees(source, covered[0]):
                self.source, self.covered = source, covered
                return

    def _agrees(self, source: ProbeSource, lowest: Block) -> bool:
        """Whether a source gives plain autograd's product, for the block that all layers stand behind."""
        vector = probe_vectors(lowest, self.problem)[..., 0]
        return self._planner.certificate.compare(lowest, lowest, source.hvp(lowest, vector)) is None

    def _verify(self, blocks: Sequence[Block]) -> None:
        """Once for every layer: its second derivatives are all there."""
        if blocks:
            verify(self.problem, [block.parameter for block in blocks])

    def _answers(self, blocks: Sequence[Block], probes: Mapping[str, int]) -> Choices:
        """Those of a layer's blocks that there are and that are worth it; of the others the reason is kept."""
        answers: Choices = []
        sampled = {block.name: min(probes[block.name], block.numel) for block in blocks}
        attention = sum(sampled[block.name] for block in blocks if ".attn." in block.name)
        priced = self.method == "auto"
        together = affordable_hvps(self._planner.problem, attention) if priced else most_hvps(attention)
        most = affordable_hvps(self._planner.problem, sum(sampled.values())) if priced else math.inf
        for block in blocks:
            own = min(most, most_hvps(sampled[block.name]))
            limits = NO_LIMITS if self.forced else Limits(own, shared_hvps=together)
            if self.source is not None and block in self.covered:
                self.why[block.name] = self.source.reason
                continue
            found = self._planner.choose(Question(block, block, limits, norms_only=True))
            if isinstance(found, Refusal):
                prices = Prices(found.hvps, sampled[block.name], at_least=True)
                self.why[block.name] = _not_worth_it(prices) if priced and found.hvps else found.reason
            else:
                answers.append((block, found))
        return self._worth(answers, sampled) if self.method == "auto" else answers

    def _worth(self, answers: Choices, sampled: Mapping[str, int]) -> Choices:
        """Those that cost no more than their probes, or little; answers that share their HVPs are judged together."""
        groups: dict[Hashable, Choices] = {}
        for block, answer in answers:
            key = block.name if answer.cost.shared is None else answer.cost.shared
            groups.setdefault(key, []).append((block, answer))
        worth: Choices = []
        for group in groups.values():
            costs = [answer.cost for _, answer in group]
            prices = Prices(exact_hvps(costs), sum(sampled[block.name] for block, _ in group), len(group))
            self._prices.update({block.name: prices for block, _ in group})
            if prices.exact <= affordable_hvps(self._planner.problem, prices.sampled):
                worth.extend(group)
            else:
                self.why.update({block.name: _not_worth_it(prices) for block, _ in group})
        return worth

    def _solve(self, block: Block, choice: Choice, planned: ExactProgress | None) -> None:
        sketched = not self.forced and (self.method == "sketch" or self.rtol is not None)
        route = choice.route
        if sketched and isinstance(route, LastAttentionRoute) and self._planner.certified(choice, self.parts):
            attention = route.closed_form([block], choice.question.limits)
            assert isinstance(attention, ExactAttention)
            self._sketch(block, attention)
        else:
            self._compute(block, choice)
        if planned is not None:
            planned.done(choice)

    def _compute(self, block: Block, choice: Choice) -> None:
        """The norms of a block exactly; the reason, where a certificate refuses them."""
        self.watch.step(f"{block.name}, exactly")
        found = self._planner.norms(choice, self.parts)
        if isinstance(found, Refusal):
            self.why[block.name] = found.reason
        else:
            norms, answered = found
            values = {part: Estimate.exactly(norms.values[part]) for part in self.parts}
            prices = f"; {self._prices[block.name]}" if block.name in self._prices else ""
            self._know(block.name, values, answered.why + prices)

    def _sketch(self, block: Block, source: ExactAttention) -> None:
        """The norms of a block of the last attention layer in the cheaper of two ways."""
        if self._sketches is None:
            self._sketches = SketchedAttention(source, self.seed, self.watch.products)
        self.watch.step(f"{block.name}, sketched")
        self._know(block.name, *self._sketches.norms(block, self.parts, self.method, self.rtol or RTOL))

    def _know(self, name: str, norms: Mapping[str, Estimate], why: str) -> None:
        """The norms of a block are found; exact ones are kept."""
        self.found.update({(name, part): norm for part, norm in norms.items()})
        self.why[name] = why
        if self.saved is not None and all(norm.exact for norm in norms.values()):
            self.saved.add(name, {part: norm.value for part, norm in norms.items()}, why)

    def _recall(self, block: Block) -> bool:
        """Whether the norms of a block are known from before."""
        known = None if self.saved is None else self.saved.norms(block.name, self.parts)
        if known is None or self.saved is None:
            return False
        self.found.update({(block.name, part): Estimate.exactly(norm) for part, norm in known.items()})
        self.why[block.name] = self.saved.why(block.name)
        return True
