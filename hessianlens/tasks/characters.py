"""A character language model's task: text of the user's own, or one that is generated."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import Tensor

from hessianlens.errors import InputError, check_choice, check_path, check_seed, check_that, check_whole, expect
from hessianlens.memory import ensure_fits
from hessianlens.tasks.next_token import NextTokenTask, batch_tokens
from hessianlens.tasks.stream import Batch, BatchStream

HELD_OUT = 0.1
"""Share of a text, its end, that is kept for validation."""

PARTS = ("train", "validation")

_CONSONANTS, _VOWELS = "bdfgklmnprstv", "aeiou"


@dataclass(frozen=True)
class Characters(NextTokenTask):
    """Windows of `length` characters of a text; every position but the last predicts the next character.

    The last tenth of the text is for validation and never drawn for training. Tokens are the characters of the text in
    the order of their code points.

    Args:
        text: At least twenty windows long.
        length: Characters L of a window.

    >>> task = Characters.generated(seed=0, length=16)
    >>> task.decode(task.batch(1, seed=0))[0]
    '... ...'
    >>> 2.0 < task.unigram_entropy < math.log(task.vocab)
    True
    """

    text: str = field(repr=False)
    length: int = 32

    def __post_init__(self) -> None:
        """A text that is long enough."""
        check_whole("length", self.length, 2)
        expect(isinstance(self.text, str), f"text: got {type(self.text).__name__}, expected a string.")
        least = 20 * self.length
        expect(
            len(self.text) >= least,
            f"text: got {len(self.text)} characters, expected at least {least}, twenty windows of {self.length}.",
        )

    @classmethod
    def from_file(cls, path: Path | str, length: int = 32) -> Characters:
        """The text of a file in UTF-8."""
        file = check_path("path", path, "the name of a text file")
        try:
            return cls(file.read_text(encoding="utf-8"), length)
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"text: cannot read {str(path)!r} ({error}); expected a text file in UTF-8.") from error

    @classmethod
    def generated(cls, seed: int = 0, length: int = 32, characters: int = 60_000, words: int = 60) -> Characters:
        """A text of made-up words: frequencies as in natural language, and a preferred successor for every word.

        A lexicon of `words` words of one to three syllables; word r is drawn with probability proportional to
        ``1 / (r + 1)``, but half of the time a word is followed by the one fixed word that it prefers. Sentences have
        3 to 9 words. To predict well a model has to spell words and to remember the word before.
        """
        check_whole("characters", characters, 20 * check_whole("length", length, 2))
        check_whole("words", words, 2)
        source = torch.Generator().manual_seed(check_seed(seed))
        lexicon = _lexicon(words, source)
        shares = 1 / torch.arange(1, words + 1, dtype=torch.float64)
        count = characters // 2  # a word takes two characters or more
        drawn = torch.multinomial(shares, count, replacement=True, generator=source).tolist()
        follows = torch.rand(count, generator=source).lt(0.5).tolist()
        preferred = torch.randperm(words, generator=source).tolist()
        lengths = torch.randint(3, 10, (count,), generator=source).tolist()
        pieces, written, place, last = [], 0, 0, 0
        for size in lengths:
            chosen = []
            for _ in range(size):
                last = preferred[last] if follows[place % count] else drawn[place % count]
                chosen.append(lexicon[last])
                place += 1
            pieces.append(" ".join(chosen) + ". ")
            written += len(pieces[-1])
            if written >= characters:
                break
        return cls("".join(pieces)[:characters], length)

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The characters, by token."""
        return tuple(sorted(set(self.text)))

    @property
    def vocab(self) -> int:
        """Number of different characters."""
        return len(self.symbols)

    @property
    def context(self) -> int:
        """Length L of a window."""
        return self.length

    @property
    def loss_positions(self) -> Sequence[int]:
        """All but the last."""
        return range(self.length - 1)

    @cached_property
    def unigram_entropy(self) -> float:
        """``-sum_c p_c log p_c`` in nats: the loss of a model that knows the frequencies of characters and no more."""
        counts = Counter(self.text)
        return -sum(n / len(self.text) * math.log(n / len(self.text)) for n in counts.values())

    @cached_property
    def _tokens(self) -> Tensor:
        place = {symbol: number for number, symbol in enumerate(self.symbols)}
        return torch.tensor([place[symbol] for symbol in self.text])

    def batch(self, size: int, seed: int, part: str = "train") -> Batch:
        """The first batch of a seed."""
        return next(iter(self.batches(1, size, seed, part)))

    def batches(self, count: int, size: int, seed: int, part: str = "train") -> BatchStream:
        """Batches of windows that begin anywhere in a part of the text.

        Args:
            count: How many.
            size: Windows of each.
            seed: Draws where they begin.
            part: "train", or "validation" for the last tenth.
        """
        check_whole("count", count, 1)
        check_whole("size", size, 1)
        check_choice("part", part, PARTS)
        ensure_fits("The batch", (size, self.context), torch.int64, torch.device("cpu"), "take a smaller batch", 4)
        return BatchStream(int(count), check_seed(seed), partial(self._draw, int(size), part))

    def _draw(self, size: int, part: str, source: torch.Generator) -> Batch:
        border = round((1 - HELD_OUT) * len(self.text))
        first, last = (0, border) if part == "train" else (border, len(self.text))
        starts = torch.randint(first, last - self.length + 1, (size, 1), generator=source)
        return {"tokens": self._tokens[starts + torch.arange(self.length)]}

    def decode(self, batch: Batch) -> list[str]:
        """The texts of a batch."""
        tokens = batch_tokens(batch)
        known = tokens.dtype == torch.int64 and tokens.ndim == 2 and bool(((tokens >= 0) & (tokens < self.vocab)).all())
        check_that(known, "batch", tokens, f"tokens of shape (B, L), whole numbers from 0 to {self.vocab - 1}")
        return ["".join(self.symbols[token] for token in row) for row in tokens.tolist()]


def _lexicon(words: int, source: torch.Generator) -> list[str]:
    """Different words of one to three syllables, short ones first."""
    found: dict[str, None] = {}
    while len(found) < words:
        syllables = 1 + int(3 * len(found) / words)
        drawn = torch.randint(2**31, (syllables, 2), generator=source).tolist()
        word = "".join(_CONSONANTS[a % len(_CONSONANTS)] + _VOWELS[b % len(_VOWELS)] for a, b in drawn)
        found[word] = None
    return list(found)
