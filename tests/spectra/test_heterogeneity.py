"""Scores between blocks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon

import hessianlens as hl
from hessianlens.errors import InputError
from hessianlens.spectra import Estimate, density, frobenius, heterogeneity
from tests.curvature import networks
from tests.oracles.comparison import assert_same
from tests.spectra.registry import structured, symmetric, with_spectrum
from tests.variants import DOUBLE, randn

BLOCKS = {
    "q": symmetric(12),
    "k": with_spectrum(torch.linspace(0, 3, 14, dtype=DOUBLE)),
    "v": with_spectrum(torch.cat([torch.zeros(8), torch.ones(2)]).to(DOUBLE)),
}


@pytest.mark.parametrize("method", ["dense", "lanczos"])
def test_divergence_is_symmetric_and_bounded(method: str) -> None:
    found = heterogeneity({**BLOCKS, "far": BLOCKS["k"] + 100 * torch.eye(14)}, method=method, sigma=0.1)
    assert torch.equal(found.pairwise, found.pairwise.T)
    assert torch.equal(found.stderr, found.stderr.T)
    assert not found.pairwise.diagonal().any()
    assert bool((found.pairwise >= 0).all() and (found.pairwise <= math.log(2)).all())
    assert found["far", "q"].value == pytest.approx(math.log(2))
    assert found.mean.exact == (method == "dense")
    upper = found.pairwise[np.triu_indices(4, 1)]
    assert found.mean.value == pytest.approx(float(upper.mean()))


def test_divergence_is_that_of_scipy() -> None:
    spectra = {name: density(A) for name, A in BLOCKS.items()}
    found = heterogeneity(spectra, sigma=0.2)
    low, high = (f(s.support[i] for s in spectra.values()) for i, f in enumerate((min, max)))
    curves = {name: s.on_grid(3000, 0.2, (low - 1.0, high + 1.0)).value.numpy() for name, s in spectra.items()}
    for pair in (("q", "k"), ("k", "v"), ("v", "q")):
        assert found[pair].value == pytest.approx(jensenshannon(*(curves[name] for name in pair)) ** 2, abs=1e-4)


def test_equal_spectra_are_at_distance_zero() -> None:
    A = symmetric(12)
    rotated = with_spectrum(torch.linalg.eigvalsh(A))
    assert heterogeneity({"a": A, "b": rotated}).mean.value < 1e-12
    same = heterogeneity({"a": A, "b": A.clone()}, method="lanczos", steps=5)
    assert (same.mean.value, same.mean.stderr) == (0, 0)


def test_normalised_spectra_compare_shapes() -> None:
    scaled = {"a": BLOCKS["k"], "b": 50 * BLOCKS["k"]}
    assert heterogeneity(scaled).mean.value > 0.1
    assert heterogeneity(scaled, normalise=True).mean.value < 1e-12
    assert heterogeneity({**scaled, "zero": torch.zeros(4, 4)}, normalise=True)["a", "zero"].value > 0.1


def test_noise_between_equal_spectra_is_within_its_error_bar() -> None:
    """Without the correction of its bias the divergence of independent estimates would be many errors from zero."""
    spectra = [density(symmetric(40), 10, 40, seed, method="lanczos") for seed in range(2)]
    found = heterogeneity(dict(zip("ab", spectra, strict=True)), sigma=0.5)
    assert found.mean.value < 3 * found.mean.stderr


@pytest.mark.parametrize(
    ("score", "size"),
    [
        ("norm", lambda A: float(A.norm())),
        ("trace", lambda A: float(A.trace())),
        ("median", lambda A: float(np.median(A.abs()))),
    ],
)
def test_ratios(score: str, size) -> None:
    blocks = {name: A for name, A in BLOCKS.items() if name != "v"}
    found = heterogeneity(blocks, score, probes=20)
    q, k = (size(A) for A in blocks.values())
    assert found["q", "k"].value == pytest.approx(q / k)
    assert found["k", "q"].value == pytest.approx(k / q)
    assert found.mean.value == pytest.approx(max(abs(q / k), abs(k / q)))
    assert found.mean.exact


def test_ratios_of_rectangular_blocks_and_of_structured_ones() -> None:
    (qv, _), (vv, dense) = structured("full", "Q", "V")(), structured("full", "V", "V")()
    found = heterogeneity({"qv": qv, "vv": vv, "random": randn(5, 40)}, "norm", probes=10)
    assert found["qv", "vv"].value == pytest.approx(float(qv.frobenius_norm() / dense.norm()))
    assert found["qv", "vv"].stderr == 0
    assert found["qv", "random"].stderr > 0


def test_ratios_of_zeros() -> None:
    zero, one = Estimate.exactly(0.0), Estimate.exactly(2.0)
    assert heterogeneity({"a": zero, "b": zero}, "norm").mean.value == 1
    found = heterogeneity({"a": zero, "b": one}, "norm")
    assert found.mean.value == math.inf
    assert found.pairwise.tolist() == [[1, 0], [math.inf, 1]]
    assert not found.stderr.any()


@pytest.mark.parametrize("method", ["lanczos", "dense"])
@pytest.mark.parametrize("normalise", [False, True])
def test_a_block_that_is_rounding_is_zero(method: str, normalise: bool) -> None:
    """Rounding is not symmetric: it used to be refused."""
    matrix = torch.diag(torch.linspace(1, 3, 40, dtype=torch.float64))
    noise = 1e-15 * torch.randn(40, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    how = {"probes": 3, "steps": 6, "method": method, "normalise": normalise}
    found, expected = (
        heterogeneity({"a": matrix, "b": other, "c": -matrix}, **how) for other in (noise, torch.zeros_like(noise))
    )
    assert_same(found.pairwise, expected.pairwise, "divergences", 1e-12)
    with pytest.raises(InputError, match=r"blocks\['b'\]: op: got u\^T A v - v\^T A u = .* expected a symmetric"):
        heterogeneity({"a": matrix, "b": 1e3 * noise, "c": -matrix}, **how)


def test_a_bias_that_softmax_does_not_see_is_zero() -> None:
    problem = networks.toy_problem(2, attention_bias=True)
    names = ["layer0.attn.q", "layer0.attn.k.bias"]
    blocks = {name: hl.hessian(problem, name, method="hvp") for name in names}
    found = heterogeneity(blocks, probes=2, steps=2, method="lanczos", normalise=True)
    zero = {**blocks, names[1]: 0 * torch.eye(blocks[names[1]].shape[0], dtype=torch.float64)}
    assert_same(
        found.pairwise, heterogeneity(zero, probes=2, steps=2, method="lanczos", normalise=True).pairwise, "bias", 1e-9
    )


def test_results_can_be_given() -> None:
    norms = {name: frobenius(A, 8, seed=i) for i, (name, A) in enumerate(BLOCKS.items())}
    assert str(heterogeneity(norms, "norm")) == str(heterogeneity(BLOCKS, "norm", probes=8))
    spectra = {name: density(A, 4, 6, method="lanczos") for name, A in BLOCKS.items()}
    expected = heterogeneity(BLOCKS, probes=4, steps=6, method="lanczos")
    assert torch.equal(heterogeneity(spectra).pairwise, expected.pairwise)


def test_table() -> None:
    lines = str(heterogeneity(BLOCKS, "norm", probes=5)).splitlines()
    assert lines[0].startswith("norm between 3 blocks: mean ")
    assert lines[1].split() == list(BLOCKS)
    assert [line.split()[0] for line in lines[2:]] == list(BLOCKS)
    assert len({len(line) for line in lines[1:]}) == 1
    many = str(heterogeneity({f"block {i}": Estimate.exactly(10.0**i) for i in range(12)}, "norm"))
    assert many.splitlines()[1] == "block 11 and block 0: 1e+11"
    calls: list[tuple[int, int]] = []
    heterogeneity(BLOCKS, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(1, 3), (2, 3), (3, 3)]
