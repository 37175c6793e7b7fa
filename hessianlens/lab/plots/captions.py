"""What the pictures of single experiments show; growth figures have captions of their own in `growth_text`."""

from __future__ import annotations

from collections.abc import Mapping

CAPTIONS: Mapping[tuple[str, str], str] = {
    ("fig1", "whole"): (
        "Every second derivative of the loss with respect to a pair of weights, on a logarithmic colour scale; each "
        "tile shows its largest entry. White lines separate the weight matrices. Dark bands: queries and keys."
    ),
    ("fig1", "attention"): "The part that belongs to the attention layer's four weight matrices, from the closed form.",
    ("fig1", "histogram"): (
        "Absolute entries of the query and of the value block, all draws of the weights together; thin lines mark the "
        "medians."
    ),
    ("fig4", "histogram"): (
        "The same histograms with softmax (left) and with the softmax left out (right); thin lines mark the medians."
    ),
    ("table1", "table"): (
        "Powers of the data's covariance Σ and of the residual's correlation with the data Ω in every block of a "
        "linear MLP and of linear attention: as printed, and as measured by scaling the data. The gap is that of the "
        "block written in Σ, Ω and the weights alone."
    ),
    ("activation_magnitudes", "sizes"): (
        "Root mean square entry of each diagonal block by activation of the attention scores; marks are geometric "
        "means over draws of the weights, bars reach from the smallest to the largest draw."
    ),
    ("activation_growth", "exponents"): (
        "Multiply the tokens by a small σ: each block's norm goes as σ to the power in its cell, here as measured, "
        "with the loss gradient held. A cross would mark a power that counting does not predict."
    ),
    ("activation_growth", "curves"): (
        "The norms behind four rows of the table: lines are means over draws, bands the smallest to the largest draw, "
        "and powers are fitted in the shaded range."
    ),
    ("moment_strata", "strata"): (
        "From uniform attention (left) to one-hot attention (right), by multiplying the scores. Thick lines are "
        "geometric means over draws, thin ones single draws. The value block follows the mean token, the query block "
        "the covariance and the third moment, which vanish when attention looks at one token only."
    ),
    ("paired_spectrum", "spectra"): (
        "Eigenvalues of the query-key part of one draw, on an axis that is linear near zero and logarithmic beyond: "
        "blue dots positive, yellow triangles negative, grey zero. The line is the closed form, plus and minus the "
        "singular values of a d × d matrix."
    ),
    ("rank_fraction", "ranks"): (
        "Rank of the T-outer-product Hessian, the part of the query-key curvature that a single merged matrix has as "
        "well, as a share of the parameters (left) and of the merged matrix's size (right), for two lengths."
    ),
    ("parameterisations", "spectra"): (
        "Eigenvalues of the query-key Hessian with two matrices (top) and with one (bottom) that computes the same "
        "function; blue dots positive, yellow triangles negative."
    ),
    ("parameterisations", "numbers"): (
        "The same function with two query-key matrices and with one: marks are medians over draws, bars reach from the "
        "smallest to the largest draw."
    ),
}
"""By experiment and picture."""
