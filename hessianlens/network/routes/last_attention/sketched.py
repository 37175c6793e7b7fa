"""Norms of blocks of the last attention layer by a sketch, where that is cheaper than a sum over pairs of tokens.

The layer inside a network is a layer with the gradient and the curvature of what lies behind it, so that its blocks are
unfolded as those of a layer by itself; a block of several heads is all pairs of its heads side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hessianlens.errors import Refusal
from hessianlens.layer.hessian import AttentionHessian
from hessianlens.layer.sketch import SeveralBlocks, Unfolding
from hessianlens.network.routes.last_attention.exact import ExactAttention
from hessianlens.network.routes.last_attention.site import CLOSED_FORM
from hessianlens.problems import Block
from hessianlens.sketching import MatrixSampler, NormMethods, Sampler, estimate_norm
from hessianlens.spectra import Estimate

Found = dict[str, Estimate]
OnProbes = Callable[[int], None]


class SketchedAttention:
    """Sketches of the blocks of a layer.

    Args:
        source: The closed form of the layer.
        seed: Seed of the probes.
        on_probes: Called with the number of probes made.
    """

    def __init__(self, source: ExactAttention, seed: int, on_probes: OnProbes) -> None:
        self._source, self._seed, self._on_probes = source, seed, on_probes

    def norms(self, block: Block, parts: Sequence[str], method: str, rtol: float) -> tuple[Found, str]:
        """Norms of parts of a diagonal block, and why they were found in this way.

        Args:
            block: Of this layer.
            parts: Among "full", "ggn" and "functional".
            method: "auto" or "sketch".
            rtol: Half the width of an interval, over the norm.
        """
        if self._source._role(block) is None:
            norms = self._source.norms(block, parts)
            return {
                part: Estimate.exactly(norm) for part, norm in norms.items()
            }, "queries, keys or values come from one map"
        found: Found = {}
        exact: dict[str, float] = {}
        reason = ""

        def exactly(part: str) -> float:
            if not exact:
                exact.update(self._source.norms(block, parts))
            return exact[part]

        for part in parts:
            if self._vanishes(block, part):
                found[part] = Estimate.exactly(0.0)
                continue
            ways = self._ways(block, part, len(parts), lambda part=part: exactly(part))  # type: ignore[misc]
            found[part], why = estimate_norm(ways, method, rtol)
            reason = reason or why
        if exact:
            return {part: Estimate.exactly(norm) for part, norm in exact.items()}, reason
        return found, reason

    def _vanishes(self, block: Block, part: str) -> bool:
        """Values enter linearly, and what lies behind them may do so too."""
        _, role, _ = self._place(block)
        if any(head.value_curvature is not None for head in self._hessian("full")[0].heads):
            return False
        return part == "functional" and role in ("O", "U") and self._source.derivatives[0].head is None

    def _ways(self, block: Block, part: str, parts: int, exact: Callable[[], float]) -> NormMethods:
        name = f"{block.name} {part}"

        def sketch() -> Sampler | Refusal:
            unfolded = self._unfolded(block, part)
            if isinstance(unfolded, Refusal):
                return unfolded
            return MatrixSampler(unfolded, name, self._seed, self._on_probes, self._source.sites[0].tokens)

        return NormMethods(exact, lambda: self._exact_cost(block) / parts, sketch)

    def _exact_cost(self, block: Block) -> float:
        """Of the exact norms of all parts together, which share their pairs of tokens."""
        heads, role, _ = self._place(block)
        H, part = self._hessian("full")
        total = 0.0
        for number, h in enumerate(heads):
            for k in heads[number:]:
                counted = H.sketch.exact_cost(part, (role, h), (role, k))
                total += self._value_cost(block, len(heads)) if counted is None else counted
        return 2 * total

    def _value_cost(self, block: Block, heads: int) -> float:
        gradient = self._source.derivatives[0].gradient
        tokens, width = gradient.shape[0] * gradient.shape[1], block.numel // block.shape[0] / heads
        return tokens**2 * (width**2 / 2 + block.shape[0]) / 2

    def _place(self, block: Block) -> tuple[list[int], str, slice]:
        """Heads of a block, the parameter and its rows in the closed form."""
        source = self._source
        name = source._role(block)
        assert name is not None
        projection = source.sites[0].projections[name]
        pieces = projection.pieces(block, source.problem.params)
        assert pieces is not None
        heads = [h for piece in pieces for h in projection.sharing(piece)]
        return heads, CLOSED_FORM[name], source.rows(name, source._is_bias(name, block))

    def _unfolded(self, block: Block, part: str) -> Unfolding | Refusal:
        source = self._source
        if len(source.sites) > 1:
            return Refusal("the data comes in several batches, whose blocks add up")
        name = source._role(block)
        assert name is not None
        pieces = source.sites[0].projections[name].pieces(block, source.problem.params)
        heads, role, rows = self._place(block)
        if pieces is None or len(heads) > len(pieces):
            return Refusal("several heads share its keys or values")
        H, own = self._hessian(part)
        found: list[tuple[int, Unfolding]] = []
        for number, h in enumerate(heads):
            for k in heads[number:]:
                if own == "functional" and h != k:
                    continue
                unfolded = H.sketch.block(own, (role, h), (role, k), (rows, rows))
                if isinstance(unfolded, Refusal):
                    return unfolded
                found.append((1 if h == k else 2, unfolded))
        return found[0][1] if len(found) == 1 else SeveralBlocks(found)

    def _hessian(self, part: str) -> tuple[AttentionHessian, str]:
        """The layer with what lies behind it, and which of its parts is meant."""
        return self._source.hessians[0].seen_by(part)
