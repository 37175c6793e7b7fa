"""What can be asked of data: which files can hold it, and how much of it."""

from __future__ import annotations

from pathlib import Path

from hessianlens.errors import expect

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
