"""Wrong input is named: the argument, what it got, what was expected."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hessianlens as hl
from tests.variants import DOUBLE, randn

W = randn(4, 3)
V = randn(4, 4, seed=1)
X = randn(5, 4, seed=2)
Y = randn(5, 4, seed=3)
LAYER = hl.SelfAttention(W, W, V)
NAN = W.clone()
NAN[1, 2] = float("nan")


def layer(**changes):
    return hl.SelfAttention(**{"W_Q": W, "W_K": W, "W_V": V, **changes})


def hessian(X=X, loss=None, **derivatives):
    return hl.attention_hessian(LAYER, X, loss, **derivatives)


CASES = {
    "not a tensor": (lambda: hessian([[1.0]]), r"X: got list, expected a 2-dimensional or 3-dimensional torch tensor"),
    "wrong ndim": (lambda: layer(W_Q=randn(4)), r"W_Q: got shape \(4,\), expected a 2-dimensional"),
    "integers": (lambda: hessian(torch.ones(5, 4, dtype=torch.int64)), r"X: got dtype torch.int64.*floating"),
    "half precision weights": (
        lambda: hl.SelfAttention(W.half(), W.half(), V.half()),
        r"W_Q: got dtype torch.float16, expected.*float32 or float64; convert it with .double\(\) or .float\(\)",
    ),
    "half precision tokens": (lambda: hessian(X.bfloat16()), r"X: got dtype torch.bfloat16.*float32 or float64"),
    "half precision targets": (lambda: hl.SquareLoss(Y.half()), r"targets: got dtype torch.float16"),
    "empty weight": (lambda: layer(W_Q=randn(4, 0), W_K=randn(4, 0)), r"W_Q: got an empty tensor of shape \(4, 0\)"),
    "not finite": (lambda: layer(W_K=NAN), r"W_K: got 1 non-finite of 12 entries \(the first at index \(1, 2\)\)"),
    "mismatched keys": (
        lambda: layer(W_K=randn(4, 2)),
        r"W_K: got shape \(4, 2\), expected \(4, 3\) \(the shape of W_Q",
    ),
    "mismatched values": (lambda: layer(W_V=randn(3, 3)), r"W_V: got shape \(3, 3\), expected \(4, 3\)"),
    "mixed dtypes": (lambda: layer(W_V=V.float()), r"different dtype: W_Q is torch.float64.*W_V is torch.float32"),
    "mixed devices": (
        lambda: layer(W_V=torch.empty(4, 4, dtype=DOUBLE, device="meta")),
        r"different device: W_Q is cpu.*W_V is meta",
    ),
    "temperature": (lambda: layer(temperature=0.0), r"temperature: got 0.0, expected a positive"),
    "activation": (lambda: layer(activation="sofmax"), r"activation: got 'sofmax', expected one of softmax"),
    "mask dtype": (lambda: layer(mask=torch.ones(5, 5)), r"mask: got dtype torch.float32, expected torch.bool"),
    "mask shape": (lambda: layer(mask=torch.ones(5, dtype=torch.bool)), r"mask: got \(5,\), expected.*\(L, L\)"),
    "mask for other keys": (
        lambda: hl.attention_hessian(layer(mask=torch.ones(5, 4, dtype=torch.bool)), X, hl.SquareLoss(Y)),
        r"mask: got shape \(5, 4\), expected \(5, 5\)",
    ),
    "mask length": (
        lambda: hl.attention_hessian(layer(mask=torch.ones(3, 3, dtype=torch.bool)), X, hl.SquareLoss(Y)),
        r"mask: got shape \(3, 3\), expected \(5, 5\)",
    ),
    "bias nan": (lambda: layer(bias=torch.full((5, 5), torch.nan)), r"bias: got nan or \+inf"),
    "no heads": (lambda: hl.MultiHeadAttention([]), "heads: got an empty list"),
    "not a head": (lambda: hl.MultiHeadAttention([LAYER, W]), r"heads\[1\]: got Tensor"),
    "heads of other widths": (
        lambda: hl.MultiHeadAttention([LAYER, layer(W_V=randn(4, 2))]),
        r"heads\[1\]: got d_v = 2, expected 4",
    ),
    "single matrix not square": (
        lambda: hl.SingleMatrixAttention(W, V),
        r"W_QK: got shape \(4, 3\), expected \(4, 4\)",
    ),
    "factored widths": (
        lambda: hl.attention.FactoredValueAttention(W, W, W, V),
        r"W_U: got shape \(4, 4\), expected \(3, 4\)",
    ),
    "not a layer": (lambda: hl.attention_hessian(torch.nn.Linear(2, 2), X, hl.SquareLoss(Y)), "layer: got Linear"),
    "empty sequence": (lambda: hessian(randn(0, 4), hl.SquareLoss(Y)), r"X: got an empty tensor of shape \(0, 4\)"),
    "token width": (lambda: hessian(randn(5, 3), hl.SquareLoss(Y)), r"X: got tokens of width 3, expected 4"),
    "token dtype": (lambda: hessian(X.float(), hl.SquareLoss(Y)), r"different dtype: X is torch.float32"),
    "infinite tokens": (lambda: hessian(X / 0, hl.SquareLoss(Y)), r"X: got 20 non-finite of 20"),
    "no loss": (lambda: hessian(), r"give loss=SquareLoss\(Y\), or both grad"),
    "both": (lambda: hessian(loss=hl.SquareLoss(Y), curvature=1.0), "either a loss or grad and curvature"),
    "a function as loss": (lambda: hessian(loss=lambda F: F.sum()), "expected a Loss.*CustomLoss"),
    "targets shape": (
        lambda: hessian(loss=hl.SquareLoss(Y[:3])),
        r"targets: got shape \(3, 4\).*expected\s+\(1, 5, 4\)",
    ),
    "reduction": (lambda: hl.SquareLoss(Y, reduction="avg"), r"reduction: got 'avg', expected one of 'mean', 'sum'"),
    "float classes": (lambda: hl.CrossEntropyLoss(Y), "targets: expected an integer tensor"),
    "class out of range": (
        lambda: hessian(loss=hl.CrossEntropyLoss(torch.full((5,), 4))),
        r"targets: got a class outside 0 \.\. 3",
    ),
    "all ignored": (
        lambda: hessian(loss=hl.CrossEntropyLoss(torch.full((5,), -100))),
        "at least one token with a loss",
    ),
    "loss not scalar": (
        lambda: hessian(loss=hl.losses.CustomLoss(lambda f: f)),
        r"function: returned \(5, 4\).*scalar",
    ),
    "loss not callable": (lambda: hl.losses.CustomLoss(3), "function: got int"),
    "grad shape": (lambda: hessian(grad=Y[:2], curvature=1.0), r"grad: got shape \(2, 4\).*expected \(1, 5, 4\)"),
    "grad missing": (lambda: hessian(curvature=1.0), "both grad"),
    "grad no tensor": (lambda: hessian(grad=1.0, curvature=1.0), "grad: got float"),
    "curvature shape": (
        lambda: hessian(grad=Y, curvature=randn(2, 2)),
        r"curvature: got shape \(2, 2\), expected a number",
    ),
    "curvature kind": (lambda: hessian(grad=Y, curvature="1"), "curvature: got str"),
    "curvature not symmetric": (lambda: hessian(grad=Y, curvature=randn(5, 4, 4)), r"symmetric.*\(C \+ C\^T\) / 2"),
    "curvature not finite": (lambda: hessian(grad=Y, curvature=float("inf")), "curvature: got 1 non-finite"),
    "curvature dtype": (
        lambda: hessian(grad=Y, curvature=torch.eye(4).expand(5, 4, 4)),
        "curvature: got torch.float32",
    ),
    "root shape": (
        lambda: hessian(grad=Y, curvature=hl.losses.LowRankTokenCurvature(randn(4, 4, 2))),
        r"curvature root: got shape \(4, 4, 2\), expected \(5, 4, 2\)",
    ),
    "unknown part": (
        lambda: hessian(loss=hl.SquareLoss(Y)).part("inner"),
        "part: got 'inner', expected one of 'outer'",
    ),
    "unknown block": (
        lambda: hessian(loss=hl.SquareLoss(Y)).full["Q", "O"],
        r"Block 'O': unknown name; this matrix has 'Q', 'K', 'V'",
    ),
    "growth block": (lambda: hl.layer.predicted_growth("softmax", "outer", "Q", "O"), "row and column: got 'O'"),
}


A = torch.softmax(randn(5, 5), -1)
MATRIX = torch.eye(3, dtype=DOUBLE)
ARRAY = np.eye(3)
META = torch.empty(5, 4, dtype=DOUBLE, device="meta")


class Lookalike:
    """Has what an operator has, and gives products of no use."""

    shape, dtype, device = (3, 3), DOUBLE, torch.device("cpu")

    def __init__(self, product: Any) -> None:
        self.product = product

    def __matmul__(self, other: object) -> Any:
        return self.product(other)


def problem() -> Any:
    return hl.problem(nn.Linear(3, 2).to(DOUBLE), (randn(4, 3), torch.tensor([0, 1, 1, 0])), "cross_entropy")


def broken(*args: object) -> Any:
    raise ZeroDivisionError("in the function")


CASES |= {
    "sparse tokens": (lambda: hessian(X.to_sparse()), r"X: got a sparse tensor \(torch.sparse_coo\).*\.to_dense"),
    "meta tokens": (lambda: hessian(META), "X: got a tensor on the meta device, which holds a shape and no numbers"),
    "an array as tokens": (lambda: hessian(X.numpy()), r"X: got ndarray, expected .* wrap it with torch.as_tensor"),
    "meta mask": (lambda: layer(mask=torch.ones(5, 5, dtype=torch.bool, device="meta")), "mask: .*meta device"),
    "an activation that fails": (
        lambda: hl.attention_hessian(layer(activation=broken), X, hl.SquareLoss(Y)),
        "activation broken: it failed: in the function; it was given a row of 5 scores",
    ),
    "a loss that fails": (
        lambda: hessian(loss=hl.losses.CustomLoss(broken)),
        "function: it failed: in the function; it was",
    ),
    "NaN in weights": (lambda: hl.attention.first_moment(A * float("nan"), X), "A: got 25 non-finite of 25 entries"),
    "NaN in tokens": (lambda: hl.attention.second_moment(A, X * float("nan")), "X: got 20 non-finite of 20 entries"),
    "infinite tokens of a moment": (lambda: hl.attention.third_moment(A, X / 0), "X: got 20 non-finite"),
    "NaN in a direction": (
        lambda: hl.attention.third_moment_along(A, X, X * float("nan")),
        "direction: got 20 non-finite",
    ),
    "moments of other shapes": (
        lambda: hl.attention.first_moment(A, X[:3]),
        r"A and X: got shapes \(5, 5\) and \(3, 4\), expected \(\.\.\., L, L\)",
    ),
    "moments of arrays": (lambda: hl.attention.first_moment(A.numpy(), X), "A: got ndarray, expected a torch tensor"),
    "moments of other kinds": (lambda: hl.attention.first_moment(A.float(), X), "different dtype: A is torch.float32"),
    "a direction of another shape": (
        lambda: hl.attention.third_moment_along(A, X, X[:2]),
        r"direction: got shape \(2, 4\), expected \(5, 4\) \(one for every row of A\)",
    ),
    "entropy of NaN": (lambda: hl.attention.attention_entropy(A * float("nan")), "A: got 25 non-finite"),
    "entropy of an array": (lambda: hl.attention.attention_entropy(A.numpy()), "A: got ndarray"),
    "entropy of nothing": (lambda: hl.attention.attention_entropy(A[:0]), r"A: got shape \(0, 5\), expected rows"),
    "random weights of no size": (lambda: hl.SelfAttention.random(0), "d_model: got 0, expected a whole number of at"),
    "random weights of half a size": (lambda: hl.SelfAttention.random(4, 2.5), "d_k: got 2.5, expected a whole number"),
    "random weights that do not fit": (lambda: hl.SelfAttention.random(10**9), "The weights of shape .* would need"),
    "random weights, a text": (lambda: hl.SelfAttention.random("4"), "d_model: got '4', expected a whole number"),
    "random weights, seed": (
        lambda: hl.SelfAttention.random(4, seed=-1),
        "seed: got -1, expected a whole number from 0",
    ),
    "random weights, dtype": (lambda: hl.SelfAttention.random(4, dtype=torch.int64), "dtype: got torch.int64"),
    "random weights, option": (lambda: hl.SelfAttention.random(4, mask_=1), "options: got 'mask_', expected one of"),
    "a rank of negative sizes": (
        lambda: hl.layer.t_outer_rank(-1, 8, 4),
        "length: got -1, expected a whole number of at least",
    ),
    "a rank of half a size": (lambda: hl.layer.t_outer_rank(9, 8, 2.5), "d_k: got 2.5, expected a whole number"),
    "a rank of a text": (lambda: hl.layer.t_outer_rank(9, "8", 4), "d_model: got '8', expected a whole number"),
    "a rank of True": (lambda: hl.layer.t_outer_rank(True, 8, 4), "length: got True, expected a whole number"),
    "a bound of nothing": (
        lambda: hl.layer.t_outer_rank_bound(0, 4),
        "d_model: got 0, expected a whole number of at least 1",
    ),
    "growth of no tokens": (
        lambda: hl.layer.predicted_growth("softmax", "outer", "Q", "Q", length=0),
        "length: got 0, exp",
    ),
    "growth of too many tokens": (
        lambda: hl.layer.predicted_growth("softmax", "outer", "Q", "Q", length=10**6),
        "derivatives of every row of shape .* would need",
    ),
    "growth of a broken activation": (
        lambda: hl.layer.predicted_growth(broken, "outer", "Q", "Q"),
        "activation broken: it",
    ),
    "growth of no depth": (
        lambda: hl.layer.linear_attention_growth(10**9),
        "depth: got 1000000000, expected .* from 1",
    ),
    "pairs of nothing": (
        lambda: hl.layer.eigenvalue_pairs(MATRIX),
        "H: got Tensor of shape .*, expected an AttentionHessian",
    ),
    "pairs of no head": (
        lambda: hl.layer.eigenvalue_pairs(hessian(loss=hl.SquareLoss(Y)), 1),
        "head: got 1, expected a whole",
    ),
    "an array as operator": (lambda: hl.trace(ARRAY), r"op: got ndarray of shape \(3, 3\), .* torch.from_numpy"),
    "an array in a spectrum": (lambda: hl.density(ARRAY), r"op: got ndarray of shape .* torch.from_numpy"),
    "no operator at all": (lambda: hl.frobenius([[1.0]]), "op: got list without shape, dtype, device"),
    "a class as operator": (lambda: hl.trace(Lookalike), "op: got type of shape .*, expected a linear operator"),
    "a meta matrix": (lambda: hl.trace(MATRIX.to("meta")), "op: got a matrix on the meta device"),
    "products that fail": (
        lambda: hl.trace(Lookalike(broken)),
        "op: a product with it failed: in the function; it was",
    ),
    "products that are texts": (
        lambda: hl.trace(Lookalike(str)),
        "op: a product with vectors is .*, expected a tensor",
    ),
    "products of another shape": (
        lambda: hl.trace(Lookalike(lambda v: v[:2])),
        r"is Tensor of shape \(2, 3\), expected",
    ),
    "a progress that cannot be told": (lambda: hl.trace(MATRIX, progress=3), "progress: got 3, expected a function"),
    "probes that are no number": (
        lambda: hl.frobenius(MATRIX, probes="20"),
        "probes: got '20', expected a whole number",
    ),
    "probes that are True": (lambda: hl.frobenius(MATRIX, probes=True), "probes: got True, expected a whole number"),
    "a seed that is no number": (lambda: hl.trace(MATRIX, seed=0.5), "seed: got 0.5, expected a non-negative whole"),
    "nothing to compare": (lambda: hl.heterogeneity([MATRIX, MATRIX]), "blocks: got list, expected a mapping"),
    "a vector of another length": (
        lambda: hessian(loss=hl.SquareLoss(Y)).full["Q", "Q"] @ randn(5),
        r"vector: got shape \(5,\) for an operator 12x12, expected \(12,\), \(12, k\), or a list",
    ),
    "an array as vector": (
        lambda: hessian(loss=hl.SquareLoss(Y)).full["Q", "Q"] @ np.ones(12),
        "vector: got ndarray, expected a torch tensor, or a list of them; wrap it with torch.as_tensor",
    ),
    "a complex vector": (
        lambda: hessian(loss=hl.SquareLoss(Y)).full @ (randn(40) + 0j),
        "vector: got dtype torch.comp",
    ),
    "an operator of another shape": (
        lambda: hessian(loss=hl.SquareLoss(Y)).full["Q", "Q"] + hessian(loss=hl.SquareLoss(Y)).full["V", "V"],
        "operator: got one 16x16 on other parameters, expected 12x12",
    ),
    "times NaN": (
        lambda: hessian(loss=hl.SquareLoss(Y)).full * float("nan"),
        "scalar: got nan, expected a finite number",
    ),
    "divided by zero": (
        lambda: hessian(loss=hl.SquareLoss(Y)).full / 0,
        "scalar: got 0, expected a number to divide by",
    ),
    "curvature of no problem": (
        lambda: hl.hessian(MATRIX, "0.weight"),
        "problem: got Tensor of shape .* a Problem; make",
    ),
    "Gauss-Newton of no problem": (lambda: hl.ggn("gpt2", "*"), "problem: got 'gpt2', expected a Problem"),
    "functional of no problem": (lambda: hl.functional(None, "*"), "problem: got None, expected a Problem"),
    "norms of no problem": (lambda: hl.block_norms(3), "problem: got 3, expected a Problem"),
    "pairs of no problem": (lambda: hl.block_pair_norms(3), "problem: got 3, expected a Problem"),
    "a measure of no problem": (lambda: hl.measure(3), "problem: got 3, expected a Problem"),
    "a forecast of no problem": (lambda: hl.network.forecast(3, []), "problem: got 3, expected a Problem"),
    "memory of no problem": (lambda: hl.network.fit_memory(3), "problem: got 3, expected a Problem"),
    "a forecast of names": (
        lambda: hl.network.forecast(problem(), ["weight"]),
        "blocks: got .*, expected blocks, from problem.se",
    ),
    "a forecast of another problem's blocks": (
        lambda: hl.network.forecast(problem(), [replace(problem().blocks["weight"], parameter="nosuch", name="mine")]),
        "blocks: mine is not one of this problem's",
    ),
    "a forecast of no probes": (
        lambda: hl.network.forecast(problem(), problem().select("*"), 0),
        "probes: got 0, expected",
    ),
    "norms of half a probe": (
        lambda: hl.block_norms(problem(), probes=2.5),
        "probes: got 2.5, expected a whole number",
    ),
    "norms of an array": (lambda: hl.block_norms(problem(), np.ones(2)), "blocks: got ndarray .*, expected a name"),
    "norms with a seed": (lambda: hl.block_norms(problem(), seed="0"), "seed: got '0', expected a whole number"),
    "a model of no layers": (lambda: hl.models.Transformer(layers=0), "layers: got 0, expected a whole number of at"),
    "a model of half a layer": (lambda: hl.models.Transformer(layers=1.5), "layers: got 1.5, expected a whole number"),
    "a model that does not fit": (lambda: hl.models.Transformer(layers=10**12), "The weights of shape .* would need"),
    "a model that may be causal": (lambda: hl.models.Transformer(causal="yes"), "causal: got 'yes', expected True or"),
    "digits": (lambda: hl.tasks.Addition(True), "digits: got True, expected a whole number"),
    "a batch that does not fit": (
        lambda: hl.tasks.Addition(5).batch(10**12, seed=0),
        "The batch of shape .* would need",
    ),
    "more batches than can be counted": (
        lambda: hl.tasks.Addition(5).batches(2**63, 4, seed=0),
        "count: got 9223372036854775808, expected a whole number from 0 to",
    ),
    "sums of a number": (lambda: hl.tasks.Addition(5).encode(3, 4), "x: got 3, expected a list of whole numbers"),
    "logits of a text": (lambda: hl.tasks.Addition(1).square("x", {"tokens": A}), "logits: got str|tokens: got"),
    "the ratio of no row": (
        lambda: hl.measure(problem(), probes=2, budget=None, progress=False).table.ratio("weight"),
        "row: got 'weight', expected a row of this table",
    ),
    "an estimate of a text": (
        lambda: hl.spectra.Estimate("1", 0.0, 1, 0, "exact"),
        "value: got '1', expected a number",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_message(case: str) -> None:
    make, message = CASES[case]
    with pytest.raises(hl.InputError, match=message) as failure:
        make()
    assert "\n" not in str(failure.value)


def test_numbers_of_numpy_are_numbers() -> None:
    estimate = hl.spectra.Estimate(1.0, 0.1, np.int64(3), 0, "hutchinson")
    assert str(estimate) == str(hl.spectra.Estimate(1.0, 0.1, 3, 0, "hutchinson"))


def test_a_block_that_was_not_measured() -> None:
    norms, pairs = hl.block_norms(problem(), probes=2), hl.block_pair_norms(problem(), probes=2)
    with pytest.raises(KeyError, match=r"'bus', expected a block and a part, such as \('weight', 'full'\)"):
        norms["bus"]
    with pytest.raises(KeyError, match="expected two of the blocks weight, bias"):
        pairs["weight", "nosuch"]
    assert ("bias", "full") in norms and ("nosuch", "full") not in norms and norms.get("nosuch") is None


def test_an_operator_and_a_text_do_not_add_up() -> None:
    op = hessian(loss=hl.SquareLoss(Y)).full["Q", "Q"]
    for attempt in (lambda: op + "text", lambda: op - 3):
        with pytest.raises(TypeError, match="unsupported operand"):
            attempt()


def test_input_error_is_a_value_error() -> None:
    assert issubclass(hl.InputError, ValueError)
