"""The options of a toy on the command line, refused without torch as the model itself would refuse them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from hessianlens.errors import check_choice, expect
from hessianlens.inspect.specification import Value, check_options
from hessianlens.models.arguments import (
    MLP_ACTIVATION_NAMES,
    QUERY_KEY,
    check_count,
    check_norm,
    check_number,
    check_seed,
    head_width,
)
from hessianlens.notation import ACTIVATION_NAMES


def check_toy(options: Mapping[str, Value]) -> None:
    """Every option is one of `ToyOptions`, and has a value that it can have.

    >>> check_toy({"layers": 2, "norm": "pre", "digits": 3})
    >>> check_toy({"layer": 2})
    Traceback (most recent call last):
    ...
    hessianlens.errors.InputError: model: toy has no option 'layer'; did you mean layers?
    """
    check_options("toy", options, [field.name for field in fields(ToyOptions)])
    given: dict[str, object] = dict(options)
    ToyOptions(**given)  # type: ignore[arg-type]


@dataclass(frozen=True)
class ToyOptions:
    """The arguments of `hessianlens.models.Transformer` but its dtype, and the digits of its task.

    None for `vocab` and `context` means what the task needs.
    """

    layers: int = 1
    d_model: int = 128
    heads: int = 1
    d_mlp: int | None = None
    vocab: int | None = None
    context: int | None = None
    attention: str = "softmax"
    norm: str | None = None
    residual_scale: float = 1.0
    seed: int = 0
    d_head: int | None = None
    query_key: str = "dual"
    temperature: float = 1.0
    causal: bool = True
    mlp: bool = True
    mlp_activation: str = "relu"
    attention_bias: bool = True
    init_scale: float = 0.8
    embedding_std: float | None = None
    digits: int = 5

    def __post_init__(self) -> None:
        """Refuse what the model would refuse."""
        for name in ("layers", "d_model", "heads", "digits"):
            check_count(name, getattr(self, name))
        for name in ("d_mlp", "vocab", "context", "d_head"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        if self.d_head is None:
            head_width(self.d_model, self.heads)
        check_number("residual_scale", self.residual_scale)
        check_number("temperature", self.temperature, 0.0, strictly=True)
        for name in ("init_scale", "embedding_std"):
            if name == "init_scale" or self.embedding_std is not None:
                check_number(name, getattr(self, name), 0.0)
        check_seed(self.seed)
        check_norm(self.norm)
        check_choice("attention", self.attention, ACTIVATION_NAMES)
        check_choice("query_key", self.query_key, QUERY_KEY)
        check_choice("mlp_activation", self.mlp_activation, MLP_ACTIVATION_NAMES)
        for name in ("causal", "mlp", "attention_bias"):
            value = getattr(self, name)
            expect(isinstance(value, bool), f"{name}: got {value!r}, expected true or false.")
