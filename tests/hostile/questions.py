"""Questions about the blocks of a problem, and whether each answer is right, refused, or wrong."""

from __future__ import annotations

import math
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from random import Random
from typing import Any

import torch
from torch import Tensor

import hessianlens as hl
from hessianlens.errors import InputError
from hessianlens.problems import Block, Problem
from tests.hostile.oracle import Truth, couples_sequences, truth
from tests.hostile.specimen import Specimen, randn

TOLERANCE = 1e-8
"""Share of the norm of a block by which an exact answer may be wrong."""
SAMPLED = 5.0
"""Factor by which a norm from 20 random vectors may be wrong."""
MOST_PAIRS = 10
"""Pairs of different blocks whose matrices are looked at."""
PARTS = ("full", "ggn", "functional")
OPERATORS: dict[str, Callable[..., Any]] = {"full": hl.hessian, "ggn": hl.ggn, "functional": hl.functional}


@dataclass(frozen=True)
class Wrong:
    """An answer that is not the truth, or an error that is no refusal.

    Attributes:
        question: What was asked.
        error: Distance from the truth over its norm; infinite where there is no number.
        why: What the answer said of itself.
    """

    question: str
    error: float
    why: str

    def __str__(self) -> str:
        return f"{self.question}: relative error {self.error:.2g} ({self.why})"


@dataclass(eq=False)
class Findings:
    """What came of all questions about a specimen.

    Attributes:
        wrong: Answers that are not the truth.
        refused: Why questions were refused, by question.
        why: What exact answers said of themselves, counted.
        fallback: Why answers were not exact, by block.
        asked: Number of questions.
    """

    wrong: list[Wrong] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    why: Counter[str] = field(default_factory=Counter)
    fallback: dict[str, str] = field(default_factory=dict)
    asked: int = 0

    def __str__(self) -> str:
        return "\n".join(map(str, self.wrong))


class Examiner:
    """Asks questions about one specimen.

    Args:
        specimen: The model, data and loss.
        expected: The truth about it, if it is known already.
    """

    def __init__(self, specimen: Specimen, expected: Truth | None = None) -> None:
        self.specimen, self.found = specimen, Findings()
        self.truth = truth(specimen) if expected is None else expected
        self.problem: Problem | None = None
        with self._answering("problem"):
            self.problem = hl.problem(specimen.model, specimen.data, specimen.loss, **specimen.options)

    @property
    def blocks(self) -> list[Block]:
        """All blocks; none where the problem was refused."""
        return [] if self.problem is None else list(self.problem.blocks.values())

    def everything(self) -> Findings:
        """All blocks in all parts, some pairs of blocks in one part each, and all norms."""
        for block in self.blocks:
            for part in PARTS:
                self.operator(part, block, block)
        pairs = list(permutations(self.blocks, 2))
        for number, (row, column) in enumerate(pairs[:: max(1, len(pairs) // MOST_PAIRS)]):
            self.operator(PARTS[number % 3], row, column)
        for method in ("auto", "exact"):
            self.norms(method)
            self.pair_norms("full", method)
        self.check_reasons()
        return self.found

    def some(self, seed: int) -> Findings:
        """A few blocks, pairs and norms, other ones with every seed."""
        random = Random(seed)
        few = random.sample(self.blocks, min(3, len(self.blocks)))
        attention = [block for block in self.blocks if ".attn." in block.name]
        if attention and random.random() < 0.6:
            few = [few[0], *random.sample(attention, min(2, len(attention)))]
            random.shuffle(few)
            few = list({block.name: block for block in few}.values())
        if not few:
            return self.found
        column = few[0] if random.random() < 0.5 else few[-1]
        self.operator(random.choice(PARTS), few[0], column, random.choice(("auto", "auto", "exact")))
        method = random.choice(("auto", "exact"))
        if random.random() < 0.7:
            self.norms(method, few[:2])
        else:
            self.pair_norms(random.choice(PARTS), method, few[:2])
        self.check_reasons()
        return self.found

    def expected(self, part: str, row: Block, column: Block) -> Tensor:
        """The true block."""
        return self.truth.block(part, self._entries(row), self._entries(column))

    def _entries(self, block: Block) -> tuple[str, Tensor]:
        shape = self.truth.places[block.parameter][1]
        return block.parameter, block.take(torch.arange(shape.numel()).reshape(shape)).reshape(-1)

    # --- questions ---------------------------------------------------------------------------------------------------

    def operator(self, part: str, row: Block, column: Block, method: str = "auto") -> None:
        """The matrix, its norm, trace and diagonal, and a product."""
        question, expected = f"{part}({row.name!r}, {column.name!r}, {method!r})", self.expected(part, row, column)
        with self._answering(question):
            op = OPERATORS[part](self.problem, row.name, column.name, method=method)
            self._note(row, column, op.exact, op.why)
            v = randn(expected.shape[1], seed=3)
            asked: dict[str, tuple[Callable[[], Any], Tensor]] = {
                "@ v": (lambda: op @ v, expected @ v),
                ".to_dense()": (op.to_dense, expected),
                ".frobenius_norm()": (op.frobenius_norm, expected.norm()),
            }
            if row is column:
                asked[".trace()"] = op.trace, expected.trace()
                asked[".diagonal()"] = op.diagonal, expected.diagonal()
            scale = float(expected.norm())
            for name, (answer, true) in asked.items() if op.exact else [("@ v", asked["@ v"])]:
                with self._answering(question + name):
                    size = scale * {"@ v": float(v.norm()), ".trace()": len(expected) ** 0.5}.get(name, 1.0)
                    self._compare(question + name, answer(), true, size, f"exact={op.exact}: {op.why}")

    def norms(self, method: str, blocks: Sequence[Block] | None = None) -> None:
        """`hessianlens.block_norms`."""
        chosen = self.blocks if blocks is None else list(blocks)
        if not chosen:
            return
        question = f"block_norms(method={method!r})"
        with self._answering(question):
            norms = hl.block_norms(self.problem, [block.name for block in chosen], method=method)
            for block in chosen:
                for part in PARTS:
                    estimate, why = norms[block.name, part], norms.why.get(block.name, "")
                    self._estimate(f"{question}[{block.name!r}, {part!r}]", estimate, block, block, part, why)

    def pair_norms(self, part: str, method: str, blocks: Sequence[Block] | None = None) -> None:
        """`hessianlens.block_pair_norms`."""
        chosen = self.blocks if blocks is None else list(blocks)
        if not chosen:
            return
        question = f"block_pair_norms({part!r}, method={method!r})"
        with self._answering(question):
            norms = hl.block_pair_norms(self.problem, [block.name for block in chosen], part, method=method)
            for row in chosen:
                for column in chosen:
                    place = f"{question}[{row.name!r}, {column.name!r}]"
                    self._estimate(place, norms[row.name, column.name], row, column, part, "")

    # --- answers -----------------------------------------------------------------------------------------------------

    def _estimate(self, question: str, found: Any, row: Block, column: Block, part: str, why: str) -> None:
        self.found.asked += 1
        true, floor = float(self.expected(part, row, column).norm()), self.truth.floor
        self._note(row, column, found.exact, why)
        if found.exact:
            self._compare(question, torch.tensor(found.value), torch.tensor(true), true, f"exact=True: {why}")
        elif not (true / SAMPLED - floor <= found.value <= SAMPLED * true + floor):
            self.found.wrong.append(Wrong(question, abs(found.value - true) / max(true, floor), f"sampled: {why}"))

    def _compare(self, question: str, found: Tensor, true: Tensor, size: float, why: str) -> None:
        self.found.asked += 1
        shaped = found.shape == true.shape
        distance = float((found.detach() - true).norm()) if shaped else math.inf
        if not distance <= TOLERANCE * size + self.truth.floor:
            self.found.wrong.append(Wrong(question, distance / max(size, self.truth.floor), why))

    def _note(self, row: Block, column: Block, exact: bool, why: str) -> None:
        if exact:
            self.found.why[why] += 1
        elif why and row is column:
            self.found.fallback[row.name] = why

    def check_reasons(self) -> None:
        """Reasons that say something about the model say the truth, as far as autograd's graph can tell."""
        uses = self.truth.uses
        for block in self.blocks:
            why = self.found.fallback.get(block.name, "")
            own = why.partition("its output projection has none")[0]  # what follows is said of another block
            untrue = (
                ("it is used in several places" in own and uses[block.parameter] < 2)
                or ("was not seen in use" in why and uses[block.parameter] > 0)
                # A product of two parameters, as of low-rank factors, feeds all sequences.
                or ("across the sequences" in why and "lora" not in block.name and not couples_sequences(self.specimen))
            )
            if untrue:
                self.found.wrong.append(Wrong(f"why {block.name!r} is not exact", math.inf, f"untrue: {why}"))
        for question, why in self._reasons():
            if "could not be run on the data" in why:  # the oracle has run it
                self.found.wrong.append(Wrong(f"why {question}", math.inf, f"untrue: {why}"))

    def _reasons(self) -> Iterator[tuple[str, str]]:
        yield from self.found.refused.items()
        yield from self.found.fallback.items()

    def _answering(self, question: str) -> _Answering:
        return _Answering(question, self.found)


class _Answering:
    """A scope in which a refusal is noted, and any other error is a wrong answer; warnings are no errors."""

    def __init__(self, question: str, found: Findings) -> None:
        self.question, self.found = question, found
        self._warnings = warnings.catch_warnings()

    def __enter__(self) -> None:
        self._warnings.__enter__()
        warnings.simplefilter("ignore")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> bool:
        self._warnings.__exit__(kind, error, trace)
        if isinstance(error, InputError):
            self.found.refused[self.question] = str(error)
            return True
        if isinstance(error, Exception):
            where = traceback.extract_tb(trace)[-1]
            why = f"{type(error).__name__} at {where.filename}:{where.lineno}: {str(error)[:200]}"
            self.found.wrong.append(Wrong(self.question, math.inf, why))
            return True
        return False
