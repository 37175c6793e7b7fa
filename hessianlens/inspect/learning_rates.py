"""Learning rates from measured curvature: groups of parameters that optimisers take, and files of them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from torch import nn

from hessianlens.errors import InputError, check_number, check_path, check_that, describe_value, expect
from hessianlens.files import write_whole
from hessianlens.inspect.table import CurvatureTable
from hessianlens.problems import Problem

POWER, LIMIT = 0.5, 10.0
"""How much of the curvature goes into a learning rate, and the largest factor between it and the base."""
_FORMAT = "hessianlens groups, 1"
KINDS = ("matrix", "vector")


@dataclass(frozen=True)
class Group:
    """Parameters that share a learning rate.

    Attributes:
        lr: The learning rate.
        kind: "matrix", or "vector" for biases and gains, which usually have no weight decay.
        parameters: Their names, as in ``named_parameters``.
        why: The number that the rate comes from, as text.
    """

    lr: float
    kind: str
    parameters: tuple[str, ...]
    why: str


def learning_rate_groups(
    problem: Problem, table: CurvatureTable, base_lr: float, power: float = POWER, limit: float = LIMIT
) -> list[Group]:
    """Groups by kind and factor; `BlockMeasurements.param_groups` says how the factors come about."""
    check_number("base_lr", base_lr, 0.0, strictly=True)
    check_number("power", power, 0.0)
    check_that(check_number("limit", limit) >= 1, "limit", limit, "a factor of at least 1")
    model = _model(problem.source)
    sizes = _parameter_rms(problem, table)
    shapes = {name: p.ndim for name, p in model.named_parameters() if p.requires_grad}
    members: dict[tuple[str, float | None], list[str]] = {}
    middles: dict[str, float] = {}
    for kind in KINDS:
        names = [name for name, axes in shapes.items() if (axes > 1) == (kind == "matrix")]
        known = [sizes[name] for name in names if name in sizes]
        middles[kind] = median(known) if known else 1.0
        for name in names:
            factor = None if name not in sizes else _factor(middles[kind] / sizes[name], power, limit)
            members.setdefault((kind, factor), []).append(name)
    order = sorted(members, key=lambda key: (KINDS.index(key[0]), -(key[1] or 0.0)))
    return [_group(kind, factor, members[kind, factor], base_lr, sizes, middles[kind]) for kind, factor in order]


def _parameter_rms(problem: Problem, table: CurvatureTable) -> dict[str, float]:
    """Root mean square eigenvalue of every parameter with a measured block that is not flat; blocks of one add up."""
    squares: dict[str, float] = {}
    entries: dict[str, int] = {}
    for row in table.rows:
        parameter = problem.blocks[row.name].parameter
        squares[parameter] = squares.get(parameter, 0.0) + row.norm**2
        entries[parameter] = entries.get(parameter, 0) + row.parameters
    flat = {problem.blocks[name].parameter for name in table.flat}
    curved = {problem.blocks[row.name].parameter for row in table.rows if row.name not in table.flat}
    return {name: math.sqrt(squares[name] / entries[name]) for name in squares if name in curved or name not in flat}


def _factor(ratio: float, power: float, limit: float) -> float:
    """A power of two within the limits."""
    rounded = 2.0 ** round(power * math.log2(ratio))
    most = 2.0 ** math.floor(math.log2(limit))
    return min(max(rounded, 1 / most), most)


def _group(
    kind: str, factor: float | None, names: Sequence[str], base_lr: float, sizes: dict[str, float], middle: float
) -> Group:
    if factor is None:
        return Group(base_lr, kind, tuple(names), "flat, or not measured: the base learning rate")
    found = [sizes[name] for name in names]
    spread = f"{min(found):.2g}" if len(found) == 1 else f"{min(found):.2g} to {max(found):.2g}"
    why = f"rms eigenvalue {spread}, median {kind} {middle:.2g}: {factor:g} times the base learning rate"
    return Group(base_lr * factor, kind, tuple(names), why)


def with_parameters(groups: Sequence[Group], model: object) -> list[dict[str, Any]]:
    """The groups with the parameters of a model in them, every trained parameter exactly once."""
    module = _model(model)
    # A tied parameter has several names; the optimiser must see it once.
    by_name = dict(module.named_parameters(remove_duplicate=False))
    trained = {id(p): name for name, p in module.named_parameters() if p.requires_grad}
    made, seen = [], set[int]()
    for group in groups:
        unknown = [name for name in group.parameters if name not in by_name]
        expect(
            not unknown,
            f"groups: the model has no parameter {describe_value(unknown[:1])}, expected groups made for it.",
        )
        own = {id(by_name[name]): by_name[name] for name in group.parameters}
        twice = [name for name in group.parameters if id(by_name[name]) in seen]
        expect(not twice, f"groups: {describe_value(twice[:1])} is in two groups, expected every parameter in one.")
        seen |= own.keys()
        made.append({"params": list(own.values()), "lr": group.lr, "kind": group.kind, "why": group.why})
    left = [name for key, name in trained.items() if key not in seen]
    expect(
        not left, f"groups: {describe_value(left[:1])} is trained but in no group, expected groups made for this model."
    )
    return made


def write_groups(groups: Sequence[Group], path: Path) -> None:
    """Groups by name as a file, for `load_param_groups`."""
    listed = [{"lr": g.lr, "kind": g.kind, "parameters": list(g.parameters), "why": g.why} for g in groups]
    try:
        write_whole(path, json.dumps({"format": _FORMAT, "groups": listed}, indent=2, allow_nan=False) + "\n")
    except OSError as error:
        raise InputError(f"groups: cannot write '{path}' ({error.strerror}).") from error


def load_param_groups(path: str | os.PathLike[str], model: nn.Module) -> list[dict[str, Any]]:
    """Groups from a file that ``hessianlens inspect --out groups:FILE`` wrote, for a model with the same parameters.

    ``torch.optim.AdamW(load_param_groups("groups.json", model))``. Every parameter that is trained is in exactly one
    group; a file that does not fit the model is refused.

    Args:
        path: The file.
        model: The model to be trained.
    """
    file = check_path("path", path, "the name of a file that inspect --out groups:FILE wrote")
    try:
        stated = json.loads(file.read_text(encoding="utf-8"))
        fits = stated["format"] == _FORMAT
        groups = [Group(float(g["lr"]), g["kind"], tuple(g["parameters"]), g["why"]) for g in stated["groups"]]
    except OSError as error:
        raise InputError(
            f"path: {str(path)!r} cannot be read ({error.strerror}); expected a file of groups."
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"path: {str(path)!r} is no file of groups ({error}); write one with inspect --out groups:FILE."
        ) from error
    expect(fits, f"path: {str(path)!r} has another format, expected {_FORMAT!r}.")
    return with_parameters(groups, model)


def _model(model: object) -> nn.Module:
    check_that(isinstance(model, nn.Module), "model", model, "an nn.Module")
    assert isinstance(model, nn.Module)
    return model
