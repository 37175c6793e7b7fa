"""Products by a tape equal those of autograd: every architecture, block and part; wrong ones are found out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as nnf

import hessianlens as hl
from hessianlens.curvature import Linearisation, thresholds
from hessianlens.curvature.tape import Tape, TapedLinearisation, Unrecordable, lowering, rows
from hessianlens.problems import Problem
from tests.curvature import hugging_face, networks
from tests.curvature.networks import VOCAB, scrambled
from tests.curvature.registry import CASES, dense_of, problem_of
from tests.hostile.ways import Squared
from tests.oracles.comparison import assert_same
from tests.oracles.network import PARTS
from tests.variants import DOUBLE, randn

PRODUCTS = ("hessian", "gauss_newton", "functional", "split")
_SIZES = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 3}
_ENDS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "vocab_size": VOCAB, "max_position_embeddings": 8}


def _decoder(name: str, **options: Any) -> nn.Module:
    config = getattr(transformers, f"{name}Config")(**{**_SIZES, **_ENDS, **options})
    return scrambled(getattr(transformers, f"{name}ForCausalLM")(config).to(DOUBLE))


DECODERS: dict[str, Callable[[], nn.Module]] = {
    "Mistral, grouped, a sliding window": lambda: _decoder("Mistral", num_key_value_heads=2, sliding_window=2),
    "Qwen2, grouped, with biases": lambda: _decoder("Qwen2", num_key_value_heads=2),
    "Gemma, gated GELU": lambda: _decoder("Gemma", num_key_value_heads=1, head_dim=2),
    "Gemma 2, soft caps": lambda: _decoder("Gemma2", num_key_value_heads=2, head_dim=2),
    "GPT-2, exact GELU": lambda: hugging_face.gpt2(activation_function="gelu"),
    "toy, ReLU, no norm": lambda: networks.toy(layers=2, heads=2, mlp_activation="relu"),
    "toy, one query-key matrix": lambda: networks.toy(layers=2, query_key="single", norm="pre"),
}
"""Beside those of the registry."""


def _parameters(problem: Problem) -> list[str]:
    """Two layers' worth of parameters, and some of those around them."""
    weights = [block.parameter for block in problem.blocks.values()]
    return list(dict.fromkeys(weights))


def _same_products(problem: Problem, names: list[str], relative: float) -> None:
    """Every way of asking: from all parameters to all, from the first to the last and back, from one to itself."""
    first, middle, last = ([names[k]] for k in (0, len(names) // 2, -1))
    asked = [(names, names), (first, last), (last, first), (middle, middle)]
    for batch in problem.data:
        tape, graph = TapedLinearisation(problem, batch, names), Linearisation(problem, batch, names)
        size: dict[str, float] = {}
        for columns, rows_ in asked:
            v = {name: randn(*problem.params[name].shape, seed=k) for k, name in enumerate(columns)}
            for kind in PRODUCTS:
                both = [getattr(source, kind)(v, rows_) for source in (tape, graph)]
                found, expected = (_flat(one) for one in both)
                size.setdefault(kind, float(expected.norm()))  # a block may be zero by structure
                error = float((found - expected).norm())
                assert error <= relative * size[kind], f"{kind} {columns} -> {rows_}: {error / size[kind]}"


def _flat(found: Mapping[str, Tensor] | tuple[Mapping[str, Tensor], ...]) -> Tensor:
    parts = found if isinstance(found, tuple) else (found,)
    return torch.cat([tensor.flatten() for part in parts for tensor in part.values()])


@pytest.mark.parametrize("name", CASES)
def test_a_tape_gives_what_the_graph_gives(name: str) -> None:
    problem = problem_of(name)
    names = list(dict.fromkeys(problem.blocks[block].parameter for block in CASES[name].blocks))
    _same_products(problem, names, 1e-11 if "BLOOM" in name else 1e-12)  # whose GELU has rounded constants


@pytest.mark.parametrize("name", DECODERS)
def test_a_tape_knows_every_parameter_of_a_decoder(name: str) -> None:
    model = DECODERS[name]()
    data = networks.pairs(2) if "toy" in name else hugging_face.padded()
    problem = hl.problem(model, data, "cross_entropy" if "toy" in name else "model", verify=False)
    names = _parameters(problem)
    assert len(names) > 15
    _same_products(problem, names, 1e-12)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tapes at any size, from the second product on."""
    monkeypatch.setattr(thresholds, "TAPE_MIN_MULTIPLY_ADDS", 0.0)
    monkeypatch.setattr(thresholds, "TAPE_MIN_HVPS_DONE", 1)


@pytest.mark.expensive
@pytest.mark.parametrize("name", ["toy", "Llama, grouped queries", "MLP, bce, summed"])
def test_operators_go_on_with_a_tape(name: str, eager: None) -> None:
    """The first column comes from the graph, the others from the tape, whatever the number of batches."""
    problem = CASES[name].problem()
    names = list(CASES[name].blocks)
    for part, make in (("full", hl.hessian), ("ggn", hl.ggn), ("functional", hl.functional)):
        op = make(problem, names, method="hvp")
        V = randn(op.shape[1], 3, seed=0)
        assert "tape" not in op.method and "tape" not in op.why
        assert_same(op @ V, getattr(dense_of(name), PARTS[part]) @ V, part, 1e-10)
        assert_same(op @ V[:, 0], getattr(dense_of(name), PARTS[part]) @ V[:, 0], part, 1e-10)
        assert op.method == "tangent passes over a tape" and op.why.endswith("the same as autograd's graph")
        assert "held" in op.product_cost
        assert op.why.count("tape") == 1


def test_products_that_are_announced_take_one_of_one_sequence_from_the_graph(
    eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thresholds, "TAPE_MIN_HVPS_EXPECTED", 3)
    seen: list[int] = []
    product = Linearisation.hessian

    def watched(self: Linearisation, *asked: Any) -> dict[str, Tensor]:
        seen.append(len(self.outputs))
        return product(self, *asked)

    problem = CASES["toy"].problem(verify=False)
    sequences = [len(Linearisation(problem, batch, []).outputs) for batch in problem.data]
    assert min(sequences) > 1
    monkeypatch.setattr(Linearisation, "hessian", watched)
    op = hl.hessian(problem, list(CASES["toy"].blocks), method="hvp")
    V = randn(op.shape[1], 3, seed=0)
    assert_same(op @ V, getattr(dense_of("toy"), PARTS["full"]) @ V, "announced", 1e-10)
    assert seen == [1]
    few = hl.hessian(CASES["toy"].problem(verify=False), list(CASES["toy"].blocks), method="hvp")
    few @ V[:, :2]
    assert seen[1] == sequences[0]


def test_norms_say_which_way_their_probes_went(eager: None) -> None:
    problem = CASES["GPT-2"].problem(verify=False)
    norms = hl.block_norms(problem, ["layer0.attn.q", "layer1.mlp.in"], probes=6, method="probes")
    by_tape = {key: norm.value for key, norm in norms.items()}
    assert all("tape" in norms.why[name] for name in ("layer0.attn.q", "layer1.mlp.in"))
    thresholds.TAPE_MIN_MULTIPLY_ADDS = float("inf")
    small = hl.block_norms(
        CASES["GPT-2"].problem(verify=False), ["layer0.attn.q", "layer1.mlp.in"], probes=6, method="probes"
    )
    assert "since its tensors are small" in small.why["layer0.attn.q"]
    assert {key: norm.value for key, norm in small.items()} == pytest.approx(by_tape, rel=1e-10)


def test_tapes_of_many_batches_stay_within_their_bytes(eager: None, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = CASES["MLP, bce, summed"].problem()
    op = hl.hessian(problem, "0.weight", method="hvp")
    first = op @ torch.eye(op.shape[1], dtype=DOUBLE)
    assert [at.taped is not None for at in op._kept.values()] == [True, True]
    monkeypatch.setattr("hessianlens.curvature.operators._TAPES_BYTES", 1)
    assert_same(op @ torch.eye(op.shape[1], dtype=DOUBLE), first, "without room", 1e-12)
    assert [at.taped for at in op._kept.values()] == [None, None]


# --- what a tape refuses ---------------------------------------------------------------------------------------------


class Wrong(Squared):
    """A square whose backward is that of something else."""

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return cotangents[0] * x.sin()


def _written(x: Tensor) -> Tensor:
    whole = torch.zeros(*x.shape[:-1], 2 * x.shape[-1], dtype=x.dtype)
    whole[..., : x.shape[-1]] = x.tanh()
    return whole


class Layered(nn.Module):
    """Two linear maps with a function between."""

    def __init__(self, function: Callable[[Tensor], Tensor], width: int = 3) -> None:
        super().__init__()
        self.first, self.second, self.function = nn.Linear(3, 3), nn.Linear(width, 2), function

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.function(self.first(x)))


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "another backward": (lambda: Layered(Wrong.apply), "not those of its steps"),
    "writes into a part": (lambda: Layered(_written, 6), "writes into a part of a tensor in place"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_stays_with_the_graph(name: str, eager: None) -> None:
    make, why = REFUSED[name]
    torch.manual_seed(0)
    problem = hl.problem(make().to(DOUBLE), (randn(4, 3), randn(4, 2)), "square", verify=False)
    op = hl.hessian(problem, "first.weight", method="hvp")
    found = op @ torch.eye(9, dtype=DOUBLE)
    assert why in op.why and op.method == "double backward"
    for k in range(9):
        at = Linearisation(problem, problem.data[0], ["first.weight"])
        column = at.hessian({"first.weight": torch.eye(9, dtype=DOUBLE)[k].reshape(3, 3)}, ["first.weight"])
        assert_same(found[:, k], column["first.weight"].flatten(), "column", 1e-12)


def _several_only(x: Tensor) -> Tensor:
    if len(x) < 2:
        raise ValueError("one is not enough")
    return x.tanh()


@pytest.mark.parametrize(("function", "why"), [(Wrong.apply, "not those of its steps"), (_several_only, "the same as")])
def test_where_one_sequence_says_nothing_the_batch_is_asked(function: Callable, why: str, eager: None) -> None:
    """The first sequence is zero, or refused: with nine products announced it is the one to be asked first."""
    torch.manual_seed(0)
    x = randn(4, 3) * torch.arange(4.0, dtype=DOUBLE)[:, None]
    problem = hl.problem(Layered(function).to(DOUBLE), (x, randn(4, 2)), "square", verify=False)
    op = hl.hessian(problem, "first.weight", method="hvp")
    found = op @ torch.eye(9, dtype=DOUBLE)
    assert why in op.why
    at = Linearisation(problem, problem.data[0], ["first.weight"])
    columns = [at.hessian({"first.weight": e.reshape(3, 3)}, ["first.weight"]) for e in torch.eye(9, dtype=DOUBLE)]
    assert_same(found, torch.stack([c["first.weight"].flatten() for c in columns], 1), "the batch", 1e-12)


def _without_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows.SoftmaxStep, "keep", lambda self, g: None)


def _without_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering.MatrixProduct, "keep", lambda self, g: None)


def _norm_without_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    keep = rows.Standardised.keep

    def wrong(self: rows.Standardised, g: Tensor) -> None:
        keep(self, g)
        self.xbar = torch.zeros_like(self.xbar)

    monkeypatch.setattr(rows.Standardised, "keep", wrong)


def _bent_as_straight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering.ElementwiseStep, "keep", lambda self, g: setattr(self, "bend", None))


@pytest.mark.parametrize(
    "mutate", [_without_second, _without_products, _norm_without_scale, _bent_as_straight], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("announced", [False, True])
def test_a_wrong_derivative_is_found_out(
    mutate: Callable, announced: bool, eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    monkeypatch.setattr(thresholds, "TAPE_MIN_HVPS_EXPECTED", 1 if announced else 10)
    problem = CASES["GPT-2"].problem(verify=False)
    block = problem.blocks["layer0.attn.k"]
    op = hl.hessian(problem, block.name, method="hvp")
    V = randn(op.shape[1], 3, seed=0)
    graphs = [Linearisation(problem, batch, [block.parameter]) for batch in problem.data]
    tangents = ({block.parameter: block.embed(v.reshape(block.shape), problem.params[block.parameter])} for v in V.T)
    columns = [sum(at.hessian(v, [block.parameter])[block.parameter] for at in graphs) for v in tangents]
    expected = [block.take(column).flatten() for column in columns]
    assert_same(op @ V, torch.stack(expected, 1), "still the graph", 1e-12)
    assert "not those of its steps" in op.why
    with pytest.raises(AssertionError):
        _same_products(problem, [block.parameter], 1e-10)


# --- single functions ------------------------------------------------------------------------------------------------


def _in_place(x: Tensor) -> Tensor:
    y = x * 2
    y += 1
    y.mul_(x)
    return y


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "GELU by hand": lambda x: 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.04 * x**3))),
    "in place": _in_place,
    "a view changed in place": lambda x: x.square().reshape(6).mul_(2).reshape(2, 3),
    "quotient": lambda x: x / (1 + x.square().sum(-1, keepdim=True)),
    "number over it": lambda x: 1 / (2 + x.square()),
    "constant plus it": lambda x: 3 - x.exp(),
    "RMS norm": lambda x: nnf.rms_norm(x, (3,)),
    "LayerNorm over two axes": lambda x: nnf.layer_norm(x, (2, 3)),
    "softmax by hand": lambda x: x.exp() / x.exp().sum(-1, keepdim=True),
    "masked softmax": lambda x: x.masked_fill(torch.eye(2, 3).bool(), -torch.inf).softmax(-1),
    "softmax that hides with a small number": lambda x: x.masked_fill(torch.eye(2, 3).bool(), -1.0).softmax(-1),
    "log softmax": lambda x: x.log_softmax(0),
    "cut and joined": lambda x: torch.cat([x[:, 1:], torch.ones(2, 1, dtype=x.dtype), x[:, :1].square()], 1),
    "stacked": lambda x: torch.stack([x.sin(), x.cos()]).unbind(1)[1],
    "where": lambda x: torch.where(x > 0, x.square(), x.sin()),
    "detached": lambda x: x.square() * x.detach(),
    "without gradient": lambda x: x.square() * _without_gradient(x),
    "looked up": lambda x: x[torch.tensor([1, 0, 1])].square(),
    "cumulated": lambda x: x.square().cumsum(-1),
    "a product times a number": lambda x: _outer(x).reshape(3, 12).mul(0.3).tanh(),
    "a product times a number, read twice": lambda x: (_outer(x) * 0.3) * _outer(x).sin(),
    "outer": lambda x: torch.einsum("ia,jb->ab", x, x.tanh()),
    "triangle": lambda x: (x.T @ x).tril().square(),
    "repeated": lambda x: x.mean(0, keepdim=True).expand(4, 3) * x.repeat(2, 1),
    "largest": lambda x: x.square().amax(-1) * x.max(),
}


def _outer(x: Tensor) -> Tensor:
    return x.reshape(6, 1) @ x.sin().reshape(1, 6)


def _without_gradient(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x.cos()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_single_functions(name: str) -> None:
    x, function = randn(2, 3, seed=5), FUNCTIONS[name]
    tape = Tape(lambda at: function(at["x"]), {"x": x})
    leaf = x.clone().requires_grad_()
    y = function(leaf)
    assert_same(tape.output, y.detach(), "value", 1e-12)
    g, u, v = randn(*y.shape, seed=1), randn(*y.shape, seed=2), randn(2, 3, seed=3)
    tape.keep(g)
    (vjp,) = torch.autograd.grad(y, leaf, g, create_graph=True)
    expected = torch.autograd.grad(vjp, leaf, v)[0] if vjp.requires_grad else torch.zeros_like(x)
    (transposed,) = torch.autograd.grad(function(leaf), leaf, u)
    moves = tape.forward({"x": v})
    assert_same(tape.backward(u, None, ["x"])["x"], transposed, "transposed", 1e-12)
    assert_same(tape.backward(u, moves, ["x"])["x"], transposed + expected, "both", 1e-12)
    result = tape.result(moves)
    assert result is not None
    assert float((result * u).sum() - (transposed * v).sum()) == pytest.approx(0, abs=1e-12)


def test_numbers_go_into_products_that_are_larger_than_their_factors() -> None:
    def kinds_of(function: Callable[[Tensor], Tensor]) -> list[str]:
        return [type(step).__name__ for step in Tape(lambda at: function(at["x"]), {"x": randn(2, 3)}).steps]

    plain = kinds_of(lambda x: _outer(x).reshape(3, 12).sum(0))
    assert plain == kinds_of(lambda x: (3 * _outer(x).reshape(3, 12)).sum(0))
    assert len(kinds_of(lambda x: 3 * (x @ x.T))) == len(kinds_of(lambda x: x @ x.T)) + 1
    twice = kinds_of(lambda x: (lambda y: 3 * y + y.sin())(_outer(x)))
    assert twice.count("ElementwiseStep") == 1 + plain.count("ElementwiseStep")


def _changed_later(x: Tensor) -> Tensor:
    constant = torch.ones_like(x.detach())
    y = x * constant
    constant.add_(1)
    return y


def _old_view(x: Tensor) -> Tensor:
    y = x.tanh()
    view = y.T
    y.mul_(2)
    return view


@pytest.mark.parametrize(
    "function, why",
    [
        (_written, "part of a tensor in place"),
        (_changed_later, "has used before"),
        (_old_view, "a view of a tensor that was changed"),
        (lambda x: torch.ones(2), "does not depend"),
    ],
)
def test_what_cannot_be_written_down_is_refused(function: Callable[[Tensor], Tensor], why: str) -> None:
    with pytest.raises(Unrecordable, match=why):
        Tape(lambda at: function(at["x"]), {"x": randn(2, 3)})


def test_nothing_below_a_block_is_on_the_tape() -> None:
    """Blocks of the last layer take fewer steps than those of the first."""
    problem = problem_of("GPT-2")
    sizes = [
        len(TapedLinearisation(problem, problem.data[0], [f"transformer.h.{n}.attn.c_attn.weight"]).network.steps)
        for n in (0, 1)
    ]
    assert sizes[1] < 0.6 * sizes[0]


def test_a_small_model_keeps_its_graph() -> None:
    problem = CASES["GPT-2"].problem()
    op = hl.hessian(problem, "layer0.attn.k", method="hvp")
    op @ torch.eye(op.shape[1], dtype=DOUBLE)[:, :4]
    assert op.method == "double backward" and "since its tensors are small" in op.why
