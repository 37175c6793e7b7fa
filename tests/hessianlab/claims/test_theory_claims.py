"""The claims about the paper's theory and about one query-key matrix or two notice when things are different."""

import math
from dataclasses import replace

import pytest
import torch

from hessianlab import paper
from hessianlab.claims import definition, quantities, samples
from hessianlab.claims.finding import Verdict
from hessianlab.claims.topics import (
    blocks,
    depth,
    growth,
    latent_attention,
    linear_attention,
    moments,
    output_gates,
    query_key_curvature,
    query_key_matrices,
    query_key_norm,
    token_embeddings,
)
from tests.hessianlab.claims.verdicts import examine, verdict


@pytest.fixture
def afresh():
    """No measurement from before, and none left behind."""
    definition.forget()
    yield
    definition.forget()


def scaled(function, factor):
    return lambda *args, **kwargs: factor * function(*args, **kwargs)


def without_product_term(setting, row, col):
    """Theorem 3.2 with the second summand of the query-key block forgotten."""
    if (row, col) == ("Q", "K"):
        return paper.theorem_3_2_query_key(setting)[0]
    return theorem_3_2(setting, row, col)


theorem_3_2 = paper.theorem_3_2
FORMULAS = {
    "P2": ("lemma_b_1", scaled(paper.lemma_b_1, 1 + 1e-8)),
    "P3": ("theorem_3_1", scaled(paper.theorem_3_1, 1 + 1e-8)),
    "P6": ("theorem_3_2", without_product_term),
    "P8": ("z_1_from_moments", lambda X, A: paper.khatri_rao(X, paper.moment_2(X, A) + 1e-6, row_blocks=len(X))),
    "P11": ("equation_16", lambda X, Y: paper.equation_17(X, Y)[:, : X.numel()]),
    "P13": ("lemma_b_3", lambda A: (A, A.T)),
    "P14": ("remark_4_1_outer", scaled(paper.remark_4_1_outer, 2)),
    "P15": ("remark_4_1_functional", scaled(paper.remark_4_1_functional, -1)),
    "P18": ("remark_d_1_u", lambda setting: paper.lemma_4_1(paper.merge_query_key(setting), "outer", printed=True)),
    "P4": ("theorem_3_1", scaled(paper.theorem_3_1, 1 + 1e-8)),
    "P10": ("softmax_second_derivative", scaled(paper.softmax_second_derivative, 1 + 1e-8)),
    "B7": ("lemma_4_1", scaled(paper.lemma_4_1, 2)),
    "P24": ("lemma_d_2", lambda d_V, d_K: 2 * d_K * d_V - d_K**2 - 1),
    "B16": ("lemma_d_2", lambda d_V, d_K: d_V * d_K),
    "B17": ("lemma_d_2", lambda d_V, d_K: d_V * d_K),
}


@pytest.mark.parametrize("id", FORMULAS)
def test_a_wrong_formula_fails(id, monkeypatch, afresh):
    name, wrong = FORMULAS[id]
    monkeypatch.setattr(paper, name, wrong)
    assert verdict(id) is Verdict.FAILS


CORRECTIONS = {
    "P9": ("z_2_from_moments", scaled(paper.z_2_from_moments, 2)),
    "P12": ("equation_13", lambda A, printed=False: 3 * paper.vec(A)),
    "P17": ("lemma_4_1", lambda single, part="full", printed=False: torch.eye(single.d_V**2, dtype=torch.float64)),
    "P19": ("query_first", lambda matrix: matrix),
    "B8": ("query_first", lambda matrix: matrix),
    "B19": ("lemma_d_2", lambda d_V, d_K: 1),
}


@pytest.mark.parametrize("id", CORRECTIONS)
def test_a_wrong_correction_is_not_confirmed(id, monkeypatch, afresh):
    name, wrong = CORRECTIONS[id]
    monkeypatch.setattr(paper, name, wrong)
    assert not examine(id).confirmed


def softer(x):
    return torch.relu(x) ** 2


WORLDS = {
    "P25": (growth, "at_scale", lambda one, sigma, at=growth.at_scale: at(one, sigma**1.1)),
    "P39": (moments, "second_moment", lambda A, X: torch.ones(2)),
    "P44": (linear_attention, "relative_minimum", lambda matrix: 0.0),
    "P46": (depth, "_stack", lambda X, w, depth, stack=depth._stack: stack(X**2, w, depth)),
    "P47": (depth, "_unchanged", lambda x: x**2),
    "P48": (depth, "ACTIVATIONS", {**depth.ACTIVATIONS, "ReLU": softer}),
    "P49": (blocks, "holding", lambda layer, X, A: layer),
    "B3": (
        query_key_matrices,
        "merged",
        lambda one: one.weights["Q"] @ one.weights["K"].T * math.sqrt(one.shape[2] + 1),
    ),
    "B11": (query_key_matrices, "t_functional_of_one_matrix", lambda: 1.0),
    "B22": (query_key_matrices, "_factors", lambda W, k: (W[:, :1].expand(-1, k), W[:, :1].expand(-1, k))),
}


@pytest.mark.expensive
@pytest.mark.parametrize("id", WORLDS)
def test_the_verdict_follows_the_measurement(id, monkeypatch, afresh):
    module, name, other = WORLDS[id]
    monkeypatch.setattr(module, name, other)
    assert verdict(id) is Verdict.FAILS


def test_a_claim_that_fails_would_hold_at_a_perfect_fit(monkeypatch, afresh):
    """At a residual of zero the second derivative of the softmax drops out and the claim is true."""
    fitted = [one.at_target for one in samples.many_samples()]
    monkeypatch.setattr(query_key_curvature, "many_samples", lambda: fitted)
    assert verdict("B9") is Verdict.HOLDS


def test_samples_are_measured_once_for_each_set_of_seeds(afresh):
    first = samples.small_samples()
    assert samples.small_samples() is first
    with definition.drawing_from(7):
        other = samples.small_samples()
    assert other is not first and not torch.equal(other[0].X, first[0].X)
    assert samples.small_samples() is first


def test_holding_keeps_the_attention_matrix():
    one = samples.sample(3, 5, 3, 2)
    A = torch.softmax(samples.normal(1, 5, 5), -1)
    doubled = one.layer.with_parameters({"Q": 2 * one.weights["Q"]})
    for layer, X in ((one.layer, one.X), (doubled, 3 * one.X), (replace(one.layer, temperature=0.1), one.X)):
        torch.testing.assert_close(samples.holding(layer, X, A).attention(X), A)


def test_witness_agrees_with_the_library():
    for one in (samples.sample(1, 4, 3, 2), samples.sample(2, 4, 3, 2).linear):
        for part in ("outer", "functional", "full"):
            torch.testing.assert_close(getattr(one.by_autograd, part), one.hessian.part(part)[:].to_dense())
        with pytest.raises(KeyError):
            one.by_autograd.place("O")


def test_gap_of_different_sizes_is_infinite():
    assert quantities.gap(torch.ones(2), torch.ones(3)) == math.inf
    assert quantities.gap(torch.ones(1), torch.zeros(1)) == 1.0
    assert math.isnan(quantities.slope([1, 2], [1, 0]))


QUERY_KEY_NORMS = {
    "D1": ("_mean_norm", lambda part, block, scale, gain, eps=0: scale if block == "Q" else 1.0),
    "D2": ("_mean_norm", lambda part, block, scale, gain, eps=0: scale**3),
    "D3": ("_largest", lambda seed, gain, factor: (factor, 1.0)),
    "D4": ("_shifted_outputs", lambda seed: (0.5, 1.0)),
    "D5": ("_row_moments", lambda weights, tokens: (tokens[0], 1.0 + weights[-1] + torch.eye(tokens.shape[1]))),
}


@pytest.mark.parametrize("id", QUERY_KEY_NORMS)
def test_claims_about_norms_and_sinks_follow_the_measurement(id, monkeypatch, afresh):
    name, other = QUERY_KEY_NORMS[id]
    monkeypatch.setattr(query_key_norm, name, other)
    assert verdict(id) is Verdict.FAILS


def latent_norms_of_no_norm(seed, normed, scale):
    """The powers of plain attention, whether latents are normalised or not."""
    return {name: scale ** (2 if name == "W_VB" else 6) for name in latent_attention.FACTORS}


GATES_AND_FACTORS = {
    "D6": (output_gates, "_sharpness", lambda seed, std, values, scores: (2.0, 0.25, 1.0), Verdict.FAILS),
    "D7": (output_gates, "_changed_ratio", lambda seed, scale, std: (0.5, 0.0), Verdict.FAILS),
    "D8": (output_gates, "_signs", lambda seed, function: (-0.5, 0.0, -0.5, 0.0), Verdict.FAILS),
    "D9": (latent_attention, "_share_outside", lambda H, part: 0.0, Verdict.HOLDS),
    "D10": (latent_attention, "_latent_norms", latent_norms_of_no_norm, Verdict.FAILS),
}


@pytest.mark.parametrize("id", GATES_AND_FACTORS)
def test_claims_about_gates_and_factors_follow_the_measurement(id, monkeypatch, afresh):
    module, name, other, becomes = GATES_AND_FACTORS[id]
    monkeypatch.setattr(module, name, other)
    assert verdict(id) is becomes


def words_by_themselves(model, inputs, targets):
    """No block between the uses or between words, a flat look-up, and rows as curved as their words are frequent."""
    counts = torch.bincount(targets.flatten(), minlength=token_embeddings.VOCAB)
    unembedding = (counts.double() + 1).repeat_interleave(token_embeddings.D_MODEL).diag()
    nothing = torch.zeros_like(unembedding)
    look_up = torch.eye(len(unembedding), dtype=torch.float64)
    return token_embeddings.TiedCurvature(unembedding, look_up, unembedding, nothing, nothing, nothing, counts, counts)


@pytest.mark.parametrize("id", ["D11", "D12", "D13", "D14"])
def test_claims_about_embeddings_follow_the_measurement(id, monkeypatch, afresh):
    monkeypatch.setattr(token_embeddings, "STEPS", 0)
    monkeypatch.setattr(token_embeddings, "_curvature", words_by_themselves)
    assert verdict(id) is Verdict.HOLDS
