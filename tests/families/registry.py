"""Every text class of transformers' auto-mappings, built small: the model, its data and its loss, or why not."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.models.auto import modeling_auto

from tests.families.configurations import IDS, LABELS, VOCAB, Sizes, small, variants

transformers.logging.set_verbosity_error()

CHOICES = 2
MOST_PARAMETERS = 200_000
"""A model with more is not small."""

TASKS = {
    "causal": "CAUSAL_LM",
    "seq2seq": "SEQ_TO_SEQ_CAUSAL_LM",
    "masked": "MASKED_LM",
    "sequence": "SEQUENCE_CLASSIFICATION",
    "token": "TOKEN_CLASSIFICATION",
    "question": "QUESTION_ANSWERING",
    "choice": "MULTIPLE_CHOICE",
}
"""Tasks and the auto-mapping of each."""


@dataclass(frozen=True)
class Case:
    """A class of transformers under a task."""

    model_type: str
    name: str
    task: str

    def __str__(self) -> str:
        return f"{self.model_type}-{self.name}-{self.task}"


@dataclass(frozen=True)
class NotBuilt:
    """Why a class cannot be built small, offline, and run with tokens alone as its input."""

    reason: str


def _cases() -> list[Case]:
    found: dict[tuple[str, str], Case] = {}
    for task, mapping in TASKS.items():
        names: Mapping[str, Any] = getattr(modeling_auto, f"MODEL_FOR_{mapping}_MAPPING_NAMES")
        for model_type, classes in names.items():
            for name in classes if isinstance(classes, (tuple, list)) else (classes,):
                found.setdefault((model_type, name), Case(model_type, name, task))
    return list(found.values())


CASES = _cases()
MODEL_TYPES = sorted({case.model_type for case in CASES})


def cases_of(model_type: str) -> list[Case]:
    return [case for case in CASES if case.model_type == model_type]


@dataclass(frozen=True)
class Built:
    """A small model in float64, its data, the number of labels or tokens it predicts, and its sizes."""

    case: Case
    model: nn.Module
    batch: dict[str, Tensor]
    sizes: Sizes


def build(case: Case) -> Built | NotBuilt:
    """The first variant of sizes that can be built and run on its data."""
    kind = getattr(transformers, case.name, None)
    if kind is None:
        return NotBuilt("transformers does not export it")
    first: str | None = None
    for sizes in variants():
        try:
            made = _attempt(case, kind, sizes)
        except Exception as error:  # a configuration or a model may raise anything
            first = first or _reason(error)
            continue
        if isinstance(made, Built):
            return made
        first = first or made.reason
    return NotBuilt(first or "no variant")


def _reason(error: Exception) -> str:
    """An error in one line; what a configuration asks of its own values, without the name of what checks it."""
    text = " ".join(str(error).split())
    if "Class validation error" in text:
        return f"its configuration asks: {text.rpartition('ValueError: ')[2]}"[:160]
    return f"{type(error).__name__}: {text[:160]}"


def _attempt(case: Case, kind: type, sizes: Sizes) -> Built | NotBuilt:
    config = small(kind.config_class, sizes, **_OPTIONS[case.task])
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = IDS["decoder_start"]
    with torch.device("meta"):
        size = sum(p.numel() for p in kind(config).parameters())
    if size > MOST_PARAMETERS:
        return NotBuilt(f"its smallest configuration has {size:,} parameters")
    torch.manual_seed(0)
    model = kind(config).eval()
    batch = data(case, model, sizes.length)
    with torch.no_grad(), without_cache(model):
        made = model(**{key: value for key, value in batch.items() if key not in TARGETS or config.is_encoder_decoder})
    if not all(torch.isfinite(each).all() for each in made.values() if isinstance(each, Tensor)):
        return NotBuilt("its outputs on short sequences are not finite")
    built = Built(case, scaled(model.to(torch.float64)), batch, sizes)
    if config.sub_configs:
        freeze_unused(built)
    return built


def freeze_unused(built: Built) -> None:
    """Parameters that text does not reach, as those of an encoder of images or sound, are no part of the problem."""
    model: Any = built.model
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    given = {key: value for key, value in built.batch.items() if key not in TARGETS or model.config.is_encoder_decoder}
    with without_cache(model):
        made = model(**given)
    outputs = [each for each in made.values() if isinstance(each, Tensor) and each.requires_grad]
    total = torch.stack([each.sum() for each in outputs]).sum()
    for parameter, slope in zip(parameters, torch.autograd.grad(total, parameters, allow_unused=True), strict=True):
        parameter.requires_grad_(slope is not None)


_CLASSES = {"num_labels": LABELS}
_OPTIONS: dict[str, dict[str, Any]] = {
    "causal": {"is_decoder": True},
    "masked": {},
    "seq2seq": {},
    "sequence": _CLASSES,
    "token": _CLASSES,
    "question": {},
    "choice": {},
}
"""What the configuration says besides sizes, by task."""


@contextmanager
def without_cache(model: Any) -> Iterator[None]:
    """A scope in which no configuration of a model asks for a cache of keys and values."""
    configs = [model.config, *(getattr(model.config, name, None) for name in model.config.sub_configs)]
    asking = [config for config in configs if getattr(config, "use_cache", False)]
    for config in asking:
        config.use_cache = False
    try:
        yield
    finally:
        for config in asking:
            config.use_cache = True


TARGETS = ("labels", "start_positions", "end_positions")


def scaled(model: nn.Module) -> nn.Module:
    """Every parameter is drawn anew: matrices keep the size of signals, gains are near one, nothing is zero."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.is_floating_point():
                continue
            noise = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
            if parameter.ndim < 2:
                gain = parameter.ndim == 1 and name.endswith("weight")
                parameter.copy_(0.3 * noise + (1.0 if gain else 0.0))
            else:
                parameter.copy_(noise * (1.0 if "emb" in name or "wte" in name else parameter.shape[-1] ** -0.5))
    return model


def data(case: Case, model: nn.Module, length: int) -> dict[str, Tensor]:
    """Two short sequences with what the task predicts; outside of causal models the last token is padding."""
    generator = torch.Generator().manual_seed(2)

    def tokens(*shape: int) -> Tensor:
        return torch.randint(5, VOCAB, shape, generator=generator)

    accepted = inspect.signature(model.forward).parameters
    shape = (2, CHOICES, length) if case.task == "choice" else (2, length)
    batch = {"input_ids": tokens(*shape)}
    if case.task in (
        "sequence",
        "question",
        "choice",
    ):  # some classes pool at the end of a sequence, or count separators
        batch["input_ids"][..., [0, 1, 2]] = IDS["eos"]
    if case.task != "causal" and "attention_mask" in accepted:
        mask = torch.ones(shape, dtype=torch.long)
        mask[-1, ..., -1] = 0
        batch["attention_mask"] = mask
    if case.task == "question":
        batch |= {"start_positions": torch.tensor([1, 0]), "end_positions": torch.tensor([3, 2])}
    elif case.task == "sequence":
        batch["labels"] = torch.tensor([0, LABELS - 1])
    elif case.task == "choice":
        batch["labels"] = torch.tensor([1, 0])
    elif case.task == "token":
        batch["labels"] = torch.randint(0, LABELS, shape, generator=generator)
    elif case.task == "seq2seq":
        batch["labels"] = tokens(2, length)
    elif case.task == "masked":
        batch["labels"] = tokens(*shape)
        batch["labels"][0, 1] = -100
    if case.task in ("token", "masked") and "attention_mask" in batch:  # padding has no loss
        batch["labels"] = batch["labels"].masked_fill(batch["attention_mask"] == 0, -100)
    return batch
