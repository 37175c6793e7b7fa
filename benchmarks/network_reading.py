"""From the seconds of network benchmarks to their tables and to the sentences below them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields

import hessianlens as hl
from benchmarks.certificate import MOST, UNCERTIFIED
from benchmarks.first_layer import BY_HVPS, RTOL
from benchmarks.harness import spread
from benchmarks.network_settings import GRADIENT, PROBES, SHARED, Q, V, addition
from benchmarks.results import OURS, PEER, SET_UP, Memory, Timing

ENOUGH = 0.75
"""Gradients that each of many products may take, building included."""
_PART, _WHOLE = "curvlinops, ", f"curvlinops, {PROBES} probes a norm"


def timings(
    seconds: Mapping[str, list[float]],
    wall: Mapping[str, list[float]],
    first: Mapping[str, float],
    operations: Mapping[str, float | None],
) -> tuple[Timing, ...]:
    """Medians, quartiles and ratios to the library, which comes first.

    Args:
        seconds: On the clock, by competitor, a number a round.
        wall: The same on the wall.
        first: Of the first calls.
        operations: Counted, by competitor; None where they were not.
    """
    whole, on_wall = _added(seconds), _added(wall)
    firsts = _added({name: [value] for name, value in first.items()})
    counts = _added({name: [math.nan if value is None else value] for name, value in operations.items()})
    ours = next(iter(whole))
    found = []
    for name, values in whole.items():
        ratios = [t / own for t, own in zip(values, whole[ours], strict=True)]
        role = OURS if name.startswith(OURS) else SET_UP if name == GRADIENT else PEER
        known = None if math.isnan(counts[name][0]) else counts[name][0]
        spreads = spread(values), spread(ratios)
        found.append(Timing(name, role, *spreads, firsts[name][0], spread(on_wall[name]).median, known))
    return tuple(found)


def _added(seconds: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """Seconds by competitor, the library first, with the sum of the parts of a path that is run in parts."""
    first = next(iter(seconds))
    found = {first: seconds[first]}
    parts = [name for name in seconds if name.startswith(_PART)]
    if parts:
        found[_WHOLE] = [sum(row) for row in zip(*(seconds[name] for name in parts), strict=True)]
    found.update({name: seconds[name] for name in seconds if name != first and name not in parts})
    return found


def merged(memory: Mapping[str, Memory]) -> dict[str, Memory]:
    """A path that is run in parts, one after the other, needs what the largest of them needs."""
    parts = [found for name, found in memory.items() if name.startswith(_PART)]
    rest = {name: found for name, found in memory.items() if not name.startswith(_PART)}
    if not parts:
        return rest
    return rest | {_WHOLE: Memory(*(max(getattr(p, f.name) for p in parts) for f in fields(Memory)))}


def notes(seconds: Mapping[str, list[float]], timed: tuple[Timing, ...], number: int) -> list[str]:
    """How competitors were timed, or what a product costs in gradients.

    Args:
        seconds: By competitor.
        timed: What was made of them.
        number: Products.
    """
    if any("1 %" in name for name in seconds):
        return [
            "Sampled norms are timed with 20 probes and carried on by their measured spread to a standard error of 1 %."
        ]
    if UNCERTIFIED in seconds:
        share = 1 - next(t for t in timed if t.name == UNCERTIFIED).ratio.median
        met = "met" if share <= MOST else "NOT met"
        return [f"Certificates take {share:.1%} of the time of exact norms; the goal is at most {MOST:.0%}: {met}."]
    if BY_HVPS in seconds:
        ratio = next(t for t in timed if t.name == BY_HVPS).ratio.median
        return [
            f"All norms agree to {RTOL:.0e} of the norm of their block. Where the library makes an HVP per position "
            f"and feature instead of backpropagating the curvature, it takes {ratio:.1f} times as long."
        ]
    if GRADIENT not in seconds:
        counted = "20 for H, 20 for G, 20 of each for H - G"
        return [
            f"curvlinops' products are timed once each and count 40 times a block: {counted}.",
            f"Shared-probe autograd takes H, G and H - G of a block from the same {PROBES} products on one kept graph.",
        ]
    return [in_gradients(timed, number)]


def in_gradients(timed: tuple[Timing, ...], number: int) -> str:
    """What a product costs in gradients of the same block, by ratios within rounds; many of them against the goal."""
    unit = next(t for t in timed if t.name == GRADIENT).ratio.median
    each = {t.name: t.ratio.median / unit / number for t in timed if t.name != GRADIENT}
    costs = ", ".join(f"{name} {cost:.2f}" for name, cost in each.items())
    told = f"In units of one gradient of the same block, everything else frozen, a product costs: {costs}."
    if number != PROBES:
        return told
    met = ", ".join(f"{name}: {'met' if each[name] <= ENOUGH else 'NOT met'}" for name in each if name.startswith(OURS))
    return f"{told} The goal is at most {ENOUGH} each, building included; {met}."


def equal_accuracy(timed: tuple[Timing, ...]) -> str:
    """How the ratio changes when every estimate has to have a standard error of 1 %, from the measured variance."""
    model, task, batch = addition(1)
    problem = hl.problem(model, batch, task.cross_entropy)
    norms = hl.block_norms(problem, [Q, V], probes=60, method="probes")
    needed = {k: 60 * (e.stderr / e.value / 0.01) ** 2 for k, e in norms.items() if e.value > 1e-12}
    # H and G cost one product a probe, H - G one of each; a norm that is zero to rounding needs none
    weights = {"full": 1, "ggn": 1, "functional": 2}
    products = sum(weights[part] * n for (_, part), n in needed.items())
    # a shared probe of a block serves its three norms: the hardest decides
    shared = sum(max([n for (block, _), n in needed.items() if block == own], default=0.0) for own in (Q, V))
    share = {_WHOLE: products / (8 * PROBES), SHARED: shared / (2 * PROBES)}
    ratios = ", ".join(f"{t.ratio.median * share[t.name]:.0f}x against {t.name}" for t in timed if t.name in share)
    low, high = min(needed.values()), max(needed.values())
    return f"At equal accuracy, 1 % standard error: {low:.0f} to {high:.0f} probes a norm; {ratios}."
