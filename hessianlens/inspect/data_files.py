"""Batches from a file: saved tensors, arrays of token ids, examples line by line, or plain text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hessianlens.errors import InputError, expect
from hessianlens.inspect.settings import check_data_file
from hessianlens.models.adapters.batches import as_batches
from hessianlens.problems import Batch
from hessianlens.sizes import number_of

_PADDING = {"input_ids": 0, "attention_mask": 0, "token_type_ids": 0, "position_ids": 0, "labels": -100}
"""What fills up shorter sequences; padded input_ids are hidden by the mask and never seen."""

Tokenizer = Callable[[], Any]


def read_batches(path: Path, length: int, tokenizer: Tokenizer) -> list[Batch]:
    """The batches of a file, by its ending.

    ``.pt`` holds a batch or a list of batches, ``.npy`` token ids (one stream or one row per sequence) or pixels,
    ``.jsonl`` one example per line with ``input_ids`` or ``text`` (and ``labels``), ``.txt`` text.

    Args:
        path: The file.
        length: Tokens of the sequences that a stream or a text is cut into; longer examples are cut off.
        tokenizer: Gives the model's tokenizer, if text is met.
    """
    readers: dict[str, Callable[[], list[Batch]]] = {
        ".pt": lambda: _saved(path),
        ".npy": lambda: [_array(path, length)],
        ".jsonl": lambda: [_examples(path, length, tokenizer)],
        ".txt": lambda: [{"input_ids": _text(path, length, tokenizer)}],
    }
    check_data_file(path)
    return readers[path.suffix]()


def windows(stream: Sequence[int] | Tensor, length: int) -> Tensor:
    """A stream of tokens as rows of `length`; what is left at the end is dropped, a short stream is one row.

    >>> windows(range(7), 3)
    tensor([[0, 1, 2],
            [3, 4, 5]])
    """
    tokens = torch.as_tensor(stream, dtype=torch.int64)
    expect(tokens.numel() > 1, f"data: got {number_of(tokens.numel(), 'token')}, expected at least 2.")
    width = min(length, tokens.numel())
    return tokens[: tokens.numel() // width * width].reshape(-1, width)


def _saved(path: Path) -> list[Batch]:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a file that is no pickle fails wherever the reader stumbles
        raise InputError(
            f"data: '{path}' could not be read as tensors; expected what torch.save makes of a tensor, a tuple or a "
            "dict of tensors, or a list of those (of a tokenizer's output, save dict(output))."
        ) from error
    return as_batches(found)


def _array(path: Path, length: int) -> Batch:
    try:
        found = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise InputError(f"data: '{path}' could not be read as an array of numbers ({error}).") from error
    if np.issubdtype(found.dtype, np.floating):
        return torch.from_numpy(found)
    expect(
        np.issubdtype(found.dtype, np.integer) and found.ndim in (1, 2),
        f"data: '{path}' holds {found.dtype} of shape {found.shape}, expected token ids: whole numbers, a stream or "
        "one row per sequence.",
    )
    tokens = torch.from_numpy(found.astype(np.int64))
    return windows(tokens, length) if tokens.ndim == 1 else tokens[:, :length]


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"data: '{path}' could not be read ({error}); expected text in UTF-8.") from error


def _text(path: Path, length: int, tokenizer: Tokenizer) -> Tensor:
    text = _read_text(path)
    expect(bool(text.strip()), f"data: '{path}' is empty.")
    return windows(tokenizer()(text, add_special_tokens=False, verbose=False)["input_ids"], length)


def _examples(path: Path, length: int, tokenizer: Tokenizer) -> Batch:
    """One padded batch of all lines."""
    records = list(_lines(path))
    expect(len(records) > 0, f"data: '{path}' holds no example.")
    if any("text" in record for record in records):
        made = tokenizer()
        records = [_tokenised(record, made) for record in records]
    keys = set(records[0])
    for number, record in enumerate(records, 1):
        expect(
            set(record) == keys,
            f"data: line {number} of '{path}' has {sorted(record)}, expected {sorted(keys)} as line 1.",
        )
    batch = {key: _padded(key, [record[key] for record in records], length, path) for key in records[0]}
    if isinstance(records[0].get("input_ids"), list) and "attention_mask" not in batch:
        batch["attention_mask"] = _padded(
            "attention_mask", [[1] * len(record["input_ids"]) for record in records], length, path
        )
    return batch


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(_read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise InputError(f"data: line {number} of '{path}' is not JSON ({error}).") from error
        expect(
            isinstance(record, Mapping) and ("input_ids" in record or "text" in record or "pixel_values" in record),
            f"data: line {number} of '{path}' has neither input_ids nor text, expected one of them.",
        )
        yield {("labels" if key == "label" else key): value for key, value in record.items()}


def _tokenised(record: Mapping[str, Any], tokenizer: Any) -> dict[str, Any]:
    if "text" not in record:
        return dict(record)
    ids = tokenizer(record["text"], verbose=False)["input_ids"]
    return {**{key: value for key, value in record.items() if key != "text"}, "input_ids": ids}


def _padded(key: str, values: list[Any], length: int, path: Path) -> Tensor:
    """Sequences filled up to the longest; anything else must have one shape."""
    if key in _PADDING and all(isinstance(value, list) for value in values):
        cut = [value[:length] for value in values]
        width = max(map(len, cut))
        values = [value + [_PADDING[key]] * (width - len(value)) for value in cut]
    try:
        return torch.tensor(values)
    except (TypeError, ValueError) as error:
        raise InputError(f"data: {key} of '{path}' are not numbers of one shape ({error}).") from error
