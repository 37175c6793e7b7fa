"""How different blocks are: in their spectra, norms, traces or median entries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from hessianlens.errors import InputError, check_choice, expect
from hessianlens.spectra.densities import density, density_at_zero
from hessianlens.spectra.estimate import Estimate
from hessianlens.spectra.heterogeneity_scores import Heterogeneity, ratio_heterogeneity, spectral_heterogeneity
from hessianlens.spectra.median_entries import median_entry
from hessianlens.spectra.norms import frobenius
from hessianlens.spectra.probes import check_seed
from hessianlens.spectra.products import (
    AsymmetricOperator,
    Progress,
    check_progress,
)
from hessianlens.spectra.spectrum import SpectralDensity
from hessianlens.spectra.traces import trace
from hessianlens.state_guard import restores_state

_SIZES: dict[str, Callable[..., Estimate]] = {"norm": frobenius, "trace": trace, "median": median_entry}

_ROUNDING_EPS = 100
"""Units in the last place of the largest block that a block may be as large as and still be rounding."""


@restores_state
def heterogeneity(
    blocks: Mapping[str, Any],
    score: str = "js",
    probes: int = 10,
    steps: int = 64,
    seed: int = 0,
    *,
    sigma: float | None = None,
    normalise: bool = False,
    method: str = "auto",
    chunk: int | None = None,
    check_symmetry: bool = True,
    progress: Progress | None = None,
) -> Heterogeneity:
    """How different blocks are, for every pair and on average.

    ========  ==========================================================================================
    score     compares
    ========  ==========================================================================================
    "js"      spectral densities, by their Jensen-Shannon divergence (`spectral_heterogeneity`)
    "norm"    Frobenius norms, by their ratio; blocks need not be square (`ratio_heterogeneity`)
    "trace"   traces, by their ratio
    "median"  medians of the absolute entries, by their ratio; from `probes` columns of each block
    ========  ==========================================================================================

    A block that is not symmetric, but no larger than rounding beside the largest block, is zero: its spectral density
    is a point mass at zero. Such are biases of keys, which softmax does not see.

    Spectra of all blocks are made with the same seed, so that blocks that are equal are at distance 0; for the ratios
    block number i uses ``seed + i``, so that their errors are independent.

    Args:
        blocks: Name -> linear operator, or name -> result (`SpectralDensity` for "js", else `Estimate`).
        score: "js", "norm", "trace" or "median".
        probes: Number of random vectors for each block.
        steps: Lanczos steps ("js").
        seed: Seed of the probes.
        sigma: Width of the smoothing ("js"); by default 1/100 of the joint support, or what the steps resolve.
        normalise: Whether to compare only the shapes of spectra ("js").
        method: "auto", "lanczos" or "dense" ("js").
        chunk: Vectors multiplied at once.
        check_symmetry: Whether to test the symmetry of every block first ("js").
        progress: Called with the blocks finished so far and their number.

    >>> import torch
    >>> A = torch.diag(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    >>> print(heterogeneity({"q": A, "v": 10 * A}, "norm"))
    norm between 2 blocks: mean 10 (exact)
        q    v
    q   1  0.1
    v  10    1
    >>> print(heterogeneity({"q": A, "v": 10 * A}, normalise=True).mean)
    0 (exact)
    """
    check_choice("score", score, ("js", *_SIZES))
    check_progress(progress)
    check_seed(seed)
    expect(isinstance(blocks, Mapping), f"blocks: got {type(blocks).__name__}, expected a mapping from names.")
    results: dict[str, Any] = {}
    for i, (name, block) in enumerate(blocks.items()):
        if isinstance(block, (SpectralDensity, Estimate)):
            _expect_fitting(name, block, score)
            results[name] = block
        elif score == "js":
            try:
                results[name] = density(
                    block, probes, steps, seed, method=method, chunk=chunk, check_symmetry=check_symmetry
                )
            except AsymmetricOperator as error:  # rounding, perhaps; the other blocks tell
                results[name] = error
        else:
            results[name] = _SIZES[score](block, probes, seed + i, chunk=chunk)
        if progress is not None:
            progress(i + 1, len(blocks))
    if score == "js":
        return spectral_heterogeneity(_with_zeros(blocks, results), sigma=sigma, normalise=normalise)
    return ratio_heterogeneity(results, score)


def _with_zeros(
    blocks: Mapping[str, Any], results: Mapping[str, SpectralDensity | AsymmetricOperator]
) -> dict[str, SpectralDensity]:
    """Spectra, with those of blocks that are zero up to rounding; other blocks that are not symmetric are refused."""
    known = [result for result in results.values() if isinstance(result, SpectralDensity)]
    largest = max((max(map(abs, spectrum.support)) for spectrum in known), default=0.0)
    found: dict[str, SpectralDensity] = {}
    for name, result in results.items():
        if isinstance(result, AsymmetricOperator):
            if result.size > _ROUNDING_EPS * torch.finfo(blocks[name].dtype).eps * largest:
                raise InputError(f"blocks[{name!r}]: {result}") from result
            found[name] = density_at_zero(blocks[name])
        else:
            found[name] = result
    return found


def _expect_fitting(name: str, result: SpectralDensity | Estimate, score: str) -> None:
    wanted = SpectralDensity if score == "js" else Estimate
    if not isinstance(result, wanted):
        raise InputError(f"blocks[{name!r}]: got {type(result).__name__}, expected {wanted.__name__} for {score!r}.")
