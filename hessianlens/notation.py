"""Index letters and conventions, one place for the whole package.

Parameters are vectorised row-major: the flat index of a matrix parameter is (row, column), so that
``vec(A X B) = (A kron B^T) vec(X)`` and ``vec(X)`` is ``X.reshape(-1)``.

Every structured operator is written with the same letters:

======  ==========================================================================
letter  meaning
======  ==========================================================================
a, b    row and column of the parameter that indexes the operator's rows
c, d    row and column of the parameter that indexes the operator's columns
s       sequence of the batch
i, j    query token (j: a second one, when the loss couples tokens)
l, m    key token
e       entry of a query or key after its rotation
f, g    output feature
r       rank of a factored matrix
z       vectors multiplied at once
======  ==========================================================================
"""

from __future__ import annotations

ROW_AXES = "ab"
COLUMN_AXES = "cd"
VECTORS = "z"
SEQUENCE = "s"

ACTIVATION_NAMES = (
    "softmax",
    "linear",
    "sigmoid",
    "sigmoid_log_length",
    "relu",
    "tanh",
    "exp",
    "relu_normalised",
    "row_sum",
)
"""Attention activations by name; `attention.activations.ACTIVATIONS` has what they stand for, which takes torch."""

ACTIVATION_TITLES = {
    "relu": "ReLU",
    "sigmoid_log_length": "sigmoid(t \N{MINUS SIGN} log L)",
    "relu_normalised": "ReLU / row sum",
    "relu_length": "ReLU / length",
    "row_sum": "scores / row sum",
}
"""What readers call an activation, where that is not its name: t is a score, L the length of the sequence."""

CARRIES = ("none", "chains", "mixed")
"""Batches of the addition task: digits as drawn, with carry chains, or one batch of five with them."""
