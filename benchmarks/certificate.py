"""What certificates cost: exact norms with plain autograd's products that they are compared with, and without them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

import hessianlens as hl
from benchmarks.last_layer import last_layer_problem
from benchmarks.network_settings import Q, Scaled, Setting, V, addition
from hessianlens.network.certificate import Certificate
from hessianlens.problems import Problem

UNCERTIFIED = "the same, not certified"
MOST = 0.05
"""Share of the time of exact norms that their certificates may take."""


def certified(make: Callable[[bool], tuple[Problem, list[str]]]) -> Setting:
    """Exact norms of some blocks as they are, and with every certificate granted unseen.

    Args:
        make: The problem and the names of its blocks; a tiny one if asked for.
    """

    def setting(tiny: bool) -> tuple[dict[str, Scaled], dict[str, object]]:
        problem, names = make(tiny)

        def exact() -> object:
            return hl.block_norms(replace(problem), names, method="exact")

        def uncertified() -> object:
            with patch.object(Certificate, "compare", lambda *arguments: None):
                return exact()

        return {"ours, exact": Scaled(exact), UNCERTIFIED: Scaled(uncertified)}, {"blocks": len(names), "parts": 3}

    return setting


def one_layer(tiny: bool) -> tuple[Problem, list[str]]:
    """Queries and values of the literature's one-layer model."""
    model, task, batch = addition(1, tiny)
    return hl.problem(model, batch, task.cross_entropy), [Q, V]


def last_layer(tiny: bool) -> tuple[Problem, list[str]]:
    """The last attention layer of a GPT-2 and everything behind it."""
    return last_layer_problem(tiny, trained=False)
