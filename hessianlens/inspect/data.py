"""Data that fits a model: from a file, or random; with targets and a loss where a file gives none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hessianlens.errors import InputError, expect
from hessianlens.inspect.data_files import read_batches
from hessianlens.inspect.loading import LoadedModel
from hessianlens.inspect.settings import check_amounts
from hessianlens.memory import ensure_fits
from hessianlens.models.adapters.batches import as_batches, targets_of
from hessianlens.models.adapters.trial_run import output_shape
from hessianlens.problems import Batch, batch_size, narrow_batch
from hessianlens.sizes import number_of

MASKED_SHARE = 0.15
_DEFAULT_LENGTH, _DEFAULT_SEQUENCES = 32, 8


@dataclass(frozen=True, eq=False)
class Data:
    """What a model is measured on.

    Attributes:
        batches: The batches.
        loss: As `hessianlens.problem` takes it.
        described: One line about them.
        notes: What was made up, a line each.
        random: Whether nothing of it came from the user.
        made_up: What the outputs are compared with where that is random too, such as "random labels".
    """

    batches: list[Batch]
    loss: Any
    described: str
    notes: tuple[str, ...] = ()
    random: bool = False
    made_up: str = ""


def prepare_data(
    loaded: LoadedModel,
    path: Path | None = None,
    *,
    sequences: int | None = None,
    length: int | None = None,
    seed: int = 0,
) -> Data:
    """Data for a model.

    Args:
        loaded: The model.
        path: A file; random data without one (for a toy the addition task, digits as drawn).
        sequences: How many are taken from the file, or drawn (8).
        length: Tokens of a sequence, at most; 32 by default, or what the model allows.
        seed: Draws random data, masked positions and targets.

    >>> from hessianlens.inspect.loading import load_model
    >>> prepare_data(load_model("toy:d_model=8"), sequences=4).described
    'the addition task, 4 sequences'
    """
    check_amounts(sequences, length)
    most = _longest(loaded)
    width = min(_DEFAULT_LENGTH, most or _DEFAULT_LENGTH) if length is None else length
    if path is not None:
        batches = _first(read_batches(path, width, loaded.tokenizer), sequences)
        described = f"{number_of(sum(map(batch_size, batches)), 'sequence')} of '{path}'"
        return _completed(loaded, batches, described, seed, most)
    count = _DEFAULT_SEQUENCES if sequences is None else sequences
    tokens = loaded.task.context if loaded.task is not None else width
    ensure_fits(
        "Random data", (count, tokens), torch.int64, torch.device("cpu"), "take fewer --sequences or a --length"
    )
    if loaded.task is not None:
        described = f"the addition task, {number_of(count, 'sequence')}"
        return Data([loaded.task.batch(count, seed, carries="none")], loaded.task.cross_entropy, described, random=True)
    batch, described = _random(loaded, count, width, seed)
    found = _completed(loaded, [batch], described, seed, most)
    return replace(found, random=True, made_up=found.made_up or ("random labels" if "labels" in batch else ""))


def _first(batches: list[Batch], sequences: int | None) -> list[Batch]:
    """The first so many sequences of the batches."""
    if sequences is None:
        return batches
    kept: list[Batch] = []
    for batch in batches:
        if sequences <= 0:
            break
        kept.append(as_batches([batch], sequences)[0])
        sequences -= batch_size(kept[-1])
    return kept


def _random(loaded: LoadedModel, count: int, length: int, seed: int) -> tuple[Batch, str]:
    source, config = torch.Generator().manual_seed(seed), loaded.config
    if loaded.model.main_input_name == "pixel_values":
        size = config.image_size if isinstance(config.image_size, (tuple, list)) else (config.image_size,) * 2
        pixels = torch.randn(count, config.num_channels, *size, generator=source)
        images = number_of(count, "image")
        batch, described = {"pixel_values": pixels}, f"RANDOM pixels, {images} of {size[0]}x{size[1]}"
    else:
        tokens = torch.randint(_vocabulary(loaded), (count, length), generator=source)
        batch, described = (
            {"input_ids": tokens},
            f"RANDOM token ids, {number_of(count, 'sequence')} of {length}",
        )
    if loaded.head.endswith("classification"):
        batch["labels"] = torch.randint(config.num_labels, (count,), generator=source)
    elif loaded.head == "seq2seq-lm":
        batch["labels"] = torch.randint(_vocabulary(loaded), (count, length), generator=source)
    return batch, described + (", random labels" if "labels" in batch else "")


def _completed(loaded: LoadedModel, batches: list[Batch], described: str, seed: int, most: int | None) -> Data:
    """The batches under the model's own names, with targets."""
    named = [_named(loaded, batch) for batch in batches]
    for batch in named:
        _check_tokens(loaded, batch, most)
    if loaded.task is not None:
        return Data(named, loaded.task.cross_entropy, described)
    missing = any(targets_of(batch) is None for batch in named)
    if loaded.head.endswith("classification") and missing:
        raise InputError("data: a classifier needs labels; give them in the file (.jsonl with label, .pt with labels).")
    if loaded.head == "seq2seq-lm" and missing:
        raise InputError(
            "data: an encoder with a decoder needs labels; give them in the file (.jsonl or .pt with labels)."
        )
    makers: dict[str, tuple[Callable[..., Batch], str]] = {
        "masked-lm": (_masked, f"{MASKED_SHARE:.0%} of the tokens are masked and predicted (seed {seed})"),
        "encoder": (_random_targets, f"a plain encoder has no loss: square loss to random targets (seed {seed})"),
    }
    if loaded.head not in makers or not missing:
        return Data(named, "square" if loaded.head == "encoder" else None, described)
    make, note = makers[loaded.head]
    source = torch.Generator().manual_seed(seed)
    loss = "square" if loaded.head == "encoder" else None
    made_up = "random targets" if loaded.head == "encoder" else ""
    return Data([make(loaded, batch, source) for batch in named], loss, described, (note,), made_up=made_up)


def _named(loaded: LoadedModel, batch: Batch) -> dict[str, Tensor]:
    """A batch as keyword arguments of the model."""
    own = "tokens" if loaded.task is not None else str(loaded.model.main_input_name)
    if isinstance(batch, Mapping):
        kept = {own if key in ("input_ids", "tokens") else str(key): value for key, value in batch.items()}
        return {own: kept[own]} if loaded.task is not None and own in kept else kept
    if isinstance(batch, Tensor) or loaded.task is not None:
        return {own: batch if isinstance(batch, Tensor) else batch[0]}
    return {own: batch[0], "labels": batch[1]} if len(batch) > 1 else {own: batch[0]}


def _check_tokens(loaded: LoadedModel, batch: Mapping[str, Tensor], most: int | None) -> None:
    """Token ids that the model knows, in sequences that it can take."""
    ids = batch.get("tokens", batch.get("input_ids"))
    if ids is None:
        return
    expect(
        not ids.is_floating_point() and ids.ndim == 2,
        f"data: got {ids.dtype} of shape {tuple(ids.shape)}, expected whole token ids, one row per sequence.",
    )
    known, largest = _vocabulary(loaded), int(ids.max())
    expect(
        int(ids.min()) >= 0 and largest < known,
        f"data: got token ids {int(ids.min())} .. {largest}, expected 0 .. {known - 1}, the model's vocabulary.",
    )
    expect(
        most is None or ids.shape[1] <= most,
        f"data: got sequences of {ids.shape[1]} tokens, expected at most {most}, the model's positions; "
        f"cut them with --length {most}.",
    )


def _vocabulary(loaded: LoadedModel) -> int:
    table = loaded.model.get_parameter("token_embedding") if loaded.task is not None else None
    return len(table) if table is not None else int(loaded.config.get_text_config().vocab_size)


def _longest(loaded: LoadedModel) -> int | None:
    if loaded.task is not None:
        return loaded.task.context
    found = getattr(loaded.config, "max_position_embeddings", None)
    return found if isinstance(found, int) and found > 0 else None


def _masked(loaded: LoadedModel, batch: Mapping[str, Tensor], source: torch.Generator) -> Batch:
    """Some tokens become targets and, if the model's tokenizer has a mask, are hidden behind it."""
    ids = batch["input_ids"]
    chosen = torch.rand(ids.shape, generator=source) < MASKED_SHARE
    chosen[:, 0] |= ~chosen.any(1)
    chosen &= batch.get("attention_mask", torch.ones_like(ids)) != 0
    mask = loaded.tokenizer().mask_token_id if loaded.has_tokenizer else None
    hidden = ids if mask is None else ids.masked_fill(chosen, mask)
    return {**batch, "input_ids": hidden, "labels": ids.masked_fill(~chosen, -100)}


def _random_targets(loaded: LoadedModel, batch: Mapping[str, Tensor], source: torch.Generator) -> Batch:
    shape = output_shape(loaded.model, batch)
    return {**batch, "labels": torch.randn(shape, generator=source)}


def share_of(batches: Sequence[Batch], rank: int, size: int) -> list[Batch]:
    """The sequences of one of several processes: stretches of equal length, the first ones longer by one if needed.

    Args:
        batches: All of the data.
        rank: The number of the process.
        size: How many there are.

    >>> import torch
    >>> [[batch.tolist() for batch in share_of([torch.arange(3), torch.arange(3, 5)], rank, 2)] for rank in (0, 1)]
    [[[0, 1, 2]], [[3, 4]]]
    """
    total, found, before = sum(map(batch_size, batches)), [], 0
    each, more = divmod(total, size)
    start = rank * each + min(rank, more)
    stop = start + each + (rank < more)
    for batch in batches:
        count = batch_size(batch)
        first, last = max(start - before, 0), min(stop - before, count)
        if first < last:
            found.append(batch if last - first == count else narrow_batch(batch, first, last))
        before += count
    return found


def caveats(loaded: LoadedModel, data: Data) -> tuple[str, ...]:
    """What was drawn: weights, inputs, and what the outputs are compared with.

    >>> from hessianlens.inspect.data import prepare_data
    >>> from hessianlens.inspect.loading import load_model
    >>> toy = load_model("toy:d_model=4")
    >>> caveats(toy, prepare_data(toy))
    ('random weights',)
    """
    found = ["random weights"] if loaded.random_weights else []
    if data.random and loaded.task is None:
        found.append("random pixels" if loaded.model.main_input_name == "pixel_values" else "random token ids")
    return (*found, *([data.made_up] if data.made_up else []))


def advice_with_caveats(advice: str, loaded: LoadedModel, data: Data) -> str:
    """Advice behind what it cannot say; none at all where the loss itself was made up."""
    drawn = caveats(loaded, data)
    if loaded.head == "encoder" and data.made_up:
        return (
            f"Nothing can be concluded: the loss is made up ({data.made_up}). Give --data with labels, or a --head "
            "that has a loss."
        )
    if not drawn:
        return advice
    limit = (
        "this says how the architecture scales at initialisation, not how a trained model does"
        if loaded.random_weights
        else "scales may differ on real data; give it with --data"
    )
    listed = " and ".join(filter(None, [", ".join(drawn[:-1]), drawn[-1]]))
    return f"From {listed}: {limit}. {advice}"
