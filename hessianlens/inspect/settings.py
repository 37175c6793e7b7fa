"""Settings of a measurement as texts and numbers; checked without torch, so that a typing error is answered at once."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from hessianlens.errors import InputError, check_choice, check_number, check_whole, expect
from hessianlens.inspect.model_names import HEADS, check_there, check_toy, parse_specification
from hessianlens.parts import NORM_METHODS, PARTS, check_parts, method_name
from hessianlens.problems.selection import check_pattern
from hessianlens.sizes import parse_size, parse_time

DTYPES = ("float32", "float64")
"""Names of the dtypes that a model can be measured in."""
RTOL = 0.05
"""Relative half-width of intervals that is narrow enough where there is a budget and nothing else is said."""
PROBES = 20
"""Probe vectors per block where neither their number nor a budget is given."""


EXTRAS = ("heads", "pairs", "spectrum=", "quantise=", "groups=")
"""What can be asked for beside the norms; behind an equals sign comes a value."""


@dataclass(frozen=True)
class Extras:
    """What is asked for beside the norms of blocks.

    Attributes:
        heads: Whether heads are blocks of their own.
        pairs: Whether the norms of all pairs of blocks are found.
        spectra: Patterns of blocks whose extremal eigenvalues and inertia are found.
        bits: Of rounded weights whose cost is found; None for none.
        base_lr: Learning rate of the median parameter, for groups of them.
    """

    heads: bool = False
    pairs: bool = False
    spectra: tuple[str, ...] = ()
    bits: int | None = None
    base_lr: float = 1e-3

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Extras:
        """From words with commas between them.

        >>> Extras.parse(["pairs,spectrum=layer0.attn.q", "quantise=4"])
        Extras(heads=False, pairs=True, spectra=('layer0.attn.q',), bits=4, base_lr=0.001)
        """
        words: list[str] = []
        for piece in (piece for text in texts for piece in text.split(",")):
            known = any(piece == word or (word.endswith("=") and piece.startswith(word)) for word in EXTRAS)
            if not known and words and words[-1].startswith("spectrum="):
                words[-1] += f",{piece}"  # a comma of the pattern
                continue
            names = ", ".join(f"{word}..." if word.endswith("=") else word for word in EXTRAS)
            expect(known, f"also: got {piece!r}, expected some of {names}.")
            words.append(piece)
        values: dict[str, list[str]] = {}
        for word in words:
            name, _, value = word.partition("=")
            values.setdefault(name, []).append(value)
        for pattern in values.get("spectrum", ()):
            check_pattern(pattern)
        bits, base_lr = (_number(name, values.get(name, [""])[-1]) for name in ("quantise", "groups"))
        return cls(
            heads="heads" in values,
            pairs="pairs" in values,
            spectra=tuple(values.get("spectrum", ())),
            bits=None if bits is None else check_whole("quantise", int(bits) if bits.is_integer() else bits, 1, 32),
            base_lr=cls.base_lr if base_lr is None else check_number("groups", base_lr, 0.0, strictly=True),
        )

    def words(self) -> list[str]:
        """The options that ask for the same, but for `heads`."""
        found = ["pairs"] if self.pairs else []
        found += [f"spectrum={pattern}" for pattern in self.spectra]
        found += [] if self.bits is None else [f"quantise={self.bits}"]
        return [word for extra in found for word in ("--also", extra)]


def _number(name: str, text: str) -> float | None:
    if not text:
        return None
    try:
        return float(text)
    except ValueError as error:
        raise InputError(f"also: got {name}={text}, expected a number behind {name}=.") from error


@dataclass(frozen=True)
class Settings:
    """What is asked for, as texts and numbers.

    Attributes:
        model: Name of the model, as `load_model` takes it.
        data: A file; None for random data.
        blocks: Patterns; all blocks if empty.
        per_head: Whether heads are blocks of their own.
        parts: Among "full", "ggn" (or "outer") and "functional".
        probes: Probe vectors per block; with a budget the most of them. Default: 20, with a budget no limit.
        budget: Such as "5m": time for everything; None for as long as the probes take.
        rtol: The relative half-width of intervals that is narrow enough: with a budget 0.05 by default; without one it
            lets sketches answer where they are cheaper, and probes are as many as it takes.
        seed: Draws probes, random data and random weights.
        dtype: "float32" or "float64".
        device: Where to compute.
        max_memory: Such as "2GB", for the whole process; None for most of what is free.
        head: What a Hugging Face model predicts; "auto" lets its configuration decide.
        sequences: How many sequences of data.
        length: Tokens of a sequence, at most.
        method: "auto", "exact", "sketch" or "probes", as for `hessianlens.block_norms`.
        resume: A file that exact norms are written to and taken from.
    """

    model: str
    data: Path | None = None
    blocks: tuple[str, ...] = ()
    per_head: bool = False
    parts: tuple[str, ...] = PARTS
    probes: int | None = None
    budget: str | None = None
    rtol: float | None = None
    seed: int = 0
    dtype: str = "float64"
    device: str = "cpu"
    max_memory: str | None = None
    head: str = "auto"
    sequences: int | None = None
    length: int | None = None
    method: str = "auto"
    resume: Path | None = None

    def __post_init__(self) -> None:
        """Settings that no model could make sense of are refused before one is loaded."""
        check_choice("dtype", self.dtype, DTYPES)
        method_name(self.method, NORM_METHODS)
        expect(self.most_probes >= 1, f"probes: got {self.probes}, expected at least 1.")
        positive = self.rtol is None or self.rtol > 0
        expect(positive, f"rtol: got {self.rtol}, expected a positive relative width.")
        for given, parse in ((self.budget, parse_time), (self.max_memory, parse_size)):
            if given is not None:
                parse(given)
        expect(0 <= self.seed < 2**63, f"seed: got {self.seed}, expected a whole number from 0 to 2^63 - 1.")
        object.__setattr__(self, "parts", check_parts(self.parts))
        check_amounts(self.sequences, self.length)
        check_choice("head", self.head, ("auto", *HEADS))
        for pattern in self.blocks:
            check_pattern(pattern)
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

    def command(self, *more: str, other: str | None = None) -> str:
        """The command that asks for the same, and for more; with another model to be compared with.

        >>> Settings("toy:d_model=8", blocks=("layer*.attn.q",), probes=4).command("--out", "page.html")
        "hessianlens inspect toy:d_model=8 --blocks 'layer*.attn.q' --probes 4 --out page.html"
        """
        models = ["inspect", self.model] if other is None else ["compare", self.model, other]
        words = ["hessianlens", *models]
        for name, default in ((field.name, field.default) for field in fields(self) if field.name != "model"):
            value = getattr(self, name)
            if value == default:
                continue
            option = f"--{name.replace('_', '-')}"
            if name == "per_head":
                words += ["--also", "heads"]
            elif name == "resume":
                words += ["--out", f"jsonl:{value}"]
            elif name == "parts":
                words += [option, ",".join(value)]
            elif isinstance(value, tuple):
                words += [word for item in value for word in (option, item)]
            else:
                words += [option, str(value)]
        return shlex.join([*words, *more])

    @property
    def most_probes(self) -> float:
        """Probe vectors per block at most."""
        if self.probes is not None:
            return self.probes
        return PROBES if self.budget is None else float("inf")

    @property
    def narrow_enough(self) -> float:
        """The relative half-width at which a block with a budget gets no more probes."""
        return RTOL if self.rtol is None else self.rtol

    @property
    def seconds(self) -> float | None:
        """The budget in seconds."""
        return None if self.budget is None else parse_time(self.budget)


DATA_KINDS = (".pt", ".npy", ".jsonl", ".txt")
"""Endings of files that can be read; see `hessianlens.inspect.data_files`."""


def check_data_file(path: Path) -> None:
    """A file of a kind that can be read is there."""
    expect(path.suffix in DATA_KINDS, f"data: got '{path}', expected a file that ends in {', '.join(DATA_KINDS)}.")
    expect(path.is_file(), f"data: there is no file '{path}'.")


def check_amounts(sequences: int | None, length: int | None) -> None:
    """At least one sequence, of at least one token, where they are given."""
    for name, given in (("sequences", sequences), ("length", length)):
        expect(given is None or given > 0, f"{name}: got {given}, expected a positive whole number.")
