"""What an attention computes, apart from its tensors."""

from __future__ import annotations

from dataclasses import dataclass

from hessianlens.attention.activations import Activation, RowFunction


@dataclass(frozen=True)
class AttentionRule:
    """``O = (M o a(S)) V`` with ``S = cap(scale Q K^T + B)``, hidden entries left out.

    Attributes:
        scale: What the products of queries and keys are multiplied by.
        causal: Whether a query sees no key behind its own position (counted from the first of each).
        window: How many keys a query sees on either side of its own position, or None for all.
        softcap: c of ``c tanh(S / c)``, or None.
        activation: The row function, or None for softmax.
        dropout: The share of weights set to zero; the others are divided by what remains.
        seed: Of the dropped weights, which every pass draws again.
        workspace: Bytes that scores and what is made of them may take at a time.
    """

    scale: float
    causal: bool = False
    window: tuple[int, int] | None = None
    softcap: float | None = None
    activation: Activation | None = None
    dropout: float = 0.0
    seed: int = 0
    workspace: int = 1 << 26

    def keys_seen(self, first: int, last: int, keys: int) -> tuple[int, int]:
        """The range of keys that queries from `first` to before `last` can see at all.

        >>> AttentionRule(1.0, causal=True, window=(2, 0)).keys_seen(4, 6, 10)
        (2, 6)
        """
        start, stop = 0, keys
        if isinstance(self.activation, RowFunction):  # a user's function is given whole rows
            return start, stop
        if self.causal:
            stop = min(stop, last)
        if self.window is not None:
            start, stop = max(start, first - self.window[0]), min(stop, last + self.window[1])
        start = min(start, keys - 1)  # rows that see nothing keep one key, which is hidden
        return start, max(stop, start + 1)
