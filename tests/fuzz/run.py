"""Ten thousand calls: ``python -m tests.fuzz.run --calls 10000 --seed 0``; ``--only N`` repeats one of them."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import operator
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from matplotlib import pyplot

import hessianlens as hl
from hessianlens.attention.state import HeadState
from tests.fuzz.recipes import RECIPES, Recipe
from tests.fuzz.zoo import ZOO

PACKAGE = str(Path(hl.__file__).parent)
LONGEST, ROOM = 20.0, 3 * 2**30
"""Seconds that a call may take, and bytes that all of them may take beyond what is there before the first."""
BY_PLACE = (dict, list, tuple)


IGNORED = ("`torch.jit.script", "Sparse CSR tensor support is in beta")
"""Warnings that torch gives whatever it is asked."""


class TooLong(BaseException):
    """A call that does not come back."""


class Failure(Exception):
    """What must not happen, in words."""


# What can be done with an object beside calling its methods.
ACTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "@": operator.matmul,
    "[]": operator.getitem,
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "str": lambda value, _: str(value),
    "repr": lambda value, _: repr(value),
    "len": lambda value, _: len(value),
    "float": lambda value, _: float(value),
    "in": lambda value, other: other in value,
    "iter": lambda value, _: next(iter(value), None),
    "adjoint": lambda value, _: value.adjoint(),
    "to_scipy": lambda value, _: value.to_scipy(),
}
_SHOWING = ("str", "repr")
_PROTOCOLS = (hl.attention.Activation, hl.losses.Loss, hl.losses.OutputCurvature, hl.losses.LossDerivatives, HeadState)
"""What the library calls by itself: their methods are given what the library made."""


class Draw:
    """One call, with everything about it that is random."""

    def __init__(self, seed: int, number: int) -> None:
        self.random = random.Random(f"{seed} {number}")
        self.said = ""

    def value(self) -> tuple[str, Any]:
        name = self.random.choice(list(ZOO))
        return name, ZOO[name]()

    def arguments(self, recipe: Recipe) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Good arguments, some of them spoiled, left out or moved to their place."""
        names, said, found = list(recipe.arguments), {}, {}
        spoiled = set(self.random.sample(names, min(self.random.choice((0, 1, 1, 1, 2, 3)), len(names))))
        for name in names:
            if name in spoiled:
                said[name], found[name] = self.value()
            elif self.random.random() < 0.9 or len(found) < 2:
                said[name], found[name] = "good", recipe.arguments[name]()
        if self.random.random() < 0.02:
            said["nonsense"], found["nonsense"] = self.value()
        self.said = f"{recipe.name}({', '.join(f'{name}={text}' for name, text in said.items())})"
        places = self.random.randrange(min(3, len(found) + 1)) if self.random.random() < 0.3 else 0
        placed = [name for name in names if name in found][:places] if names[:places] == list(found)[:places] else []
        return tuple(found.pop(name) for name in placed), {k: v for k, v in found.items() if not k.isdigit()}

    def step(self, value: Any) -> Any:
        """Something that can be done with a result."""
        methods = public_methods(type(value))
        if self.random.random() < 0.5 or not methods:
            action = self.random.choice([name for name in ACTIONS if can(value, name)])
            text, other = self.value()
            self.said += f" {action} {'' if action in _SHOWING else text}"
            return ACTIONS[action](value, other)
        name = self.random.choice(methods)
        self.said += f" .{name}"
        found = getattr(value, name)
        if not inspect.ismethod(found) and not inspect.isfunction(found):
            return found
        given = {}
        for parameter in inspect.signature(found).parameters.values():
            needed = parameter.default is inspect.Parameter.empty
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY) and (
                needed or self.random.random() < 0.6
            ):
                text, given[parameter.name] = self.value()
                self.said += f" {parameter.name}={text}"
        return found(**given)


def public_methods(kind: type) -> list[str]:
    """Attributes that classes of this package define, but for what the library calls by itself."""
    if issubclass(kind, _PROTOCOLS):
        return []
    own = [base for base in kind.__mro__ if base.__module__.startswith("hessianlens")]
    return sorted({name for base in own for name in vars(base) if not name.startswith("_")} - {"product"})


def can(value: Any, action: str) -> bool:
    """Whether Python lets an object do this at all."""
    special = {"@": "matmul", "[]": "getitem", "+": "add", "-": "sub", "*": "mul", "/": "truediv", "in": "contains"}
    if action == "in" and isinstance(value, tuple):
        return False  # Python compares with its entries, and a tensor may not say whether it is one of them
    name = special.get(action, action)
    return hasattr(value, name if action in ("adjoint", "to_scipy") else f"__{name}__")


def interesting(value: Any) -> bool:
    return type(value).__module__.startswith("hessianlens") and not isinstance(value, type)


def attempt(seed: int, number: int) -> tuple[str, BaseException | None]:
    """One call and a few steps with what it gives; what it did, and what went wrong."""
    draw = Draw(seed, number)
    weights = [recipe.weight for recipe in RECIPES]
    recipe = draw.random.choices(RECIPES, weights)[0]
    args, options = draw.arguments(recipe)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            value = recipe.target()(*args, **options)
            for _ in range(draw.random.randrange(4) if recipe.result else 0):
                if not interesting(value):
                    break
                value = draw.step(value)
    except hl.InputError as error:
        said = str(error)
        if "\n" in said or not said.strip() or len(said) > 1000:
            return draw.said, Failure(f"a message of one line was expected: {said[:200]!r}")
    except (KeyError, IndexError) as error:
        if " [] " not in draw.said or "expected" not in str(error):
            return draw.said, error
    except (TypeError, AttributeError) as error:
        if not raised_by_python(error):
            return draw.said, error
    except (Exception, TooLong) as error:
        return draw.said, error
    return draw.said, None


def raised_by_python(error: BaseException) -> bool:
    """Whether a call was refused as Python refuses it: wrong number or names of arguments, no such operation."""
    if re.fullmatch(r"\w+\(\) got an unexpected keyword argument '\w+'", str(error)):
        return True  # of a call that still takes names of earlier versions
    frames = traceback.extract_tb(error.__traceback__)
    guard = "state_guard.py"  # a decorator of public calls, outside of them
    entered = any(f.filename.startswith(PACKAGE) and not f.filename.endswith(guard) for f in frames)
    arguments = re.search(
        "unexpected keyword argument|required positional argument|positional arguments? but", str(error)
    )
    return not entered and ("site-packages" not in frames[-1].filename or arguments is not None)


def where(error: BaseException) -> str:
    """The innermost line of this package."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(PACKAGE)]
    return f"{frames[-1].filename.removeprefix(PACKAGE)}:{frames[-1].lineno}" if frames else "outside"


def failures(seed: int, numbers: range) -> Iterator[tuple[int, str, BaseException, float]]:
    """Everything that went wrong, or took too long."""

    def stop(*_: object) -> None:
        raise TooLong(f"more than {LONGEST:g} s")

    signal.signal(signal.SIGALRM, stop)
    for number in numbers:
        start = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, LONGEST)
        try:
            said, error = attempt(seed, number)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            pyplot.close("all")
        if error is not None:
            yield number, said, error, time.perf_counter() - start


def limit_memory() -> None:
    """What asks for more than there should be fails here and not on the whole machine."""
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, resource.getrlimit(resource.RLIMIT_AS)[1]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    for message in IGNORED:
        warnings.filterwarnings("ignore", message)
    limit_memory()
    numbers = range(options.calls) if options.only is None else range(options.only, options.only + 1)
    found: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # some calls write the file they are told
        for number, said, error, _ in failures(options.seed, numbers):
            if options.only is not None:
                traceback.print_exception(error)
            key = f"{type(error).__name__} at {where(error)}"
            found.setdefault(key, []).append(f"--seed {options.seed} --only {number}: {said}: {str(error)[:150]!r}")
    for key, calls in sorted(found.items(), key=lambda item: -len(item[1])):
        print(f"{len(calls)} x {key}\n    " + "\n    ".join(calls[:3]))
    print(f"{len(numbers)} calls, {sum(map(len, found.values()))} failures of {len(found)} kinds")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
