"""Shapes in the signatures of hessianlens are checked while the tests run; `conftest.py` asks for it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import FunctionType, ModuleType
from typing import Any, get_args

from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray, jaxtyped

_METHODS = (FunctionType, classmethod, staticmethod, property, cached_property)

_check = beartype(conf=BeartypeConf(is_pep484_tower=True))


def install(package: str) -> None:
    """Check the modules of a package that are imported from now on."""
    sys.meta_path.insert(0, _Finder(package))


class _Finder(MetaPathFinder):
    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if f"{name}.".startswith(f"{self.package}.") else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        for name, value in list(vars(module).items()):
            if getattr(value, "__module__", None) == module.__name__:
                setattr(module, name, with_checks(value))


def with_checks(value: Any) -> Any:
    """A function with its shapes checked, a class with those of its methods and fields; other things as they are."""
    if isinstance(value, FunctionType):
        return jaxtyped(value, typechecker=checked) if "[Tensor, " in str(value.__annotations__) else value
    if isinstance(value, classmethod | staticmethod):
        return type(value)(with_checks(value.__func__))
    if isinstance(value, property):
        return property(with_checks(value.fget), value.fset, value.fdel, value.__doc__)
    if isinstance(value, cached_property):
        value.func = with_checks(value.func)
    if isinstance(value, type):
        for name, attribute in list(vars(value).items()):
            if name != "__new__" and isinstance(attribute, _METHODS):
                setattr(value, name, with_checks(attribute))
    return value


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


def has_shape(hint: Any) -> bool:
    """Whether a shape is part of an annotation."""
    return (isinstance(hint, type) and issubclass(hint, AbstractArray)) or any(map(has_shape, get_args(hint)))
