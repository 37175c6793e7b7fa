"""The sweeps of `scaling`, with the growth that the closed forms let one expect.

With N = B L tokens and d = d_K = d_V. For norms two score parameters share one matrix a token: the L x L matrix ``M_i``
itself while L <= d, and ``P^T M_i P'``, d x d, beyond. Products and traces form none: a product is a tangent pass
through the layer and back, and a trace is made of Gram matrices of the tokens, keys and values of a sequence.
"""

from __future__ import annotations

from benchmarks.depth import Stack, runs_of_stack
from benchmarks.problem import Size
from benchmarks.scaling import GRADIENT, Expectation, Sweep, runs_of_layer

SHORT = Sweep(
    name="tokens up to d",
    label="tokens L   (d = 64, batch 4; L up to d)",
    field="length",
    values=(8, 16, 24, 32, 48, 64),
    base=Size(batch=4, length=0, width=64),
    expected={
        "norms": Expectation(2, 4, "Gram matrices of all pairs of tokens, B^2 L^2 d, and all pairs of M_i, B^2 L^4"),
        "product": Expectation(1, 2, "projections of the tokens, B L d^2, and averages, B L^2 d"),
        "trace": Expectation(1, 3, "the forward pass, B L d^2, Gram matrices B L^2 d, and their averages, B L^3"),
        GRADIENT: Expectation(1, 2, "projections of the tokens, B L d^2, and averages, B L^2 d"),
    },
    runs=runs_of_layer,
)
LONG = Sweep(
    name="tokens beyond d",
    label="tokens L   (d = 24, batch 4; L beyond d)",
    field="length",
    values=(32, 48, 64, 96, 128, 160),
    base=Size(batch=4, length=0, width=24),
    expected={
        "norms": Expectation(2, 3, "all pairs of d x d matrices, B^2 L^2 d^2, and forming them, B L^3 d"),
        "product": Expectation(1, 2, "projections of the tokens, B L d^2, and averages, B L^2 d"),
        "trace": Expectation(1, 3, "the forward pass, B L d^2, Gram matrices B L^2 d, and their averages, B L^3"),
        GRADIENT: Expectation(1, 2, "projections of the tokens, B L d^2, and averages, B L^2 d"),
    },
    runs=runs_of_layer,
)
WIDTH = Sweep(
    name="width",
    label="width d = d_K = d_V   (L = 32, batch 4; d from L)",
    field="width",
    values=(32, 64, 96, 128, 192, 256),
    base=Size(batch=4, length=32, width=0),
    expected={
        "norms": Expectation(
            0, 2, "pairs of M_i know no d, B^2 L^4; Gram matrices B^2 L^2 d, the forward pass B L d^2"
        ),
        "product": Expectation(1, 2, "averages, B L^2 d, and projections of the tokens, B L d^2"),
        "trace": Expectation(0, 2, "averages of Gram matrices, B L^3, these B L^2 d, and the forward pass B L d^2"),
        GRADIENT: Expectation(1, 2, "averages, B L^2 d, and projections of the tokens, B L d^2"),
    },
    runs=runs_of_layer,
)
BATCH = Sweep(
    name="batch",
    label="batch B   (L = 32, d = 64)",
    field="batch",
    values=(1, 2, 4, 8, 16),
    base=Size(batch=0, length=32, width=64),
    expected={
        "norms": Expectation(1, 2, "all pairs of tokens; the factors themselves grow with B"),
        "product": Expectation(0, 1, "a sum over tokens; what goes through the merged matrix, d^3, is free of B"),
        "trace": Expectation(1, 1, "a sum over tokens"),
        GRADIENT: Expectation(1, 1, "a sum over tokens"),
    },
    runs=runs_of_layer,
)
LAYERS = Sweep(
    name="layers",
    label="layers n   (d = 128, 8 x 64 tokens)",
    field="layers",
    values=(3, 4, 6, 8, 12),
    base=Stack(layers=0),
    expected={
        "norms": Expectation(1, 2, "a product goes through the layers above its block: half of n^2 in all"),
        "product": Expectation(1, 1, "through all layers and back"),
        "trace": Expectation(1, 1, "a fixed number of products, and writing down their steps"),
        GRADIENT: Expectation(1, 1, "through all layers and back"),
    },
    runs=runs_of_stack,
    rounds=5,
)
SWEEPS = (SHORT, LONG, WIDTH, BATCH, LAYERS)
