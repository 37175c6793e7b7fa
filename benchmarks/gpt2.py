"""A product with a block in the middle of GPT-2 at its full length, with and without what grows with that length.

The weights are random: neither time nor memory depends on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import hessianlens as hl
from benchmarks.attention import check, memory_note
from benchmarks.harness import Benchmark, Competitor, Report, Run
from benchmarks.results import OURS, Result
from benchmarks.wording import verdicts

_NAME, _BEFORE = "hessianlens", "plain attention, logits held"
LESS_MEMORY = 2
"""Times less memory that a product is to take."""


@dataclass(frozen=True)
class Gpt2Size:
    """How large a GPT-2 is, the length of its sequence, and the block."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    words: int = 50257
    length: int = 1024
    block: str = "layer6.attn.q"

    def describe(self) -> dict[str, int | str]:
        """The sizes by name."""
        sizes: dict[str, int | str] = {"layers": self.layers, "d": self.width, "heads": self.heads, "V": self.words}
        return {**sizes, "L": self.length, "block": self.block, "dtype": "float32"}


class Gpt2Problem:
    """A model with random weights, a sequence of random words, and a direction, from fixed seeds."""

    def __init__(self, size: Gpt2Size) -> None:
        import transformers

        self.size = size
        config = transformers.GPT2Config(
            n_layer=size.layers,
            n_embd=size.width,
            n_head=size.heads,
            vocab_size=size.words,
            n_positions=size.length,
            bos_token_id=0,
            eos_token_id=0,
        )
        torch.manual_seed(0)
        self.model: nn.Module = transformers.GPT2LMHeadModel(config)
        source = torch.Generator().manual_seed(1)
        self.data = {"input_ids": torch.randint(size.words, (1, size.length), generator=source)}
        self.direction = torch.randn(size.width**2, generator=source)

    def product(self, **how: Any) -> Run:
        """A Hessian-vector product of the block, forward pass and all, as the library makes it."""
        problem = hl.problem(self.model, self.data, check=False, verify=False, **how)

        def run() -> Tensor:
            found = hl.hessian(problem, self.size.block) @ self.direction
            assert isinstance(found, Tensor)
            return found

        return run


def _product(attention: str, logits: str, problem: Gpt2Problem) -> Run:
    return problem.product(attention=attention, logits=logits)


def _report(problem: object, outputs: Mapping[str, object], result: Result, quick: bool) -> Report:
    return {}, [*verdicts(result), *memory_note(result.memory, LESS_MEMORY, _BEFORE)]


BENCHMARK = Benchmark(
    name="gpt2_product",
    title="A product with a block in the middle of GPT-2, forward pass included",
    size=Gpt2Size(),
    tiny=Gpt2Size(layers=2, width=8, heads=2, words=11, length=6, block="layer1.attn.q"),
    make=Gpt2Problem,
    competitors=(
        Competitor(_NAME, partial(_product, "chunked", "chunked"), OURS),
        Competitor(_BEFORE, partial(_product, "math", "whole")),
    ),
    check=check,
    report=_report,
    target=1.0,
    against=_BEFORE,
    rounds=1,
    memory=(_NAME, _BEFORE),
)
