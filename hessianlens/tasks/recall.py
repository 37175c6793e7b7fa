"""Associative recall: which value came with this key?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from hessianlens.errors import check_flag, check_seed, check_whole, expect
from hessianlens.memory import ensure_fits
from hessianlens.tasks.next_token import NextTokenTask
from hessianlens.tasks.stream import Batch, BatchStream


@dataclass(frozen=True)
class AssociativeRecall(NextTokenTask):
    """Pairs of a key and a value, then keys alone: each is to be answered with its value.

    ``joined=True``: a pair is one token, ``key * values + value``, so that one attention layer can look it up: a query
    has to find the pair with its key. ``joined=False``: key and value are two tokens, one after the other, as in the
    literature; a layer must first tell each value which key stands before it, so two layers are needed.
    Keys of a sequence are distinct; queries are drawn from them without replacement, values with replacement.

    ======================  ==================================================
    tokens, joined          pairs (keys * values), then queries (keys), then answers (values)
    tokens, apart           keys, then values
    ======================  ==================================================

    Args:
        pairs: Pairs of a sequence.
        queries: Keys that are asked for; each is followed by its answer, so that every position has its own target.
        keys: Number of different keys.
        values: Number of different values; guessing is right once in so many.
        joined: See above.

    >>> task = AssociativeRecall(pairs=3, queries=2, keys=4, values=4)
    >>> task.context, task.vocab, list(task.loss_positions)
    (7, 24, [3, 5])
    >>> batch = task.batch(2, seed=0)
    >>> batch["tokens"].shape
    torch.Size([2, 7])
    >>> AssociativeRecall(pairs=2, queries=1, keys=4, values=4, joined=False).describe(seed=1)
    'k1 v3 k2 v1 k1 v3'
    """

    pairs: int = 6
    queries: int = 3
    keys: int = 8
    values: int = 8
    joined: bool = True

    def __post_init__(self) -> None:
        """Keys suffice for the pairs, pairs for the queries."""
        for name in ("pairs", "queries", "keys", "values"):
            check_whole(name, getattr(self, name))
        check_flag("joined", self.joined)
        expect(self.pairs <= self.keys, f"pairs: got {self.pairs}, expected at most keys = {self.keys}.")
        expect(self.queries <= self.pairs, f"queries: got {self.queries}, expected at most pairs = {self.pairs}.")

    @property
    def vocab(self) -> int:
        """Number of tokens."""
        return self.keys * self.values + self.keys + self.values if self.joined else self.keys + self.values

    @property
    def _tokens_of_pairs(self) -> int:
        """Tokens in front of the queries."""
        return self.pairs if self.joined else 2 * self.pairs

    @property
    def context(self) -> int:
        """Length L of a sequence."""
        return self._tokens_of_pairs + 2 * self.queries

    @property
    def loss_positions(self) -> Sequence[int]:
        """Where queries stand."""
        return range(self._tokens_of_pairs, self.context, 2)

    def batch(self, size: int, seed: int) -> Batch:
        """The first batch of a seed."""
        return next(iter(self.batches(1, size, seed)))

    def batches(self, count: int, size: int, seed: int) -> BatchStream:
        """Batches of one seed, as something to iterate over more than once."""
        check_whole("count", count, 1)
        check_whole("size", size, 1)
        ensure_fits("The batch", (size, self.context), torch.int64, torch.device("cpu"), "take a smaller batch", 4)
        return BatchStream(int(count), check_seed(seed), partial(self._draw, int(size)))

    def describe(self, seed: int) -> str:
        """One sequence as text."""
        return " ".join(self._symbol(token) for token in self.batch(1, seed)["tokens"][0].tolist())

    def _symbol(self, token: int) -> str:
        joined = self.keys * self.values if self.joined else 0
        if token < joined:
            return f"k{token // self.values}v{token % self.values}"
        rest = token - joined
        return f"k{rest}" if rest < self.keys else f"v{rest - self.keys}"

    def _draw(self, size: int, source: torch.Generator) -> Batch:
        keys = torch.rand(size, self.keys, generator=source).argsort(-1)[:, : self.pairs]
        values = torch.randint(self.values, (size, self.pairs), generator=source)
        asked = torch.rand(size, self.pairs, generator=source).argsort(-1)[:, : self.queries]
        queries, answers = keys.gather(1, asked), values.gather(1, asked)
        shift = self.keys * self.values if self.joined else 0
        pairs = keys * self.values + values if self.joined else _between(keys, values + self.keys)
        asked_for = _between(queries + shift, answers + shift + self.keys)
        return {"tokens": torch.cat([pairs, asked_for], -1)}


def _between(left: Tensor, right: Tensor) -> Tensor:
    """Columns of the two in turn."""
    return torch.stack([left, right], -1).flatten(-2)
