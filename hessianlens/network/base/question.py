"""What is asked of a network's curvature, and what an exact answer costs: the words that planner and routes share."""

from __future__ import annotations

import math
import zlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from hessianlens.errors import Refusal
from hessianlens.network.base import thresholds
from hessianlens.operators import StructuredOperator
from hessianlens.problems import Block, Problem
from hessianlens.spectra.probes import Probes


@dataclass(frozen=True)
class Limits:
    """The most that an exact answer may cost.

    Attributes:
        hvps: Hessian-vector products, each over all of the data.
        held_bytes: Memory.
        shared_hvps: HVPs that are made once for several answers.
    """

    hvps: float = field(default_factory=lambda: thresholds.EXACT_MAX_HVPS)
    held_bytes: float = field(default_factory=lambda: thresholds.EXACT_MAX_BYTES)
    shared_hvps: float = field(default_factory=lambda: thresholds.EXACT_MAX_HVPS)


NO_LIMITS = Limits(math.inf, math.inf, math.inf)
"""As long as it fits in memory."""


@dataclass(frozen=True, eq=False)
class Question:
    """The block between two others: its matrix, or only its norms, which may take less memory."""

    row: Block
    column: Block
    limits: Limits = field(default_factory=Limits)
    norms_only: bool = False

    @property
    def is_diagonal(self) -> bool:
        """Whether it is a block with itself."""
        return self.row is self.column

    @property
    def pair(self) -> tuple[str, str]:
        """Names of its rows and columns."""
        return self.row.name, self.column.name


@dataclass(frozen=True)
class Cost:
    """What an exact answer costs by one route.

    Attributes:
        reason: Why the answer is exact.
        hvps: HVPs for this answer alone.
        upfront_hvps: The same with what is computed once for several answers, if nobody has asked for that yet.
        held_bytes: Memory.
        shared: Answers with an equal key share their HVPs; None for an answer that shares none.
        fast_matvecs: Whether its matvecs are cheaper than HVPs once it is built.
        certificate_hvps: HVPs of plain autograd that certify it; answers with the same column share them.
    """

    reason: str
    hvps: int = 0
    upfront_hvps: int = 0
    held_bytes: int = 0
    shared: Hashable = None
    fast_matvecs: bool = False
    certificate_hvps: int = 0


@dataclass(frozen=True, eq=False)
class Norms:
    """Frobenius norms by part, with the matvecs that their certificate is checked on.

    Attributes:
        values: Norm by part.
        matvecs: By part, the matrix that the norm is of times `probe_vectors` of its columns, ``[*rows, vector]``.
    """

    values: Mapping[str, float]
    matvecs: Mapping[str, Tensor]


class Route(Protocol):
    """One way to exact blocks of a problem; what it rests on is certified by the planner, not by the route."""

    name: str

    def cost(self, question: Question) -> Cost | Refusal:
        """What the answer costs, from sizes and as little else as possible; or why there is none by this route."""

    def operator(self, question: Question, part: str) -> StructuredOperator:
        """The matrix; `part` is "full", "ggn" or "functional"."""

    def norms(self, question: Question, parts: Sequence[str]) -> Norms:
        """Norms of parts, computed without the matrix where that is cheaper."""


PROBE_VECTORS = 4
"""Vectors on which an exact answer is checked: all of them against its norm, the first against plain autograd."""


def probe_vectors(block: Block, problem: Problem) -> Tensor:
    """Gaussian vectors on a block on which exact answers are checked, ``[*block, vector]``; always the same.

    >>> import hessianlens as hl
    >>> model, task = hl.models.Transformer(layers=1, d_model=4, d_mlp=3), hl.tasks.Addition()
    >>> problem = hl.problem(model, task.batch(2, seed=0), task.cross_entropy)
    >>> probe_vectors(problem.blocks["layer0.attn.q"], problem).shape
    torch.Size([4, 4, 4])
    """
    stream = zlib.crc32(f"certificate of {block.name}".encode())
    drawn = Probes(block.numel, PROBE_VECTORS, 0, "gaussian", problem.dtype, problem.device, stream)
    return drawn.matrix(0, PROBE_VECTORS).reshape(*block.shape, PROBE_VECTORS)
