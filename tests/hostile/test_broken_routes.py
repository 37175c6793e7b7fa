"""A route to exact numbers that is broken on purpose is caught: nothing that is called exact is wrong.

Each breakage stands for a mistake in what the library recognises or computes. The places where they are broken are
named in `BREAKAGES`, by module and attribute; when a route moves, its breakage moves with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from hessianlens.errors import Refusal
from hessianlens.network.routes.last_attention import exact as attention
from hessianlens.network.routes.linear_map import batch_graph, curvatures, plan, terms
from tests.hostile.cases import Attention, D, Decoder
from tests.hostile.questions import Examiner
from tests.hostile.specimen import Specimen, randn, with_random_weights


def _off(tensor: Tensor) -> Tensor:
    """One entry, the largest, too large by a thousandth."""
    changed = tensor.clone()
    changed.view(-1)[changed.abs().argmax()] *= 1.001
    return changed


def _curvature(found: Any) -> Any:
    return replace(found, ggn=_off(found.ggn), functional=found.functional)


def _functional_curvature(found: Any) -> Any:
    return replace(found, functional=_off(found.functional))


def _moved(found: Any) -> Any:
    return found if found.moved is None else replace(found, moved=_off(found.moved))


def _tokens(site: Any) -> Any:
    return site if isinstance(site, Refusal) else replace(site, tokens=_off(site.tokens))


def _readout(found: Any) -> Any:
    return None if found is None else replace(found, weights=_off(found.weights))


def _sides(found: Any) -> Any:
    p, gain = found
    return p if p is None else _off(p), gain


Breakage = tuple[object, str, Callable[[Any], Any], str]
"""Where, what, how what it returns is changed, and the specimen that goes this way."""

BREAKAGES: dict[str, Breakage] = {
    "curvature at a linear map": (curvatures.Curvatures, "between", _curvature, "maps"),
    "functional curvature at a linear map": (curvatures.Curvatures, "between", _functional_curvature, "maps"),
    "how inputs of a later map move": (curvatures.Curvatures, "between", _moved, "maps"),
    "inputs of a linear map": (terms, "_sides_of", _sides, "maps"),
    "positions that are coupled, taken for alone": (plan, "grouping_of", lambda found: found, "mixed"),
    "tokens of the last attention layer": (attention, "find_site", _tokens, "attention"),
    "curvature behind the last attention layer": (curvatures.Curvatures, "between", _curvature, "attention"),
    "a bias that is taken for flat": (attention.ExactAttention, "is_flat", lambda _: True, "attention"),
    "weights of the readout": (batch_graph, "readout_of", _readout, "classes"),
}


class _Mixing(nn.Module):
    """Every position sees the ones before it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(D, D), nn.Linear(D, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(torch.tanh(self.first(x)).cumsum(1)))


def _specimen(kind: str) -> Specimen:
    x = randn(2, 4, D, seed=7)
    if kind == "attention":
        return Specimen(with_random_weights(Decoder(Attention(bias=True))), [(x, randn(2, 4, 4, seed=8))])
    if kind == "mixed":
        return Specimen(with_random_weights(_Mixing()), [(x, randn(2, 4, 2, seed=8))])
    model = with_random_weights(nn.Sequential(nn.Linear(D, D), nn.Tanh(), nn.Linear(D, 4)))
    if kind == "classes":
        return Specimen(model, [(x, torch.arange(8).reshape(2, 4) % 4)], "cross_entropy")
    return Specimen(model, [(x, randn(2, 4, 4, seed=8))])


@contextmanager
def _broken(name: str, calls: list[str]) -> Iterator[None]:
    owner, attribute, change, _ = BREAKAGES[name]
    original = getattr(owner, attribute)

    def changed(*args: Any, **named: Any) -> Any:
        calls.append(name)
        if attribute == "grouping_of":
            rows, columns = args[3], args[4]
            return rows[0], next(one for one in columns if one.groups == rows[0].groups)
        return change(original(*args, **named))

    with patch.object(owner, attribute, changed):
        yield


@pytest.mark.parametrize("kind", ["maps", "mixed", "attention", "classes"])
def test_the_routes_are_reached_and_right(kind: str) -> None:
    found = Examiner(_specimen(kind)).everything()
    assert not found.wrong, str(found)
    assert found.why, "nothing was exact"


@pytest.mark.every_case
@pytest.mark.parametrize("name", BREAKAGES)
def test_a_broken_route_is_caught(name: str) -> None:
    calls: list[str] = []
    with _broken(name, calls):
        found = Examiner(_specimen(BREAKAGES[name][3])).everything()
    assert calls, "the route was not taken: the breakage is at a place that nothing goes through"
    assert not found.wrong, f"{len(found.wrong)} of {found.asked} answers are wrong:\n{found}"
