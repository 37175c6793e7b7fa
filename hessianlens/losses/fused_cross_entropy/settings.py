"""What a cross-entropy of logits computes, apart from its tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

_TEMPORARIES = 3
"""Matrices of logits that a pass holds of its chunk."""


@dataclass(frozen=True)
class CrossEntropyRule:
    """``l_i = m_i log sum_k exp z_ik - sum_k t_ik z_ik`` with ``z = cap(s (H W^T + b))``.

    The targets ``t_ik = c_i w_k ((1 - a) [k = y_i] + a / V)`` add up to m_i; c_i is zero where a token is ignored.

    Attributes:
        ignore_index: The target of such tokens.
        smoothing: a, the share of a target that is spread over all classes.
        scale: s.
        softcap: c, where ``cap(z) = c tanh(z / c)``; None for no cap.
        workspace: Bytes that the logits of a chunk, and what is made of them, may take.
    """

    ignore_index: int = -100
    smoothing: float = 0.0
    scale: float = 1.0
    softcap: float | None = None
    workspace: int = 1 << 28

    def chunks(self, tokens: int, classes: int, size: int) -> Iterator[slice]:
        """Ranges of tokens, about equally long, whose logits of `size` bytes each fit into the workspace.

        >>> list(CrossEntropyRule(workspace=240).chunks(5, 10, 4))
        [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
        """
        most = max(self.workspace // (_TEMPORARIES * max(classes, 1) * size), 1)
        rows = math.ceil(tokens / math.ceil(tokens / most)) if tokens else 1
        return (slice(first, min(first + rows, tokens)) for first in range(0, tokens, rows))
