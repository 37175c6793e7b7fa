"""A call that works for every public name: the fuzzer starts from these and spoils some of the arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import _lru_cache_wrapper
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

import hessianlens as hl
from hessianlens.errors import Refusal
from hessianlens.operators import Factor, Term
from tests.fuzz.zoo import (
    groups_file,
    hessian,
    layer,
    linear,
    mlp_problem,
    monitor,
    problem,
    randn,
    sgd,
    symmetric,
    task,
    toy,
)

Maker = Callable[[], Any]


@dataclass(frozen=True)
class Recipe:
    """A call.

    Attributes:
        name: What is called.
        target: Gives what is called.
        arguments: Gives each argument, by name; numbers stand for places.
        weight: How often it is taken, relative to others; small where a call takes long.
        result: Whether what it gives is looked at further; not where a class only holds what it is given.
    """

    name: str
    target: Maker
    arguments: Mapping[str, Maker] = field(default_factory=dict)
    weight: float = 1.0
    result: bool = True


def _given(**values: Any) -> dict[str, Maker]:
    """Functions give their arguments anew for every call; anything else is the argument itself."""
    makers = (FunctionType, _lru_cache_wrapper)
    return {name: v if isinstance(v, makers) else (lambda v=v: v) for name, v in values.items()}


def _matrices(*names: str) -> dict[str, Maker]:
    return {f"W_{name}": (lambda k=k: randn(4, 4, seed=k)) for k, name in enumerate(names)}


def _operator(**more: Any) -> dict[str, Maker]:
    return {"op": symmetric, **_given(**more)}


def _terms() -> list[Term]:
    p = randn(3, 2)
    return [Term(1.0, (Factor("p", "na", p), Factor("p", "nc", p), Factor.identity("bd", 2)))]


def _halves(tensor: Tensor) -> list[Tensor]:
    return [tensor[:, :2], tensor[:, 2:]]


_CPU = torch.device("cpu")
_HESSIAN = _given(layer=layer, X=lambda: randn(4, 3), loss=lambda: hl.SquareLoss(randn(4, 3)))
_A, _X = (lambda: torch.softmax(randn(4, 4), -1)), (lambda: randn(4, 3))


def _layers() -> Iterator[Recipe]:
    options = _given(activation="softmax", causal=False, temperature=1.0)
    masks = _given(mask=lambda: torch.ones(4, 4, dtype=torch.bool), bias=lambda: torch.zeros(4, 4).double())
    gate = _given(gate=lambda: randn(4, 4))
    yield Recipe("SelfAttention", lambda: hl.SelfAttention, {**_matrices("Q", "K", "V"), **options, **masks, **gate})
    yield Recipe("CrossAttention", lambda: hl.attention.CrossAttention, _matrices("Q", "K", "V"))
    yield Recipe("SingleMatrixAttention", lambda: hl.SingleMatrixAttention, {**_matrices("QK", "V"), **options})
    yield Recipe("FactoredValueAttention", lambda: hl.attention.FactoredValueAttention, _matrices("Q", "K", "O", "U"))
    tables = _given(cos=lambda: randn(4, 4), sin=lambda: randn(4, 4))
    yield Recipe("RotaryAttention", lambda: hl.attention.RotaryAttention, {**_matrices("Q", "K", "O", "U"), **tables})
    yield Recipe("MultiHeadAttention", lambda: hl.MultiHeadAttention, _given(heads=lambda: [layer(), layer()]))
    sizes = _given(d_model=3, d_k=2, d_v=3, seed=0, dtype=torch.float64)
    yield Recipe("SelfAttention.random", lambda: hl.SelfAttention.random, sizes, 2)
    yield Recipe("rotary_tables", lambda: hl.attention.rotary_tables, _given(length=3, d_k=4, base=10.0))
    yield Recipe("attention_hessian", lambda: hl.attention_hessian, _HESSIAN, 2)
    derivatives = _given(layer=layer, X=lambda: randn(4, 3), grad=lambda: randn(4, 3), curvature=1.0)
    yield Recipe("attention_hessian, derivatives", lambda: hl.attention_hessian, derivatives)
    yield Recipe("layer(X)", layer, _given(X=_X))
    yield Recipe("layer.attention(X)", lambda: layer().attention, _given(X=_X))
    yield Recipe("layer.attend(X)", lambda: layer().attend, _given(X=lambda: randn(1, 4, 3)))
    yield Recipe(
        "layer.with_parameters", lambda: layer().with_parameters, _given(parameters=lambda: {"Q": randn(3, 2)})
    )
    multi = hl.MultiHeadAttention([layer(), layer()])
    yield Recipe("several(X)", lambda: multi, _given(X=_X))
    yield Recipe(
        "several.with_parameters", lambda: multi.with_parameters, _given(parameters=lambda: {("Q", 1): randn(3, 2)})
    )


def _attention() -> Iterator[Recipe]:
    moments = _given(A=_A, X=_X)
    for name in ("first_moment", "second_moment", "third_moment"):
        yield Recipe(name, lambda name=name: getattr(hl.attention, name), moments)
    yield Recipe("third_moment_along", lambda: hl.attention.third_moment_along, {**moments, **_given(direction=_X)})
    yield Recipe("attention_entropy", lambda: hl.attention.attention_entropy, _given(A=_A))
    heads = {name: (lambda k=k: randn(1, 2, 3, 2, seed=k)) for k, name in enumerate(("query", "key", "value"))}
    more = _given(
        dropout_p=0.0, is_causal=True, scale=0.5, enable_gqa=False, window=2, softcap=3.0, activation="softmax"
    )
    attend = "scaled_dot_product_attention"
    yield Recipe(attend, lambda: hl.scaled_dot_product_attention, {**heads, **more, **_given(memory="1 MiB")})
    masked = {**heads, **_given(attn_mask=lambda: randn(3, 3))}
    yield Recipe(f"{attend}, masked", lambda: hl.scaled_dot_product_attention, masked)
    activations = hl.attention.activations
    yield Recipe("as_activation", lambda: activations.as_activation, _given(given="tanh"))
    for name in ("Softmax", "Linear", "ReLU", "Tanh", "Exp"):
        yield Recipe(name, lambda name=name: getattr(activations, name))
    yield Recipe("Sigmoid", lambda: activations.Sigmoid, _given(bias=0.0))
    yield Recipe("SoftCapped", lambda: activations.SoftCapped, _given(cap=2.0))
    yield Recipe("RowFunction", lambda: activations.RowFunction, _given(function=lambda: lambda t: t, name="row"))
    both = _given(function=lambda: torch.tanh, name="mine")
    yield Recipe("ElementwiseFunction", lambda: activations.ElementwiseFunction, both)
    yield Recipe("RowNormalised", lambda: activations.RowNormalised, _given(inner=lambda: activations.ReLU(), name="n"))


def _losses() -> Iterator[Recipe]:
    losses = hl.losses
    yield Recipe("SquareLoss", lambda: hl.SquareLoss, _given(targets=_X, reduction="mean"))
    classes = _given(targets=lambda: torch.tensor([0, 1, 2, 1]), reduction="sum", ignore_index=-100)
    yield Recipe("CrossEntropyLoss", lambda: hl.CrossEntropyLoss, classes)
    yield Recipe("CustomLoss", lambda: hl.losses.CustomLoss, _given(function=lambda: torch.sum, couples="none"))
    head = {"input": _X, "linear_weight": lambda: randn(5, 3), "target": lambda: torch.tensor([0, 1, 2, 1])}
    more = _given(reduction="sum", ignore_index=-100, label_smoothing=0.1, scale=0.5, softcap=3.0, memory="1 MiB")
    head |= {"linear_bias": lambda: randn(5), "weight": lambda: randn(5).abs(), **more}
    yield Recipe("linear_cross_entropy", lambda: hl.losses.linear_cross_entropy, head)
    made = {"square": losses.SquareLoss(randn(4, 3)), "classes": losses.CrossEntropyLoss(torch.tensor([0, 1, 2, 1]))}
    made["custom"] = losses.CustomLoss(lambda f: (f**4).sum())
    for name, loss in made.items():
        for method in ("value", "derivatives"):
            target = getattr(loss, method)
            yield Recipe(f"{name}.{method}", lambda target=target: target, _given(F=lambda: randn(1, 4, 3)))
    roots = _given(root=lambda: randn(4, 3, 2))
    for name in ("LowRankTokenCurvature", "LowRankCoupledCurvature"):
        yield Recipe(name, lambda name=name: getattr(hl.losses, name), roots, result=False)
    curved = _given(given=1.0, like=lambda: randn(1, 4, 3))
    yield Recipe("as_curvature", lambda: losses.as_curvature, curved)
    both = _given(grad=_X, curvature=1.0, F=lambda: randn(1, 4, 3))
    yield Recipe("given_derivatives", lambda: losses.given_derivatives, both)
    holders = {"ScalarCurvature": _given(values=lambda: randn(1, 4), width=3), "LossDerivatives": {}}
    holders |= {name: _given(matrices=lambda: randn(1, 4, 3, 3)) for name in ("TokenCurvature", "CoupledCurvature")}
    holders["SoftmaxCurvature"] = _given(
        weight=lambda: randn(1, 4).abs(), probabilities=lambda: randn(1, 4, 3).softmax(-1)
    )
    for name, arguments in holders.items():
        yield Recipe(name, lambda name=name: getattr(losses, name), arguments, 0.2, result=False)


def _theory() -> Iterator[Recipe]:
    theory = hl.layer
    yield Recipe("eigenvalue_pairs", lambda: hl.layer.eigenvalue_pairs, _given(H=hessian, head=0))
    yield Recipe("t_outer_rank", lambda: hl.layer.t_outer_rank, _given(length=4, d_model=3, d_k=2), 2)
    yield Recipe("t_outer_rank_bound", lambda: hl.layer.t_outer_rank_bound, _given(d_model=3, d_k=2), 2)
    blocks = _given(part="outer", row="Q", column="V", residual_power=0, length=4)
    yield Recipe("predicted_growth", lambda: hl.layer.predicted_growth, {**_given(activation="softmax"), **blocks})
    powers = _given(activation="tanh", length=4, seed=0)
    yield Recipe("activation_powers", lambda: theory.activation_powers, powers)
    for name in ("linear_attention_growth", "linear_mlp_growth"):
        yield Recipe(name, lambda name=name: getattr(theory, name), _given(depth=2))
    yield Recipe("numerical_rank", lambda: theory.numerical_rank, _given(matrix=_X, tolerance=1e-9))
    yield Recipe("gauge_directions", lambda: theory.gauge_directions, _given(layer=layer))
    yield Recipe("EigenvaluePairs", lambda: theory.EigenvaluePairs, {}, 0.1, result=False)
    whole = _given(value=1, jacobian=0, curvature=None)
    yield Recipe("ActivationPowers", lambda: theory.ActivationPowers, whole, 0.1, result=False)


def _spectra() -> Iterator[Recipe]:
    common = {"probes": 3, "seed": 0, "chunk": 2}
    steps = {**common, "steps": 3, "method": "lanczos", "check_symmetry": True}
    for op in (symmetric, lambda: hl.hessian(mlp_problem(), "0.weight"), lambda: hessian().full["Q", "Q"]):
        given = {"op": op}
        yield Recipe("trace", lambda: hl.trace, {**given, **_given(**common, method="hutchinson")})
        yield Recipe("trace, sketched", lambda: hl.trace, {**given, **_given(probes=4, method="xtrace")})
        yield Recipe("trace, sketched", lambda: hl.trace, {**given, **_given(probes=4, method="hutch++")})
        yield Recipe("frobenius", lambda: hl.frobenius, {**given, **_given(**common, distribution="gaussian")})
        yield Recipe("diagonal", lambda: hl.diagonal, {**given, **_given(**common)})
        eigen = _given(k=1, which="largest", seed=0, method="auto", rtol=1e-6, vectors=True, max_iterations=50)
        yield Recipe("eigenvalues", lambda: hl.eigenvalues, {**given, **eigen})
        yield Recipe("density", lambda: hl.density, {**given, **_given(**steps)})
        yield Recipe("inertia", lambda: hl.inertia, {**given, **_given(**steps, threshold=1e-9)})
        yield Recipe(
            "median_entry",
            lambda: hl.spectra.median_entry,
            {**given, **_given(columns=3, seed=0, chunk=2)},
        )
    two = _given(blocks=lambda: {"q": symmetric(), "v": 2 * symmetric()}, score="js", probes=3, steps=3, seed=0)
    yield Recipe("heterogeneity", lambda: hl.heterogeneity, {**two, **_given(sigma=0.1, normalise=True)})
    yield Recipe("heterogeneity, norms", lambda: hl.heterogeneity, {**two, **_given(score="norm")})
    estimate = _given(value=1.0, stderr=0.1, probes=10, seed=0, method="hutchinson", dof=9)
    yield Recipe("Estimate", lambda: hl.spectra.Estimate, estimate)
    yield Recipe("Estimate.exactly", lambda: hl.spectra.Estimate.exactly, _given(value=1.0))
    samples = _given(samples=lambda: randn(4), probes=4, seed=0, method="hutchinson")
    yield Recipe("Estimate.from_samples", lambda: hl.spectra.Estimate.from_samples, samples)
    probes = _given(dim=4, count=3, seed=0, distribution="sphere", stream=0)
    yield Recipe("Probes", lambda: hl.spectra.Probes, probes)
    search = _given(start=lambda: randn(5), rtol=0.1, most=9, seed=0, basis=3)
    search |= _given(known=lambda: hl.spectra.RitzPairs())
    yield Recipe("leading_eigenpair", lambda: hl.spectra.leading_eigenpair, {"op": symmetric, **search})
    yield Recipe("RitzPairs", lambda: hl.spectra.RitzPairs, _given(each=2))
    turned = _given(
        geometry="spectral", shapes=lambda: [(2, 2), (1,)], start=lambda: randn(5), starts=2, most=9, seed=0
    )
    yield Recipe("sharpness", lambda: hl.spectra.sharpness, {"op": symmetric, **turned})
    results = (
        "CumulativeDistribution DensityCurve Eigenvalues Heterogeneity Inertia LeadingEigenpair Sharpness "
        "SpectralDensity VectorEstimate"
    )
    for name in results.split():
        yield Recipe(name, lambda name=name: getattr(hl.spectra, name), {}, 0.1, result=False)


def _operators() -> Iterator[Recipe]:
    sums = _given(terms=_terms, out_shape=(2, 2), in_shape=(2, 2))
    kind = _given(dtype=torch.float64, device=_CPU)
    yield Recipe("TokenSum", lambda: hl.operators.TokenSum, {**sums, **kind})
    yield Recipe("TokenSum.of", lambda: hl.operators.TokenSum.of, sums)
    factor = _given(name="p", indices="na", tensor=lambda: randn(3, 2), size=0)
    yield Recipe("KroneckerFit", lambda: hl.operators.KroneckerFit, {}, 0.1, result=False)
    summed = hl.operators.TokenSum.of(_terms(), (2, 2), (2, 2))
    yield Recipe("kronecker_fit", lambda: summed.kronecker_fit, _given(rank=1, seed=0))
    yield Recipe(
        "kronecker_distance", lambda: summed.kronecker_distance, _given(A=lambda: randn(2, 2), B=lambda: randn(2, 2))
    )
    yield Recipe("Factor", lambda: hl.operators.Factor, factor)
    yield Recipe("Factor.identity", lambda: hl.operators.Factor.identity, _given(indices="bd", size=2))
    factors = _given(coefficient=1.0, factors=lambda: (Factor("p", "na", randn(3, 2)),))
    yield Recipe("Term", lambda: hl.operators.Term, factors, result=False)
    grid = _given(rows=lambda: {"p": (2, 2)}, columns=lambda: {"p": (2, 2)}, symmetric=True)
    build = _given(build=lambda: lambda row, column: hl.operators.TokenSum.of(_terms(), (2, 2), (2, 2)))
    yield Recipe("BlockGrid", lambda: hl.operators.BlockGrid, {**grid, **build, **kind})
    pieces = _given(rows=lambda: _halves, columns=lambda: _halves)
    cut = _given(grid=lambda: hessian().full[["Q", "K"], ["Q", "K"]], out_shape=(3, 4), in_shape=(3, 4))
    yield Recipe("ArrangedGrid", lambda: hl.operators.ArrangedGrid, {**cut, **pieces})
    yield Recipe("commutation_matrix", lambda: hl.operators.commutation_matrix, _given(rows=2, cols=3, dtype=None))
    summands = _given(
        terms=lambda: [(2.0, hl.hessian(mlp_problem(), "0.bias")), (-1.0, hl.ggn(mlp_problem(), "0.bias"))]
    )
    yield Recipe("LinearCombination", lambda: hl.operators.LinearCombination, summands)
    hybrid = _given(
        hvps=lambda: hl.operators.TokenSum.of(_terms(), (2, 2), (2, 2)), plan=lambda: lambda: Refusal("none")
    )
    yield Recipe("HybridOperator", lambda: hl.operators.HybridOperator, hybrid)
    yield Recipe("Operator", lambda: hl.operators.Operator, {}, 0.1)
    yield Recipe("StructuredOperator", lambda: hl.operators.StructuredOperator, {}, 0.1)
    yield Recipe("Activation", lambda: hl.attention.Activation, {}, 0.1)
    yield Recipe("AttentionHead", lambda: hl.attention.AttentionHead, {}, 0.1)
    yield Recipe("Loss", lambda: hl.losses.Loss, {}, 0.1)
    for name in ("OutputCurvature", "UncoupledCurvature"):
        yield Recipe(name, lambda name=name: getattr(hl.losses, name), {}, 0.1)
    yield Recipe("Elementwise", lambda: hl.attention.activations.Elementwise, {}, 0.1)
    for op in (lambda: hessian().full["Q", "Q"], lambda: hessian().full, lambda: hl.hessian(mlp_problem(), "0.*")):
        yield Recipe("an operator", lambda op=op: lambda: op(), {}, 4)
    yield Recipe("an attention Hessian", lambda: hessian, {}, 2)


def _networks() -> Iterator[Recipe]:
    blocks = _given(problem=problem, rows="layer0.attn.q", cols="layer0.mlp.in", method="hvp")
    for name in ("hessian", "ggn", "functional"):
        yield Recipe(name, lambda name=name: getattr(hl, name), blocks)
    chosen = {"problem": mlp_problem, **_given(blocks="0.*", probes=2, seed=0)}
    yield Recipe("block_norms", lambda: hl.block_norms, {**chosen, **_given(parts=("full",), method="auto")})
    yield Recipe("block_norms, toy", lambda: hl.block_norms, {**_given(problem=problem, blocks="layer0.attn.q")}, 0.3)
    yield Recipe("block_pair_norms", lambda: hl.block_pair_norms, {**chosen, **_given(part="full")})
    timed = {**chosen, **_given(budget=0.05, parts=("full",), rtol=0.1, method="auto", max_memory=None, progress=False)}
    yield Recipe("measure", lambda: hl.measure, timed, 0.3)
    yield Recipe("attention_health", lambda: hl.attention_health, {"problem": problem}, 0.3)
    along = _given(by="layer", parts=("full",), along=(0.5, 1.0), progress=False)
    for update in (sgd, lambda: {"0.weight": randn(2, 3)}, lambda: lambda gradient: gradient):
        yield Recipe("directional", lambda: hl.directional, {"problem": mlp_problem, "update": update, **along}, 0.5)
    normed = _given(kind="layer", gain=lambda: randn(3), shift=lambda: randn(3), eps=1e-6)
    yield Recipe("QueryKeyNorm", lambda: hl.attention.QueryKeyNorm, normed)
    gate = _given(weight=lambda: randn(3, 2), function="silu")
    yield Recipe("ValueGate", lambda: hl.attention.ValueGate, gate, result=False)
    yield Recipe("explore", lambda: hl.explore, _given(layer=layer, X=_X, targets=None), 0.2, result=False)
    step = _given(optimizer=sgd, model=lambda: mlp_problem().source)
    step |= _given(gradients=lambda: {n: torch.ones_like(p) for n, p in mlp_problem().source.named_parameters()})
    yield Recipe("optimizer_update", lambda: hl.optimizer_update, step)
    some = {"problem": mlp_problem, **_given(blocks=lambda: list(mlp_problem().blocks.values()), probes=2, parts=3)}
    yield Recipe("forecast", lambda: hl.network.forecast, some)
    yield Recipe("fit_memory", lambda: hl.network.fit_memory, {"problem": mlp_problem, **_given(max_memory="1 GiB")})
    pair = _given(model=lambda: nn.Linear(3, 2).double(), data=lambda: (randn(4, 3), torch.tensor([0, 1, 1, 0])))
    options = _given(
        loss="cross_entropy", reduction="mean", dtype=torch.float64, device="cpu", micro_batch=2, heads=True, check=True
    )
    options |= _given(process_group=None)
    yield Recipe("problem", lambda: hl.problem, {**pair, **options}, 3)
    squared = _given(loss="square", data=lambda: (randn(4, 3), randn(4, 2)))
    yield Recipe("problem, square", lambda: hl.problem, {**pair, **squared})
    own = _given(loss=lambda: lambda out, batch: out.square().sum(), data=lambda: {"input": randn(4, 3)})
    yield Recipe("problem, a function", lambda: hl.problem, {**pair, **own})
    toys = _given(model=toy, data=lambda: task().batch(2, seed=0), loss=lambda: task().cross_entropy)
    yield Recipe("problem, toy", lambda: hl.problem, toys, 0.5)
    yield Recipe("a problem", lambda: mlp_problem, {}, 2)
    results = (
        hl.layer.AttentionHessian,
        hl.network.AttentionHealth,
        hl.network.BlockNorms,
        hl.network.Forecast,
        hl.network.PairNorms,
    )
    for kind in (*results, hl.inspect.BlockMeasurements, hl.Problem, hl.Block):
        yield Recipe(kind.__name__, lambda kind=kind: kind, {}, 0.1, result=False)
    yield Recipe("InputError", lambda: hl.InputError, {"0": lambda: "text"}, 0.1, result=False)
    yield Recipe("RankError", lambda: hl.errors.RankError, {"0": lambda: "text"}, 0.1, result=False)


def _models() -> Iterator[Recipe]:
    sizes = _given(layers=1, d_model=4, heads=2, d_mlp=3, vocab=5, context=4, seed=0)
    kinds = _given(attention="softmax", norm="pre", residual_scale=1.0, temperature=1.0, query_key="dual", causal=True)
    more = _given(mlp=True, mlp_activation="gelu", attention_bias=False, init_scale=0.8, embedding_std=0.1, d_head=2)
    yield Recipe("Transformer", lambda: hl.models.Transformer, {**sizes, **kinds}, 2)
    yield Recipe("Transformer, more", lambda: hl.models.Transformer, {**sizes, **more})
    yield Recipe("LinearAttentionStack", lambda: hl.models.LinearAttentionStack, _given(layers=2, d_model=4, vocab=5))
    linear = _given(layers=2, width=3, vocab=5, embedding_std=1.0, seed=0)
    yield Recipe("LinearMLP", lambda: hl.models.LinearMLP, linear)
    ids = _given(tokens=lambda: torch.tensor([[0, 1, 2], [3, 4, 5]]))
    yield Recipe("toy(tokens)", toy, ids)
    yield Recipe("toy.embed", lambda: toy().embed, ids)
    for name in ("residual", "attention_input"):
        yield Recipe(f"toy.{name}", lambda name=name: getattr(toy(), name), {**ids, **_given(layer=0)})
    yield Recipe("toy.unembed", lambda: toy().unembed, _given(residual=lambda: randn(2, 3, 4)))
    yield Recipe("toy.redraw_embeddings", lambda: toy().redraw_embeddings, _given(std=0.1, seed=0))
    yield Recipe("LinearMLP(tokens)", lambda: hl.models.LinearMLP(1, 3), ids)


def _tasks() -> Iterator[Recipe]:
    yield Recipe("Addition", lambda: hl.tasks.Addition, _given(digits=2))
    yield Recipe("batch", lambda: task().batch, _given(size=2, seed=0))
    yield Recipe("batches", lambda: task().batches, _given(count=2, size=2, seed=0))
    yield Recipe("encode", lambda: task().encode, _given(x=lambda: [1, 2], y=lambda: [3, 4]))
    yield Recipe("decode", lambda: task().decode, _given(tokens=lambda: task().batch(2, seed=0)))
    both = _given(logits=lambda: randn(2, 6, 12), batch=lambda: task().batch(2, seed=0))
    for name in ("cross_entropy", "square", "correct", "accuracy"):
        yield Recipe(name, lambda name=name: getattr(task(), name), both)
    stream = _given(count=2, seed=0, draw=lambda: lambda source: {"tokens": torch.ones(1, 6, dtype=torch.int64)})
    yield Recipe("BatchStream", lambda: hl.tasks.BatchStream, stream)
    pairs = _given(pairs=2, queries=1, keys=3, values=3, joined=True)
    yield Recipe("AssociativeRecall", lambda: hl.tasks.AssociativeRecall, pairs)
    yield Recipe("Characters", lambda: hl.tasks.Characters, _given(text="to be, or not to be. " * 3, length=3))
    texts = _given(seed=0, length=4, characters=200, words=5)
    yield Recipe("Characters.generated", lambda: hl.tasks.Characters.generated, texts)
    for made in (hl.tasks.AssociativeRecall(2, 1, 3, 3), hl.tasks.Characters.generated(0, 4, 200, 5)):
        yield Recipe("batch of a task", lambda made=made: made.batch, _given(size=2, seed=0))


def _watching() -> Iterator[Recipe]:
    watching = hl.monitor
    yield Recipe("Monitor", lambda: hl.Monitor, {"problem": mlp_problem, **_given(blocks="0.*", optimizer=sgd)}, 0.5)
    paced = _given(every=2, overhead=None, quantities=("top", "edge"), whole=True)
    effort = _given(probes=2, steps=2, rtol=0.1, seed=0, log=())
    yield Recipe("Monitor, told how", lambda: hl.Monitor, {"problem": mlp_problem, **paced, **effort}, 0.5)
    yield Recipe("monitor.measure", lambda: monitor().measure, _given(step=3, optimizer=sgd, loss=0.5), 0.5)
    parts = _given(optimizer=sgd, model=lambda: mlp_problem().source, blocks=lambda: mlp_problem().select("0.weight"))
    yield Recipe("stability_edge", lambda: watching.stability_edge, parts)
    yield Recipe("History", lambda: watching.History, _given(records=lambda: list(monitor().history)))
    yield Recipe("Reading.of", lambda: watching.Reading.of, _given(number=1.0))
    yield Recipe("load_param_groups", lambda: hl.inspect.load_param_groups, _given(path=groups_file, model=linear), 0.5)
    for name in ("StabilityEdge", "Reading", "Record"):
        yield Recipe(name, lambda name=name: getattr(watching, name), {}, 0.1, result=False)


GROUPS = (_layers, _attention, _losses, _theory, _spectra, _operators, _networks, _models, _tasks, _watching)
RECIPES: tuple[Recipe, ...] = tuple(recipe for group in GROUPS for recipe in group())


def public_names() -> Iterator[tuple[str, Any]]:
    """Every public function and class, those of the public modules included."""
    for name in hl.__all__:
        value = getattr(hl, name)
        if isinstance(value, ModuleType):
            yield from ((inner, getattr(value, inner)) for inner in value.__all__)
        else:
            yield name, value
