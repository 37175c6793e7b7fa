"""A head with one matrix for queries and one for keys, each perhaps behind a norm, a rotation, or both."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from hessianlens.attention.head import NORMS, AttentionHead, RawScores
from hessianlens.attention.query_key_norm import QueryKeyNorm
from hessianlens.attention.sides import Side, normed_side, plain_side
from hessianlens.attention.state import ScorePort
from hessianlens.attention.token_maps import Rotation
from hessianlens.attention.tokens import KeyTokens
from hessianlens.errors import check_that


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class DualAttentionHead(AttentionHead):
    """A head with a matrix for queries and one for keys, each perhaps with a norm behind it.

    Args:
        query_norm: Norm of the queries, a `QueryKeyNorm` or its kind.
        key_norm: Norm of the keys.
    """

    query_norm: QueryKeyNorm | str | None = None
    key_norm: QueryKeyNorm | str | None = None

    @property
    def _norms(self) -> dict[str, QueryKeyNorm]:
        found = {name: getattr(self, option) for name, option in NORMS.items()}
        return {name: norm for name, norm in found.items() if norm is not None}

    def _check_options(self) -> None:
        super()._check_options()
        for option in NORMS.values():
            norm = getattr(self, option)
            if isinstance(norm, str):
                object.__setattr__(self, option, QueryKeyNorm(norm))
            else:
                check_that(
                    norm is None or isinstance(norm, QueryKeyNorm), option, norm, "a QueryKeyNorm, its kind or None"
                )

    def _prepare(self) -> None:
        super()._prepare()
        for name, norm in self._norms.items():
            norm.check_width(NORMS[name], self.parameters["Q"].shape[1])

    def _side(self, name: str, keys: KeyTokens, rotation: Rotation | None, rotated_first: bool) -> Side:
        norm, W = self._norms.get(name), self.parameters[name]
        if norm is None:
            return plain_side(name, keys.rows, W, rotation)
        return normed_side(name, keys.rows, W, norm, keys.ones, rotation, rotated_first)

    def _dual_scores(
        self,
        X: Tensor,
        keys: KeyTokens,
        rotations: tuple[Rotation | None, Rotation | None] = (None, None),
        rotated_first: bool = False,
    ) -> RawScores:
        """Scores of a query and a key matrix, and how the two enter."""
        W_Q, W_K = (self.parameters[name] for name in "QK")
        q = self._side("Q", KeyTokens.of(X, sink=False), rotations[0], rotated_first)
        k = self._side("K", keys, rotations[1], rotated_first)
        others = {} if any(turn is not None for turn in (*q.maps.values(), *k.maps.values())) else {"Q": W_K, "K": W_Q}
        queries = {
            name: ScorePort(u, u_name(name), 0, k.rows, "k", query_turn=q.maps[name], other=others.get(name))
            for name, u in q.inputs.items()
        }
        ports = queries | {
            name: ScorePort(q.rows, "q", 1, u, u_name(name), key_turn=k.maps[name], other=others.get(name))
            for name, u in k.inputs.items()
        }
        scale = self.temperature * math.sqrt(W_Q.shape[1])
        return RawScores(q.rows @ k.rows.transpose(-1, -2), scale, ports, ("Q", "K"), q, k)


def u_name(name: str) -> str:
    """What a parameter is multiplied with, in print: tokens, or ones for gains and shifts."""
    return "x" if name in NORMS else "1"
