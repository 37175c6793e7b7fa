"""What is asked of a model, as texts and numbers; checked without torch, so that a typing error is answered at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hessianlens.errors import check_choice, expect
from hessianlens.inspect.data_kinds import check_amounts, check_data_file
from hessianlens.inspect.heads import HEADS
from hessianlens.inspect.specification import check_there, parse_specification
from hessianlens.inspect.toy import check_toy
from hessianlens.parts import PARTS
from hessianlens.problems.selection import check_pattern
from hessianlens.sizes import parse_size

DTYPES = ("float32", "float64")
"""Names of the dtypes that a model can be measured in."""


@dataclass(frozen=True)
class Settings:
    """What is asked for, as texts and numbers.

    Attributes:
        model: Name of the model, as `load_model` takes it.
        data: A file; None for random data.
        blocks: Patterns; all blocks if empty.
        per_head: Whether heads are blocks of their own.
        parts: Among "full", "ggn" and "functional".
        probes: Random vectors a block.
        seed: Draws probes, random data and random weights.
        dtype: "float32" or "float64".
        device: Where to compute.
        max_memory: Such as "2GB"; None for no limit.
        head: What a Hugging Face model predicts; "auto" lets its configuration decide.
        sequences: How many sequences of data.
        length: Tokens of a sequence, at most.
    """

    model: str
    data: Path | None = None
    blocks: tuple[str, ...] = ()
    per_head: bool = False
    parts: tuple[str, ...] = PARTS
    probes: int = 20
    seed: int = 0
    dtype: str = "float64"
    device: str = "cpu"
    max_memory: str | None = None
    head: str = "auto"
    sequences: int | None = None
    length: int | None = None

    def __post_init__(self) -> None:
        """Settings that no model could make sense of are refused before one is loaded."""
        check_choice("dtype", self.dtype, DTYPES)
        expect(self.probes >= 2, f"probes: got {self.probes}, expected at least 2 for an error bar.")
        expect(0 <= self.seed < 2**63, f"seed: got {self.seed}, expected a whole number from 0 to 2^63 - 1.")
        expect(len(self.parts) > 0, f"parts: got none, expected some of {', '.join(PARTS)}.")
        for part in self.parts:
            check_choice("parts", part, PARTS)
        check_amounts(self.sequences, self.length)
        check_choice("head", self.head, ("auto", *HEADS))
        for pattern in self.blocks:
            check_pattern(pattern)
        if self.max_memory is not None:
            parse_size(self.max_memory)
        self._check_places()

    def _check_places(self) -> None:
        """What is named is there, as far as this machine knows."""
        specification = parse_specification(self.model)
        if specification.kind == "toy":
            check_toy(specification.options)
        else:
            check_there(specification)
        if self.data is not None:
            check_data_file(self.data)
