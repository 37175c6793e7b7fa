"""Whether a function can be seen to read nothing but its arguments, constants and PyTorch."""

from __future__ import annotations

import builtins
import dis
from collections.abc import Iterator
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType

import torch

_ATOMS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
_MODULES = ("torch", "math", "einops")
"""Packages whose functions know of no model."""
_OPAQUE = {"eval", "exec", "globals", "locals", "vars", "open", "__import__", "compile", "input"}
"""Functions of Python's that may reach anything."""
_IMPORT = dis.opmap["IMPORT_NAME"]


def is_self_contained(given: object) -> bool:
    """Whether something reaches no object that a model could leave anything in; False where that is not clear.

    Functions are followed into what they close over, their defaults and the globals that they name.

    >>> scale, kept = 2.0, []
    >>> is_self_contained(lambda out, batch: scale * torch.nn.functional.mse_loss(out, batch[1]))
    True
    >>> is_self_contained(lambda out, batch: out.sum() + kept[0])
    False
    """
    return _is_inert(given, set())


def _is_inert(given: object, known: set[int]) -> bool:
    if id(given) in known or isinstance(given, _ATOMS):
        return True
    known.add(id(given))
    if isinstance(given, (tuple, frozenset)):
        return all(_is_inert(one, known) for one in given)
    if isinstance(given, ModuleType):
        return given.__name__.split(".")[0] in _MODULES
    if isinstance(given, (type, BuiltinFunctionType)) or callable(given):
        own = getattr(given, "__module__", None) or type(getattr(given, "__self__", None)).__module__
        if str(own).split(".")[0] in (*_MODULES, "builtins"):
            return not isinstance(given, torch.nn.Module) and getattr(given, "__name__", "") not in _OPAQUE
    if isinstance(given, FunctionType):
        return all(_is_inert(one, known) for one in _reached(given)) and not any(map(_imports, _codes(given.__code__)))
    if isinstance(given, MethodType):
        ours = type(given.__self__).__module__.split(".")[0] == __name__.split(".")[0]
        return ours and all(_is_inert(one, known) for one in getattr(given.__self__, "__dict__", {"": None}).values())
    if isinstance(given, partial):
        return all(_is_inert(one, known) for one in (given.func, *given.args, *given.keywords.values()))
    return False


def _reached(function: FunctionType) -> Iterator[object]:
    """What a function closes over, its defaults, and the globals whose names occur in its code."""
    for cell in function.__closure__ or ():
        yield cell.cell_contents
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    yield from vars(function).values()
    for name in {name for code in _codes(function.__code__) for name in code.co_names}:
        if name in function.__globals__:
            yield function.__globals__[name]
        elif name in _OPAQUE:
            yield getattr(builtins, name)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function and of those defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _imports(code: CodeType) -> bool:
    return _IMPORT in code.co_code[::2]
