"""Shapes in signatures are checked while the tests run; `--jaxtyping-packages` in pyproject.toml says where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray

_check = beartype(conf=BeartypeConf(is_pep484_tower=True))


def has_shape(hint: Any) -> bool:
    """Whether a shape is part of an annotation."""
    return (isinstance(hint, type) and issubclass(hint, AbstractArray)) or any(map(has_shape, get_args(hint)))


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Check shapes and nothing else, once a function has returned: what it refuses, it refuses in its own words.

    jaxtyping gives every signature twice: without its result before the call, and with it after. The first is let pass.
    """
    hints = function.__annotations__
    shapes = {name: hint for name, hint in hints.items() if has_shape(hint)}
    if not shapes or hints.get("return") is Any:
        return function
    function.__annotations__ = shapes
    return _check(function)
