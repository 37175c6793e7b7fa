"""Wrong input is named: the argument, what it got, what was expected."""

from __future__ import annotations

import pytest
import torch

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
    "mask shape": (lambda: layer(mask=torch.ones(5, 4, dtype=torch.bool)), r"mask: got \(5, 4\), expected.*\(L, L\)"),
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
    "factored widths": (lambda: hl.FactoredValueAttention(W, W, W, V), r"W_U: got shape \(4, 4\), expected \(3, 4\)"),
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
    "loss not scalar": (lambda: hessian(loss=hl.CustomLoss(lambda f: f)), r"function: returned \(5, 4\).*scalar"),
    "loss not callable": (lambda: hl.CustomLoss(3), "function: got int"),
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
        lambda: hessian(grad=Y, curvature=hl.LowRankTokenCurvature(randn(4, 4, 2))),
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
    "growth block": (lambda: hl.predicted_growth("softmax", "outer", "Q", "O"), "row and column: got 'O'"),
}


@pytest.mark.parametrize("case", CASES)
def test_message(case: str) -> None:
    make, message = CASES[case]
    with pytest.raises(hl.InputError, match=message):
        make()


def test_input_error_is_a_value_error() -> None:
    assert issubclass(hl.InputError, ValueError)
