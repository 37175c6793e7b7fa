"""Every case of the golden numbers: a name, and a function that makes its record anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import hessianlens as hl
from tests.golden import commands
from tests.golden.inputs import MODELS, labelled, layers, losses, problem_of, randn, self_attention, toy
from tests.golden.numbers import PARTS, estimate, norms, operator, reason

LAYER_PARTS = {"full": "full", "ggn": "outer", "functional": "functional"}
SQUARE = "product norm trace diagonal"
WHOLE = f"{SQUARE} entries"

Record = dict[str, Any]


# --- one attention layer ---------------------------------------------------------------------------------------------


def layer_record(layer: Any, batch: int | None, **loss: Any) -> Record:
    """Every block of the Hessian of a layer, one of two that are each other's transpose, and the whole matrix."""
    X = randn(5, 4, seed=5) if batch is None else randn(batch, 5, 4, seed=5)
    H = hl.attention_hessian(layer, X, **(loss or losses(X)["square"]))
    found: Record = {}
    for row, column in H.full.norms():
        if str(row) <= str(column):
            wanted = SQUARE if row == column else "product norm"
            found[f"{row} x {column}"] = {
                part: operator(getattr(H, own)[row, column], wanted) for part, own in LAYER_PARTS.items()
            }
    found["whole"] = {part: operator(getattr(H, own)[:], WHOLE) for part, own in LAYER_PARTS.items()}
    found["whole"] |= {part: operator(getattr(H, part)[:]) for part in ("t_outer", "t_functional")}
    return found


def layer_norms() -> Record:
    """Norms of all blocks of a layer, by the cheapest way, exactly and sketched."""
    X = randn(2, 12, 4, seed=5)
    H = hl.attention_hessian(self_attention(causal=True), X, **losses(X)["square"])
    ways: dict[str, Any] = {"auto": {}, "exact": {}, "sketch": {}, "sketch, another seed": {"seed": 3}}
    return {
        way: norms(hl.block_norms(H, method=way.split(",")[0], **{"rtol": 0.1, **given}), reasons=way == "auto")
        for way, given in ways.items()
    }


def layer_spectrum() -> Record:
    """What is known about the query-key part."""
    X = randn(5, 4, seed=5)
    pairs = hl.layer.eigenvalue_pairs(hl.attention_hessian(self_attention(), X, **losses(X)["square"]))
    sizes = [(length, d_model, d_k) for length in (2, 5, 9) for d_model in (4, 6) for d_k in (1, 3)]
    return {
        "pairs": {"multiplicity": pairs.multiplicity, "nonzero": pairs.nonzero},
        "rank": [hl.layer.t_outer_rank(*size) for size in sizes],
        "bound of the rank": [hl.layer.t_outer_rank_bound(d_model, d_k) for _, d_model, d_k in sizes],
    }


def growth() -> Record:
    found: Record = {}
    for activation in hl.attention.activations.ACTIVATIONS:
        for part in ("outer", "functional", "full", "t_functional"):
            for row, column in ("QQ", "QK", "QV", "VV"):
                power = hl.layer.predicted_growth(activation, part, row, column)
                found.setdefault(activation, {}).setdefault(part, {})[row + column] = power
    return found


def moments() -> Record:
    """Attention moments, entropy, and attention that can be differentiated twice."""
    weights, X = torch.softmax(randn(2, 5, 5, seed=1), -1), randn(2, 5, 4, seed=2)
    q, k, v = (randn(2, 3, 6, 4, seed=s).requires_grad_() for s in range(3))
    out = hl.scaled_dot_product_attention(q, k, v, is_causal=True)
    seen = torch.cos(torch.arange(out.numel(), dtype=out.dtype)).reshape(out.shape)
    (slope,) = torch.autograd.grad((out * seen).sum(), q, create_graph=True)
    (bend,) = torch.autograd.grad((slope * slope).sum(), k)
    hidden, unembed = randn(6, 4, seed=3).requires_grad_(), randn(5, 4, seed=4)
    loss = hl.losses.linear_cross_entropy(hidden, unembed, torch.tensor([0, 1, 2, 3, 4, -100]))
    (pull,) = torch.autograd.grad(loss, hidden, create_graph=True)
    (hvp,) = torch.autograd.grad((pull * pull).sum(), hidden)
    return {
        "moments": {
            "first": [float(x) for x in hl.attention.first_moment(weights, X).flatten()[:4]],
            "second": [float(x) for x in hl.attention.second_moment(weights, X).flatten()[:4]],
            "third": [float(x) for x in hl.attention.third_moment(weights, X).flatten()[:4]],
            "entropy": [float(x) for x in hl.attention.attention_entropy(weights).flatten()[:4]],
        },
        "attention": {
            "value": float((out * seen).sum().detach()),
            "first": float(slope.detach().norm()),
            "second": float(bend.norm()),
        },
        "cross-entropy": {
            "value": float(loss.detach()),
            "first": float(pull.detach().norm()),
            "second": float(hvp.norm()),
        },
    }


# --- models ----------------------------------------------------------------------------------------------------------


def blocks(name: str) -> Record:
    """Operators of a model's blocks and pairs: automatically, exactly, and by products."""
    golden, problem = MODELS[name], problem_of(name)
    found: Record = {"names": list(problem.blocks)}
    for number, (rows, columns) in enumerate([*((block, None) for block in golden.blocks), *golden.pairs]):
        label = str(rows) if columns is None else f"{rows} x {columns}"
        more = WHOLE if columns is None or rows == columns else "product norm entries"
        found[label] = {
            "auto": _three_parts(problem, rows, columns, "auto", more),
            "exact": _three_parts(problem, rows, columns, "exact", "product"),
            "products": _three_parts(problem, rows, columns, "hvp", more if number == 0 else "product"),
        }
    return found


def _three_parts(problem: Any, rows: Any, columns: Any, method: str, wanted: str) -> Record:
    """The parts of a matrix; of one that has no closed form only a product, unless HVPs were asked for."""
    found: Record = {}
    for part, make in PARTS.items():
        try:
            op = make(problem, rows, columns, method=method)
        except hl.InputError as error:
            return {"refused": reason(str(error))}
        some = wanted if part == "full" else "product norm" if "norm" in wanted else "product"
        found[part] = operator(op, some if op.exact or method == "hvp" else "product")
        found["exact"], found["reason"] = op.exact, reason(op.why)
    return found


def model_norms(name: str) -> Record:
    """Norms of a model's blocks, by every method."""
    golden, problem = MODELS[name], problem_of(name)
    asked = list(golden.blocks)
    return {
        "auto": norms(hl.block_norms(problem, asked, probes=4), reasons=True),
        "exact": _exact_norms(problem, asked),
        "sketch": norms(hl.block_norms(problem, asked[:2], method="sketch", rtol=0.3, probes=3), reasons=True),
        "probes": norms(hl.block_norms(problem, asked[:3], method="probes", probes=3, seed=1)),
    }


def _exact_norms(problem: Any, asked: list[str]) -> Record:
    try:
        return norms(hl.block_norms(problem, asked, method="exact"))
    except hl.InputError as error:
        return {"refused": reason(str(error))}


def tied_norms() -> Record:
    """Norms of an embedding that is the unembedding too, a sum over pairs of its uses."""
    problem = problem_of("GPT-2")
    found = hl.block_norms(problem, ["embed"], probes=2)
    return {"auto": norms(found, reasons=True), "exact": _exact_norms(problem, ["embed"])}


def coupled_norms() -> Record:
    """Norms under a loss that couples sequences, which refuses the sum over positions."""
    problem = hl.problem(toy(layers=1), labelled(3), lambda out, batch: out.logsumexp(0).square().mean())
    found = hl.block_norms(problem, ["layer0.mlp.out"], probes=4)
    return {"auto": norms(found, reasons=True), "exact": _exact_norms(problem, ["layer0.mlp.out"])}


def pair_norms(name: str) -> Record:
    golden, problem = MODELS[name], problem_of(name)
    found: Record = {}
    for method, given in {"auto": {}, "hvp": {"probes": 3, "seed": 2}}.items():
        for part in PARTS:
            table = hl.block_pair_norms(problem, list(golden.blocks[:4]), part, method=method, **given)
            low, high = table.intervals()
            ends = {"values": table.values(), "low": low, "high": high}
            found.setdefault("products" if method == "hvp" else method, {})[part] = {
                name: _upper_half(table) for name, table in ends.items()
            }
    return found


def _upper_half(table: torch.Tensor) -> list[float]:
    assert torch.equal(table, table.T)
    return table[tuple(torch.triu_indices(*table.shape))].tolist()


def spectrum(name: str) -> Record:
    """Traces, diagonals, eigenvalues, densities and scores of blocks, exact and sampled."""
    golden, problem = MODELS[name], problem_of(name)
    found: Record = {}
    first, second = (hl.hessian(problem, block, method="hvp") for block in golden.blocks[:2])
    exact = hl.hessian(problem, golden.blocks[0])
    drawn = {"probes": 4, "seed": 3}
    found["trace"] = {way: estimate(hl.trace(first, method=way, **drawn)) for way in ("hutchinson", "hutch++")}
    found["trace, gaussian"] = estimate(hl.trace(first, distribution="gaussian", **drawn))
    found["trace, automatic"] = estimate(hl.trace(exact, **drawn))
    found["norm"] = estimate(hl.frobenius(first, **drawn))
    diagonal = hl.diagonal(first, **drawn)
    found["diagonal"] = {
        "value": diagonal.value.flatten()[:6].tolist(),
        "stderr": diagonal.stderr.flatten()[:6].tolist(),
    }
    for which in ("largest", "smallest"):
        values = hl.eigenvalues(first, 2, which, rtol=1e-12, method="arpack")
        found[f"eigenvalues, {which}"] = [float(x) for x in values.values]
    found["eigenvalues, dense"] = [float(x) for x in hl.eigenvalues(first, 3, "both", method="dense").values]
    density = hl.density(first, 3, 5, seed=1, method="lanczos")
    size = float(exact.frobenius_norm())
    # Not at zero, where rounding decides on which side an eigenvalue lies.
    share = density.cdf(size * torch.tensor([-0.5, 0.1, 0.5], dtype=torch.float64))
    found["density"] = {
        "moments": {str(power): [density.moment(power).value] for power in range(4)},
        "share": share.value.tolist(),
        "lower": share.lower.tolist(),
        "upper": share.upper.tolist(),
        "curve": density.on_grid(5, sigma=size / 5, bounds=(-size, size)).value.tolist(),
        "first moment": estimate(density.moment(1)),
    }
    signs = hl.inertia(first, method="dense")
    found["inertia"] = {
        name: estimate(value) for name, value in vars(signs).items() if isinstance(value, hl.spectra.Estimate)
    }
    pair = {"first": first, "second": second}
    for score in ("js", "norm"):
        table = hl.heterogeneity(pair, score, 3, 5, 1, method="lanczos")
        found[f"heterogeneity, {score}"] = {"pairwise": table.pairwise.flatten().tolist(), "mean": estimate(table.mean)}
    return found


def measured() -> Record:
    """Every block of a small model, its learning rates and what rounding costs."""
    problem = hl.problem(toy(layers=2), labelled(2), "cross_entropy")
    found = hl.measure(problem, ["*.attn.?", "*.mlp.in", "embed"], budget=None, probes=2, progress=False)
    groups = found.param_groups(base_lr=0.1)
    return {
        "norms": norms(found.norms, reasons=True),
        "products": found.products,
        "left out": list(found.left_out),
        "rates": {str(k): {"rate": float(g["lr"]), "parameters": len(g["params"])} for k, g in enumerate(groups)},
        "statements": len(found.statements()),
    }


def monitored() -> Record:
    """Three records along a short run of gradient descent."""
    model = toy()
    problem = hl.problem(model, labelled(2), "cross_entropy")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = hl.Monitor(problem, ["layer0.attn.q"], optimizer=optimizer, every=1, overhead=None, rtol=1e-8)
    ((ids, targets),) = labelled(2)
    for _ in range(2):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
        monitor.step()
    return {
        f"record {k}": {
            place: {quantity: float(reading.value) for quantity, reading in readings.items()}
            for place, readings in record.numbers.items()
        }
        for k, record in enumerate(monitor.history)
    }


# --- all of them -----------------------------------------------------------------------------------------------------


def _cases() -> dict[str, tuple[Callable[[], Record], float]]:
    found: dict[str, tuple[Callable[[], Record], float]] = {}

    def add(name: str, make: Callable[[], Record], rtol: float = 1e-9) -> None:
        found[name] = make, rtol

    for name, make in layers().items():
        add(f"layer: {name}", lambda make=make: layer_record(make(), 2))
    add("layer: one sequence", lambda: layer_record(self_attention(), None))
    for name in losses(randn(2, 5, 4)):
        add(
            f"loss: {name}",
            lambda name=name: layer_record(self_attention(causal=True), 2, **losses(randn(2, 5, 4, seed=5))[name]),
        )
    add("layer: norms", layer_norms)
    add("layer: query-key part", layer_spectrum)
    add("layer: predicted growth", growth)
    add("functions", moments)
    for name, golden in MODELS.items():
        if golden.operators:
            add(f"blocks: {name}", lambda name=name: blocks(name), golden.rtol)
        add(f"norms: {name}", lambda name=name: model_norms(name), golden.rtol)
    add("norms: tied embedding", tied_norms)
    add("norms: coupled sequences", coupled_norms)
    for name in ("toy, one layer, no norm, relu", "GPT-2"):
        add(f"pairs: {name}", lambda name=name: pair_norms(name))
        add(f"spectrum: {name}", lambda name=name: spectrum(name))
    add("measure", measured)
    add("monitor", monitored)
    add("command line", commands.exit_codes)
    add("pages", commands.page_titles)
    return found


CASES = _cases()
"""By name, what makes the record, and the relative tolerance of its numbers."""
