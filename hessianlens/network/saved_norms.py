"""Exact norms in a file, one line per block, so that long work goes on where it stopped."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hessianlens.errors import InputError, Refusal
from hessianlens.files import JsonLines
from hessianlens.network.base.all_data import on_all_data
from hessianlens.problems import Problem

_FORMAT = "hessianlens exact norms, 1"


class SavedNorms:
    """The exact norms of a problem's blocks that a file holds.

    Every block is written as soon as it is known. A line that was cut off when the process ended is left out. A file
    that belongs to other weights, data or loss is refused.

    Args:
        path: The file; made when the first norm is known.
        problem: What the norms belong to.
    """

    def __init__(self, path: str | os.PathLike[str], problem: Problem) -> None:
        self._writes = problem.ranks.first
        everything = on_all_data(problem)
        if isinstance(everything, Refusal):
            raise InputError(f"resume: there are no exact norms to store, {everything}; leave it out.")
        header = {"format": _FORMAT, "problem": fingerprint(everything)}
        self._file = JsonLines(path, "resume", header, "exact norms")
        self._known = problem.ranks.all_gather("norms of an earlier run", self._read)[0]

    def _read(self) -> dict[str, dict[str, Any]]:
        """What the file holds; the first of several processes looks for all of them."""
        lines = self._file.read() if self._writes else []
        if lines and lines[0] != self._file.header:
            raise InputError(
                f"resume: {self._file.path} belongs to other weights, data or another loss than these; name another "
                "file."
            )
        found: dict[str, dict[str, Any]] = {}
        for line in lines[1:]:
            known = found.setdefault(line["block"], {"norms": {}, "why": line["why"]})
            known["norms"] |= line["norms"]
        return found

    def norms(self, block: str, parts: Sequence[str]) -> dict[str, float] | None:
        """The norms of parts of a block, if all of them are known."""
        found = self._known.get(block, {}).get("norms", {})
        return {part: found[part] for part in parts} if all(part in found for part in parts) else None

    def why(self, block: str) -> str:
        """The reason why they are exact."""
        return str(self._known[block]["why"])

    def add(self, block: str, norms: Mapping[str, float], why: str) -> None:
        """Write the norms of a block, in the first of several processes; what is not finite is not kept."""
        if not self._writes or not all(math.isfinite(norm) for norm in norms.values()):
            return
        self._known.setdefault(block, {"norms": {}, "why": why})["norms"] |= norms
        self._file.append({"block": block, "norms": dict(norms), "why": why})


def fingerprint(problem: Problem) -> str:
    """A digest of the weights, the data and the value of the loss, however the data is cut into batches."""
    digests: dict[str, Any] = {}
    for name, tensor in problem.params.items():
        _add(digests, f"parameter {name}", tensor)
    loss = 0.0
    for batch in problem.data:
        _add(digests, "data", batch)
        with problem.scope(), torch.no_grad():
            loss += float(problem.batch_loss(problem.params, batch))
    every = hashlib.blake2b(f"{loss:.4e}".encode(), digest_size=16)
    for name in sorted(digests):
        every.update(name.encode() + digests[name].digest())
    return every.hexdigest()


def _add(digests: dict[str, Any], name: str, value: object) -> None:
    """What a value holds, to the digest of its place: tensors go on along their first axis."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            _add(digests, f"{name}.{key}", entry)
    elif isinstance(value, list | tuple):
        for number, entry in enumerate(value):
            _add(digests, f"{name}.{number}", entry)
    elif isinstance(value, Tensor):
        plain = value.detach().cpu().contiguous()
        place = f"{name} {plain.dtype}{tuple(plain.shape[1:])}"
        digest = digests.setdefault(place, hashlib.blake2b())
        digest.update(plain.flatten().view(torch.uint8).numpy() if plain.numel() else b"")
    else:
        digests.setdefault(f"{name} {value!r}", hashlib.blake2b())
