"""Addition of two numbers as next-token prediction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hessianlens.checks import check_dense
from hessianlens.errors import InputError, check_choice, check_seed, check_that, check_whole, expect
from hessianlens.memory import ensure_fits
from hessianlens.notation import CARRIES
from hessianlens.tasks.stream import Batch, BatchStream

PLUS, EQUALS = 10, 11
SUM_NINE = 5
"""One digit pair in this many is made to sum to 9, and where batches are mixed one batch in this many."""


@dataclass(frozen=True)
class Addition:
    """``XXXXX+YYYYY=ZZZZZZ``: digits 0 - 9 are tokens 0 - 9, ``+`` is 10, ``=`` is 11; the sum has one digit more.

    The paper's task (Appendix F, after Quirke and Barez): ``digits=5`` gives 18 tokens. Operand digits are uniform.
    A batch with carry chains has a fifth of its digit pairs changed to sum to 9, either all of these in x or all in y;
    `carries` says whether no batch is one (``"none"``), each of them (``"chains"``) or one of five, drawn at random
    (``"mixed"``, as models are trained in the paper). Curvature was published for a batch without: the one below.
    A batch is a dictionary ``{"tokens": (B, L) int64}``; losses and scores take it, or its tokens, together with
    logits (B, L, vocab).

    Args:
        digits: Digits of each operand.

    >>> task = Addition(digits=5)
    >>> batch = task.batch(64, seed=1234, carries="none")
    >>> batch["tokens"].shape, task.vocab, task.context
    (torch.Size([64, 18]), 12, 18)
    >>> task.decode(batch)[:2]
    ['51656+73891=125547', '42559+34481=077040']
    >>> task.decode(task.encode([99999, 120], [1, 45]))
    ['99999+00001=100000', '00120+00045=000165']
    """

    digits: int = 5

    def __post_init__(self) -> None:
        """Numbers have at least one digit."""
        check_whole("digits", self.digits, 1)

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The symbol of every token."""
        return (*"0123456789", "+", "=")

    @property
    def vocab(self) -> int:
        """Number of tokens, 12."""
        return len(self.vocabulary)

    @property
    def context(self) -> int:
        """Length L of a sequence."""
        return 3 * self.digits + 3

    @property
    def x_positions(self) -> range:
        """Where the first operand stands."""
        return range(self.digits)

    @property
    def y_positions(self) -> range:
        """Where the second operand stands."""
        return range(self.digits + 1, 2 * self.digits + 1)

    @property
    def answer_positions(self) -> range:
        """Where the sum stands."""
        return range(2 * self.digits + 2, self.context)

    @property
    def loss_positions(self) -> range:
        """Positions whose logits enter the losses, one before each answer token: ``=`` to the last but one."""
        return range(2 * self.digits + 1, self.context - 1)

    def encode(self, x: Sequence[int], y: Sequence[int]) -> Batch:
        """The batch of these sums."""
        for name, given in (("x", x), ("y", y)):
            many = isinstance(given, Iterable) and not isinstance(given, (str, Tensor, Mapping))
            check_that(many, name, given, "a list of whole numbers")
        operands = [list(x), list(y)]
        expect(
            len(operands[0]) == len(operands[1]) > 0,
            f"x, y: got {len(operands[0])} and {len(operands[1])} numbers, expected as many of one as of the other.",
        )
        for number in operands[0] + operands[1]:
            check_whole("x, y", number, 0, 10**self.digits - 1)
        texts = [[f"{number:0{self.digits}d}" for number in numbers] for numbers in operands]
        digits = torch.tensor([[[int(symbol) for symbol in text] for text in side] for side in texts])
        return self._sequences(digits[0], digits[1])

    def batch(self, size: int, seed: int, carries: str = "none") -> Batch:
        """The first batch of a seed; `carries` as in `batches`."""
        return next(iter(self.batches(1, size, seed, carries)))

    def batches(self, count: int, size: int, seed: int, carries: str = "none") -> BatchStream:
        """Batches of one seed, as something to iterate over more than once; the first is ``batch(size, seed)``.

        Args:
            count: How many.
            size: Sequences of each.
            seed: Draws the digits, and what is changed of them.
            carries: "none": digits as drawn; "chains": a fifth of the digit pairs of every batch sum to 9; "mixed": of
                one batch in five.
        """
        check_whole("count", count, 1)
        check_whole("size", size, 1)
        ensure_fits("The batch", (size, self.context), torch.int64, torch.device("cpu"), "take a smaller batch", 4)
        check_seed(seed)
        check_choice("carries", carries, CARRIES)
        return BatchStream(int(count), int(seed), partial(self._draw, int(size), carries))

    def _draw(self, size: int, carries: str, source: torch.Generator) -> Batch:
        x, y = torch.randint(10, (2, size * self.digits), generator=source)
        if carries == "chains" or (carries == "mixed" and int(torch.randint(SUM_NINE, (), generator=source)) == 0):
            changed = torch.randperm(len(x), generator=source)[: len(x) // SUM_NINE]
            if int(torch.randint(2, (), generator=source)) == 0:
                x[changed] = 9 - y[changed]
            else:
                y[changed] = 9 - x[changed]
        return self._sequences(x.reshape(size, self.digits), y.reshape(size, self.digits))

    def _sequences(self, x: Tensor, y: Tensor) -> Batch:
        """Whole sequences from the digits (B, digits) of the operands, most significant first."""
        tokens = torch.empty(len(x), self.context, dtype=torch.int64)
        tokens[:, list(self.x_positions)], tokens[:, list(self.y_positions)] = x, y
        tokens[:, self.digits], tokens[:, 2 * self.digits + 1] = PLUS, EQUALS
        carry = torch.zeros(len(x), dtype=torch.int64)
        for place in reversed(range(self.digits)):
            total = x[:, place] + y[:, place] + carry
            tokens[:, self.answer_positions[place + 1]] = total % 10
            carry = total // 10
        tokens[:, self.answer_positions[0]] = carry
        return {"tokens": tokens}

    def decode(self, tokens: Batch | Int[Tensor, "*b l"]) -> str | list[str]:
        """A sequence of tokens as text; a list of texts for a batch.

        >>> Addition(2).decode(torch.tensor([1, 2, 10, 3, 4, 11, 0, 4, 6]))
        '12+34=046'
        """
        given = _tokens(tokens)
        expect(
            given.dtype in (torch.int64, torch.int32) and given.ndim in (1, 2),
            f"tokens: got {given.dtype} of shape {tuple(given.shape)}, expected whole numbers, (L,) or (B, L).",
        )
        if given.ndim > 1:
            return ["".join(self._symbol(token) for token in row) for row in given.tolist()]
        return "".join(self._symbol(token) for token in given.tolist())

    def _symbol(self, token: int) -> str:
        expect(0 <= token < self.vocab, f"tokens: got {token}, expected 0 .. {self.vocab - 1}.")
        return self.vocabulary[token]

    def cross_entropy(self, logits: Float[Tensor, "*b l v"], batch: Batch | Int[Tensor, "*b l"]) -> Float[Tensor, ""]:
        """``-mean log softmax(logits_p)[token_{p+1}]`` over the batch and the answer's tokens p + 1.

        >>> task = Addition()
        >>> task.cross_entropy(torch.zeros(64, 18, 12), task.batch(64, seed=0))  # log 12
        tensor(2.4849)
        """
        tokens = self._checked(logits, batch)
        predictions, targets = logits[..., self._slice(0), :], tokens[..., self._slice(1)]
        return torch.nn.functional.cross_entropy(predictions.flatten(0, -2), targets.flatten())

    def square(self, logits: Float[Tensor, "*b l v"], batch: Batch | Int[Tensor, "*b l"]) -> Float[Tensor, ""]:
        """``sum_p |logits_p - onehot(token_p)|^2``, a sum and no mean, over the batch and `loss_positions`.

        As published, the target at a position is the token at that same position, not the next one.

        >>> task = Addition()
        >>> task.square(torch.zeros(64, 18, 12), task.batch(64, seed=0))  # 64 * 6
        tensor(384.)
        """
        tokens = self._checked(logits, batch)
        targets = tokens[..., self._slice(0), None] == torch.arange(logits.shape[-1], device=logits.device)
        return (logits[..., self._slice(0), :] - targets.to(logits.dtype)).square().sum()

    def correct(self, logits: Float[Tensor, "*b l v"], batch: Batch | Int[Tensor, "*b l"]) -> Bool[Tensor, "*b"]:
        """Whether the likeliest tokens, given the true ones before them, are the whole answer."""
        tokens = self._checked(logits, batch)
        return (logits[..., self._slice(0), :].argmax(-1) == tokens[..., self._slice(1)]).all(-1)

    def accuracy(self, logits: Float[Tensor, "*b l v"], batch: Batch | Int[Tensor, "*b l"]) -> float:
        """Share of sequences whose whole answer is right."""
        return float(self.correct(logits, batch).double().mean())

    def _slice(self, shift: int) -> slice:
        """`loss_positions`, moved on by `shift`."""
        return slice(self.loss_positions.start + shift, self.loss_positions.stop + shift)

    def _checked(self, logits: Tensor, batch: Batch | Tensor) -> Tensor:
        tokens = _tokens(batch)
        check_dense("logits", logits)
        expect(
            logits.is_floating_point() and tokens.dtype == torch.int64 and tokens.ndim > 0,
            f"logits and batch: got {logits.dtype} and {tokens.dtype}, expected floating numbers and int64.",
        )
        expect(
            tokens.shape[-1] == self.context,
            f"batch: got sequences of {tokens.shape[-1]} tokens, expected {self.context} ({self.digits} digits).",
        )
        expect(
            logits.shape[:-1] == tokens.shape and logits.shape[-1] >= self.vocab,
            f"logits: got shape {tuple(logits.shape)}, expected {(*tokens.shape, self.vocab)}, "
            f"one row of {self.vocab} (or more) a token; pass the model's output at every position.",
        )
        return tokens


def _tokens(batch: object) -> Tensor:
    """The tokens of a batch, given as a mapping or as the tensor itself."""
    found = batch.get("tokens") if isinstance(batch, Mapping) else batch
    if not isinstance(found, Tensor):
        raise InputError(
            f"batch: got {type(batch).__name__}, expected {{'tokens': tensor}} as Addition.batch gives it, or a tensor."
        )
    return check_dense("tokens", found)
