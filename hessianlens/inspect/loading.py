"""From the name of a model to the model, if its weights fit in memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hessianlens.errors import InputError, check_choice, expect
from hessianlens.inspect.hugging_face import config_model, saved_model, tokenizer_of
from hessianlens.inspect.model_names import HEADS, Specification, check_toy, parse_specification
from hessianlens.inspect.resources import ensure_model_fits, ensure_saved_fits
from hessianlens.models import Transformer
from hessianlens.tasks import Addition


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model and what is known about it.

    Attributes:
        model: The model.
        head: What it predicts: "toy", or one of `hessianlens.inspect.model_names.HEADS`.
        described: One line about it.
        task: The task of a toy.
        source: Where a tokenizer may lie; None if the weights are random.
    """

    model: nn.Module
    head: str
    described: str
    task: Addition | None = None
    source: str | None = None

    @property
    def config(self) -> Any:
        """The configuration of a Hugging Face model."""
        return getattr(self.model, "config", None)

    @property
    def random_weights(self) -> bool:
        """Whether the weights were drawn, not learned."""
        return self.source is None

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def has_tokenizer(self) -> bool:
        """Whether there is a tokenizer beside the model."""
        try:
            self.tokenizer()
        except InputError:
            return False
        return True

    def tokenizer(self) -> Any:
        """The tokenizer saved with the model; `InputError` if there is none."""
        return tokenizer_of(self.source, type(self.model).__name__)


def load_model(name: str, *, head: str = "auto", seed: int = 0, dtype: torch.dtype = torch.float64) -> LoadedModel:
    """The model behind a name.

    Args:
        name: ``toy:layers=2,d_model=64`` for `hessianlens.models.Transformer` (with ``digits=`` for its task),
            ``config:gpt2?n_layer=2`` or a path to a config.json for a Hugging Face model with random weights, else a
            folder or hub name of a saved one.
        head: What a Hugging Face model predicts; "auto" lets its configuration decide.
        seed: Draws random weights.
        dtype: Dtype of a toy's weights and of the derivatives; other models keep their own weights.

    >>> load_model("toy:layers=2,d_model=8,digits=2").described
    'Transformer(layers=2, d_model=8), random weights'
    """
    check_choice("head", head, ("auto", *HEADS))
    specification = parse_specification(name)
    if specification.kind == "toy":
        return _toy(specification, seed, dtype)
    if specification.kind == "config":
        model, found = config_model(specification, head, seed, dtype)
        return LoadedModel(model, found, f"{type(model).__name__}, random weights")
    ensure_saved_fits(Path(specification.name), dtype)
    model, found = saved_model(specification.name, head)
    return LoadedModel(model, found, f"{type(model).__name__} from {specification.name}", source=specification.name)


def _toy(specification: Specification, seed: int, dtype: torch.dtype) -> LoadedModel:
    options: dict[str, Any] = dict(specification.options)
    check_toy(specification.options)
    task = Addition(options.pop("digits", 5))
    shown = ", ".join(f"{name}={value}" for name, value in options.items())
    asked = {"vocab": task.vocab, "context": task.context, "seed": seed, **options, "dtype": dtype}
    layers = asked.get("layers", 1)
    if isinstance(layers, int) and layers > 0:
        ensure_model_fits("the toy", lambda count: Transformer(**{**asked, "layers": count}), layers, dtype)
    model = Transformer(**asked)
    for size, wanted, least in (
        ("vocab", len(model.token_embedding), task.vocab),
        ("context", len(model.position_embedding), task.context),
    ):
        expect(wanted >= least, f"model: got {size}={wanted}, expected at least {least} for its task, addition.")
    return LoadedModel(model, "toy", f"Transformer({shown}), random weights", task)
