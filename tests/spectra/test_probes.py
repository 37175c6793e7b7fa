"""Probe vectors: seeded one by one, whatever the chunk; E v v^T = I."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import chi2

from hessianlens.spectra import Probes
from hessianlens.spectra.probes import DISTRIBUTIONS, chunk_size
from tests.variants import DOUBLE


@pytest.mark.parametrize("distribution", [*DISTRIBUTIONS, "basis"])
@pytest.mark.parametrize("size", [1, 3, 7, 20])
def test_chunks_do_not_matter(distribution: str, size: int) -> None:
    probes = Probes(21, 20, 5, distribution)
    assert torch.equal(torch.cat(list(probes.chunks(size)), dim=1), probes.matrix(0, 20))


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_probe_depends_on_its_seed_stream_and_number_only(distribution: str) -> None:
    vector = Probes(50, 20, 5, distribution).vector(3)
    assert torch.equal(Probes(50, 4, 5, distribution).vector(3), vector)
    assert torch.equal(Probes(50, 20, 5, distribution, torch.float32).vector(3), vector.float())
    for other in (Probes(50, 20, 6, distribution), Probes(50, 20, 5, distribution, stream=1)):
        assert not torch.equal(other.vector(3), vector)
    assert not torch.equal(Probes(50, 20, 5, distribution).vector(4), vector)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_second_moment_is_the_identity(distribution: str) -> None:
    """Entries of ``V V^T / count`` differ from those of I by no more than their spread allows, all of them together."""
    count, n = 4000, 5
    V = Probes(n, count, 1, distribution).matrix(0, count)
    products = torch.einsum("ik,jk->kij", V, V).flatten(1)[:, torch.ones(n, n).triu(1).flatten().bool()]
    z = products.mean(0) / (products.std(0) / count**0.5)
    assert float(z.square().sum()) < chi2.ppf(1 - 1e-4, len(z))
    assert torch.allclose((V * V).mean(1), torch.ones(n, dtype=DOUBLE), atol=0.1)
    assert float(V.mean(1).abs().max()) < 4 / count**0.5


def test_entries() -> None:
    assert set(Probes(100, 1, 0).vector(0).tolist()) == {-1.0, 1.0}
    assert float(Probes(100, 1, 0, "sphere").vector(0).norm()) == pytest.approx(10)
    assert torch.equal(Probes(4, 4, None, "basis").matrix(0, 4), torch.eye(4, dtype=DOUBLE))


def test_chunks_bound_the_memory() -> None:
    assert chunk_size(None, 2**25, 100) == 1
    assert chunk_size(None, 10, 100) == 100
    assert chunk_size(None, 2**20, 100, copies=64) == 1


def test_every_block_has_probes_of_its_own() -> None:
    names = ("layer0.attn.q", "layer0.attn.k", "layer1.attn.q")
    first, *others = (Probes.of_block(name, 64, 3, 0, torch.float64).matrix(0, 3) for name in names)
    for other in others:
        assert float((first.T @ other).abs().max()) < 40  # of 64, which equal probes would have
    assert torch.equal(first, Probes.of_block(names[0], 64, 9, 0, torch.float64).matrix(0, 3))
