"""Sketched norms: unbiased, with intervals that cover, and the cheapest way chosen with its reason."""

from __future__ import annotations

import math

import pytest
import torch

import hessianlens as hl
from hessianlens.layer.sketch import Unfolding
from hessianlens.network.base.progress import Watch
from hessianlens.sketching import MatrixSampler, Sampler, estimate_norm, estimate_to_rtol, norm_methods
from hessianlens.sketching.layer_block import NormMethods
from hessianlens.sketching.sampler import LEAST, PILOT
from hessianlens.spectra import Estimate
from tests.variants import losses, rotary, self_attention, square_loss, tokens

SEEDS = 150


def _layer(kind: str, width: int = 12, length: int = 8) -> hl.layer.AttentionHessian:
    """Normal tokens, or some as of a language model: few embeddings, positions, a common vector, unequal features."""
    generator = torch.Generator().manual_seed(1)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    X, Y = randn(2, length, width), randn(2, length, width)
    if kind == "embeddings":
        ids = torch.randint(0, 4, (2, length), generator=generator)
        X = (randn(4, width)[ids] + randn(length, width) / 2 + randn(width)) * torch.arange(1, width + 1) ** -0.5
    layer = self_attention(None, 0, width=width, output=None)
    return hl.attention_hessian(layer, X, hl.SquareLoss(Y))


def _sampler(H: hl.layer.AttentionHessian, row: str, column: str, seed: int) -> MatrixSampler:
    block = H.sketch.block("full", row, column)
    assert isinstance(block, Unfolding)
    return MatrixSampler(block, f"{row} {column}", seed, lambda made: None, H.loss.gradient)


def _relative(H: hl.layer.AttentionHessian, row: str, column: str, rtol: float) -> tuple[list[Estimate], float]:
    found = [estimate_to_rtol(_sampler(H, row, column, seed), rtol) for seed in range(SEEDS)]
    return [one for one in found if isinstance(one, Estimate)], float(H.full[row, column].frobenius_norm())


@pytest.mark.expensive
@pytest.mark.parametrize("kind", ["normal", "embeddings"])
@pytest.mark.parametrize("pair", ["QQ", "QK", "VK"])
def test_intervals_cover_and_squares_are_unbiased(kind: str, pair: str) -> None:
    """Of 95 %: 88 % would be missed by chance once in 3000 runs; bars half as long cover about 70 %."""
    found, norm = _relative(_layer(kind), pair[0], pair[1], rtol=0.1)
    covered = sum(low <= norm <= high for low, high in (one.interval() for one in found))
    assert covered >= 0.88 * SEEDS
    assert max(one.samples for one in found) >= LEAST
    squares = torch.tensor([(one.value / norm) ** 2 for one in found])
    assert abs(float(squares.mean()) - 1) < 4 * float(squares.std()) / math.sqrt(SEEDS)
    half = sum(abs(one.value - norm) <= one.stderr for one in found)
    assert half < 0.85 * SEEDS  # the check has teeth: one standard error covers about two thirds


def test_more_directions_than_the_rank_leave_nothing_to_sample() -> None:
    """Full order: the known part is the square of the norm itself."""
    H = _layer("normal", width=3, length=3)
    for row, column in (("Q", "Q"), ("Q", "K"), ("V", "Q"), ("V", "K"), ("V", "V")):
        sampler = _sampler(H, row, column, 0)
        sampler.prepare()
        for _ in range(3):
            sampler.pilot()
            sampler._add(sampler._pilot[0])
        norm = float(H.full[row, column].frobenius_norm())
        assert math.sqrt(sampler.known) * sampler.unit == pytest.approx(norm, rel=1e-9), (row, column)
        sampler.draw(3)
        assert float(sampler.squares.max()) < 1e-9 * sampler.known


def test_small_blocks_end_with_a_basis() -> None:
    H = _layer("normal", width=3, length=5)
    found, why = estimate_norm(norm_methods(H, "full", "Q", "K", 0, lambda made: None), "sketch", 1e-6)
    assert found.method == "basis" and found.exact and why == "method='sketch' was asked for"
    assert found.value == pytest.approx(float(H.full["Q", "K"].frobenius_norm()), rel=1e-10)


def test_a_layer_is_asked_like_a_model() -> None:
    H, watch = _layer("normal"), _Counting()
    norms = hl.block_norms(H, parts=("full", "outer"), method="sketch", rtol=0.1, seed=3, progress=watch)
    assert len(norms) == 18 and watch.made > 18 * PILOT / 2
    assert norms["Q", "K", "full"] == norms[("K", "Q"), "full"] and norms["Q", "K", "ggn"].method == "sketch"
    assert norms.why["Q", "K"] == "method='sketch' was asked for"
    assert "Q, K" in str(norms)
    exact = hl.block_norms(H, [("Q", "K")], method="exact")
    assert list(exact) == [(("Q", "K"), part) for part in ("full", "ggn", "functional")]
    for part in ("full", "ggn"):
        assert exact["Q", "K", part].value == pytest.approx(float(H.part(part)["Q", "K"].frobenius_norm()))
        assert norms["Q", "K", part].value == pytest.approx(exact["Q", "K", part].value, rel=0.4)
    assert (
        hl.block_norms(H, [("Q", "K")], ("full",), method="sketch", rtol=0.1, seed=3)["Q", "K", "full"]
        == (norms["Q", "K", "full"])
    )
    by_probes = hl.block_norms(H, [("V", "K")], ("full",), method="probes", rtol=0.2)["V", "K", "full"]
    assert by_probes.method == "hutchinson"
    assert by_probes.value == pytest.approx(float(H.full["V", "K"].frobenius_norm()), rel=0.5)


class _Counting(Watch):
    def __init__(self) -> None:
        self.made = 0.0

    def products(self, count: float) -> None:
        self.made += count


class _Known(Sampler):
    """Samples of a known spread."""

    name, complete = "sketch", 10**9

    def __init__(self, spread: float, cost: float) -> None:
        super().__init__(0, lambda made: None)
        self._spread, self.probe_cost = spread, cost

    def _draw(self, count: int) -> torch.Tensor:
        return 1 + self._spread * torch.linspace(-1, 1, count, dtype=torch.float64)

    def basis(self) -> Estimate:
        raise AssertionError


@pytest.mark.parametrize(
    ("spread", "cost", "method", "why"),
    [
        (0.1, 1.0, "sketch", "a sketch takes about"),
        (0.1, 1e3, "exact", "a sketch 1.8e+04 at least"),
        (5.0, 4.0, "exact", "by its 8 pilot probes"),
    ],
)
def test_auto_takes_the_cheaper_way_and_says_why(spread: float, cost: float, method: str, why: str) -> None:
    ways = NormMethods(lambda: 1.0, lambda: 1e4, lambda: _Known(spread, cost))
    found, reason = estimate_norm(ways, "auto", 0.02)
    assert found.method == method and why in reason and "1e+04" in reason


def test_what_has_no_sketch_is_answered_and_says_why() -> None:
    X = tokens(2)
    coupled = hl.attention_hessian(self_attention(), X, losses(X)["coupling tokens"])
    norms = hl.block_norms(coupled, [("Q", "K")], ("full",), method="sketch")
    assert "the loss couples the tokens of a sequence" in norms.why["Q", "K"]
    assert norms["Q", "K", "full"].value == pytest.approx(float(coupled.full["Q", "K"].frobenius_norm()), rel=0.1)
    turned = hl.attention_hessian(rotary(), X, square_loss(X))
    assert "rotary" in hl.block_norms(turned, [("Q", "K")], ("full",), method="auto").why["Q", "K"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "guess"}, "method: got 'guess'"),
        ({"rtol": 0.0}, "rtol: got 0"),
        ({"blocks": ["Q"]}, "pairs of names"),
        ({"blocks": [("Q", "W")]}, "blocks: got 'W', expected one of 'Q', 'K', 'V'"),
        ({"resume": "norms.jsonl"}, "resume: "),
    ],
)
def test_bad_input(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(hl.InputError, match=message):
        hl.block_norms(_layer("normal"), **arguments)  # type: ignore[arg-type]
