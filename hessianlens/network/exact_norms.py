"""Norms of blocks that are had without probes: exactly, or for the last attention layer by a sketch of its tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hessianlens.curvature import verify
from hessianlens.errors import InputError
from hessianlens.network.chain import ChainedAttention, chained_attention
from hessianlens.network.exact_blocks import ANY_PRICE, WORTH, Answer, Attention, Price, exactly
from hessianlens.network.kept_norms import KeptNorms
from hessianlens.network.last_attention import ExactAttention, SketchedAttention
from hessianlens.network.planned import Planned, assigned
from hessianlens.network.watch import Watch
from hessianlens.problems import Block, Problem, layer_groups
from hessianlens.spectra import Estimate

_CHAINED = "it lies below the last attention layer; its probes go through the formulas of a chain of plain layers"
RTOL = 0.01
"""Half the width of the interval of a sketch, over its norm, where nothing else is asked for."""

Answers = list[tuple[Block, Answer]]


class ExactNorms:
    """Finds norms exactly, block by block, as far as that is worth it.

    Args:
        problem: From `hessianlens.problem`.
        parts: Among "full", "ggn" and "functional".
        method: "auto", "exact" or "sketch".
        rtol: Half the width of an interval, over its norm, that is narrow enough; None for exact norms.
        seed: Seed of sketches.
        watch: Is told what comes next and how many products are done.
        kept: Where norms are written as they become known, and read from before anything is done.

    Attributes:
        found: The norms, by block and part.
        why: By block, why it is exact, or why it is not.
        chain: Formulas for the attention layers below the last one, if it is left to these.
        chained: The blocks that are.
    """

    def __init__(
        self,
        problem: Problem,
        parts: Sequence[str],
        method: str,
        rtol: float | None,
        seed: int,
        watch: Watch,
        kept: KeptNorms | None,
    ) -> None:
        self.problem, self.parts, self.method, self.rtol = problem, tuple(parts), method, rtol
        self.seed, self.watch, self.kept = seed, watch, kept
        self.found: dict[tuple[str, str], Estimate] = {}
        self.why: dict[str, str] = {}
        self.chain: ChainedAttention | None = None
        self.chained: list[Block] = []
        self._source = exactly(problem)
        self._sketches: SketchedAttention | None = None

    @property
    def forced(self) -> bool:
        """Whether every norm must be exact."""
        return self.method == "exact"

    def solve(self, blocks: Sequence[Block], probes: int) -> None:
        """All blocks that are worth it.

        Args:
            blocks: What is asked for.
            probes: Products with random vectors that a block would get otherwise.
        """
        unknown = [block for block in blocks if not self._recall(block)]
        if not self.forced and self.problem.ranks.size == 1:  # the formulas of a chain know the data of one process
            self._join(unknown)
        groups = self._agreed(unknown, probes)
        refused = {block.name: self.why[block.name] for block in unknown if block.name in self.why}
        if self.forced and refused:
            reasons = "; ".join(f"{name}: {why}" for name, why in list(refused.items())[:3])
            raise InputError(f"method: got 'exact', but {reasons}; expected 'auto' or 'probes'.")
        ranks, everything = self.problem.ranks, [pair for answers in groups for pair in answers]
        places = assigned([answer for _, answer in everything], ranks.size)
        own = [pair for pair, place in zip(everything, places, strict=True) if place == ranks.rank]
        told = [answer for _, answer in own]
        planned = Planned(self.watch, told, len(self._source.problem.data)) if self.forced and told else None
        with self._source.maps.watched(None if planned is None else planned.product):
            if ranks.size > 1:
                self._solve_among(groups, own, planned)
                return
            for answers in groups:
                self._verify([block for block, _ in answers])
                for block, answer in answers:
                    self._solve(block, answer, planned)

    def _agreed(self, blocks: Sequence[Block], probes: int) -> list[Answers]:
        """By layer, the blocks that there are; where several processes look, those that all of them can have."""
        own: list[Answers] = []

        def look() -> dict[str, str]:
            own.extend(self._answers(group, probes) for group in layer_groups(blocks))
            return {block.name: self.why[block.name] for block in blocks if block.name in self.why}

        for refused in self.problem.ranks.shared("closed forms", look):
            self.why = {**refused, **self.why}
        return [[(block, answer) for block, answer in group if block.name not in self.why] for group in own]

    def _solve_among(self, groups: Sequence[Answers], own: Answers, planned: Planned | None) -> None:
        """Every process finds some blocks, those that share their products in one of them, and tells the others."""
        for answers in groups:
            self._verify([block for block, _ in answers])

        def solve() -> dict[str, tuple[dict[str, Estimate], str]]:
            for block, answer in own:
                self._solve(block, answer, planned)
            return {b.name: ({part: self.found[b.name, part] for part in self.parts}, self.why[b.name]) for b, _ in own}

        for place, told in enumerate(self.problem.ranks.shared("exact norms", solve)):
            for name, (norms, why) in told.items():
                if place != self.problem.ranks.rank:
                    self._know(name, norms, why)

    def _join(self, blocks: Sequence[Block]) -> None:
        """Whether attention layers below the last one are joined by formulas, which then take their probes."""
        attention = self._source.affordable_attention(blocks, Price())
        if isinstance(attention, ExactAttention):
            rest = [block for block in blocks if not attention.covers([block])]
            self.chain = chained_attention(attention) if rest else None
            self.chained = [block for block in rest if self.chain is not None and self.chain.covers(block)]
            self._verify(self.chained)  # their layers share a graph

    def _verify(self, blocks: Sequence[Block]) -> None:
        """Once for every layer: its second derivatives are all there."""
        if blocks:
            verify(self.problem, [block.parameter for block in blocks])

    def _answers(self, blocks: Sequence[Block], probes: int) -> Answers:
        """Those of a layer's blocks that there are; of the others the reason is kept."""
        answers: Answers = []
        for block in blocks:
            price = ANY_PRICE if self.forced else Price(WORTH * min(probes, block.numel))
            chained = block in self.chained
            found = _CHAINED if chained else self._source.answer(block, block, price, norms_only=True)
            if isinstance(found, str):
                self.why[block.name] = found
            else:
                answers.append((block, found))
        return answers

    def _solve(self, block: Block, answer: Answer, planned: Planned | None) -> None:
        wanted = not self.forced and (self.method == "sketch" or self.rtol is not None)
        if wanted and isinstance(answer, Attention):
            self._sketch(block, answer.source)
        else:
            self.watch.step(f"{block.name}, exactly")
            norms = {part: Estimate.exactly(norm) for part, norm in answer.norms(self.parts).items()}
            self._know(block.name, norms, answer.why)
        if planned is not None:
            planned.done(answer)

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
        if self.kept is not None and all(norm.exact for norm in norms.values()):
            self.kept.add(name, {part: norm.value for part, norm in norms.items()}, why)

    def _recall(self, block: Block) -> bool:
        """Whether the norms of a block are known from before."""
        known = None if self.kept is None else self.kept.norms(block.name, self.parts)
        if known is None or self.kept is None:
            return False
        self.found.update({(block.name, part): Estimate.exactly(norm) for part, norm in known.items()})
        self.why[block.name] = self.kept.why(block.name)
        return True
