"""The last map and the cross-entropy behind it: the same curvature and norms as by products, or left alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

import hessianlens as hl
from hessianlens.network.routes import ReadoutRoute
from hessianlens.network.routes.linear_map import LinearMaps, plan, readout
from hessianlens.network.routes.linear_map.readout import Readout, readout_norm, readout_of
from hessianlens.problems import Problem
from tests.curvature import hugging_face, networks
from tests.curvature.networks import pairs, tokens
from tests.network.sites.families import FAMILIES, token_ids
from tests.oracles.comparison import assert_same
from tests.variants import DOUBLE

PARTS = {"full": hl.hessian, "ggn": hl.ggn, "functional": hl.functional}


def _untied(**options: object) -> Problem:
    model = hugging_face.gpt2(tie_word_embeddings=False, **options)
    return hl.problem(model, [hugging_face.padded(2), hugging_face.padded(1, 4, seed=7)])


def _smoothed(outputs: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    weights = torch.linspace(0.5, 2, outputs.shape[-1], dtype=outputs.dtype)
    flat = outputs.flatten(0, -2)
    return nnf.cross_entropy(flat, batch[1].flatten(), weight=weights, reduction="sum") + nnf.cross_entropy(
        flat, batch[1].flatten(), label_smoothing=0.1
    )


def _with_small_term(outputs: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The usual penalty on the normaliser of the outputs, with its usual factor."""
    return nnf.cross_entropy(outputs.flatten(0, 1), batch[1].flatten()) + 1e-4 * outputs.logsumexp(-1).square().mean()


class TwoPaths(nn.Module):
    """Outputs that are a linear map and something else."""

    def __init__(self) -> None:
        super().__init__()
        self.unembed = nn.Linear(3, 4, bias=False).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.unembed(x) + x.tanh().sum(-1, keepdim=True) * torch.arange(4)


READ: dict[str, Callable[[], Problem]] = {
    "GPT-2, padded, two batches": _untied,
    "toy": lambda: networks.toy_problem(2, norm="pre"),
    "toy, weights and smoothing": lambda: networks.toy_problem(2, norm="pre", loss=_smoothed),
    "Llama": lambda: hl.problem(FAMILIES["Llama"](), {"input_ids": token_ids()}),
    "BERT, bias": lambda: hl.problem(FAMILIES["BERT"](), {"input_ids": token_ids(), "labels": token_ids()}),
}
NOT_READ: dict[str, Callable[[], Problem]] = {
    "square": lambda: networks.toy_problem(data=(tokens(2), torch.randn(2, 4, networks.VOCAB).double()), loss="square"),
    "a term more": lambda: networks.toy_problem(
        2, loss=lambda o, b: nnf.cross_entropy(o.flatten(0, 1), b[1].flatten()) + 1e-3 * o.logsumexp(-1).square().sum()
    ),
    "capped outputs": lambda: hl.problem(FAMILIES["Gemma2, capped scores, window"](), {"input_ids": token_ids()}),
    "a small term more, in single precision": lambda: networks.toy_problem(
        2, loss=_with_small_term, given={"dtype": torch.float32}
    ),
    "another path, one position": lambda: hl.problem(
        TwoPaths(), (torch.ones(1, 1, 3).double(), torch.tensor([[1]])), "cross_entropy"
    ),
    "a straight loss": lambda: networks.toy_problem(2, loss=lambda o, b: o.sum()),
}


@pytest.mark.expensive
@pytest.mark.parametrize("name", READ)
def test_the_curvature_is_that_of_products(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every map before the last one, for every pair of blocks behind the attention."""
    monkeypatch.setattr(readout, "_MIN_WORDS_PER_FEATURE", 0)
    problem = READ[name]()
    maps = LinearMaps(problem)
    last = max(name for name in problem.blocks if name.startswith("layer")).split(".")[0]
    names = [f"{last}.attn.o", f"{last}.mlp.in", f"{last}.mlp.out", "layer0.attn.q"]
    for row, column in itertools.combinations_with_replacement(names, 2):
        plan = maps.plan(problem.blocks[row], problem.blocks[column], float("inf"))
        for part, make in PARTS.items():
            op = make(problem, row, column, method="hvp")
            expected = op @ torch.eye(op.shape[1], dtype=DOUBLE)
            error = float((maps.operator(part, plan).to_dense() - expected).norm())
            assert error <= 1e-9 * max(float(expected.norm()), 1e-5), f"{part} {row} x {column}"
    assert all("curvature" in vars(maps.graphs.readout(number)) for number in range(len(problem.data)))


@pytest.mark.parametrize("name", READ)
def test_the_last_map_has_its_norm_without_products(name: str) -> None:
    problem = READ[name]()
    blocks = [b for b in problem.blocks if b in ("unembed", "unembed.bias") and "shared" not in problem.blocks[b].note]
    norms = hl.block_norms(problem, blocks)
    for block in blocks:
        op = hl.hessian(problem, block, method="hvp")
        expected = float((op @ torch.eye(op.shape[1], dtype=DOUBLE)).norm())
        for part in ("full", "ggn"):
            assert norms[block, part].exact and norms[block, part].value == pytest.approx(expected, rel=1e-10)
        assert norms[block, "functional"].value == 0 and norms[block, "functional"].exact
        assert norms.why[block].startswith(f"{ReadoutRoute.reason}; exact takes 1 HVP, sampling ")
    assert blocks


@pytest.mark.parametrize("name", NOT_READ)
def test_other_losses_are_left_to_products(name: str) -> None:
    problem = NOT_READ[name]()
    assert readout_of(problem, problem.data[0]) is None
    block = next(n for n in ("layer1.mlp.out", "unembed", "unembed.weight") if n in problem.blocks)
    op = hl.hessian(problem, block, method="hvp")
    expected = float((op @ torch.eye(op.shape[1], dtype=op.dtype)).norm())
    assert hl.block_norms(problem, block, method="exact")[block, "full"].value == pytest.approx(expected)


def test_chances_that_are_nearly_certain_are_left_to_products() -> None:
    """The four terms of the norm would cancel; products do not."""
    model = networks.toy(norm="pre")
    with torch.no_grad():
        model.W_U.mul_(60)
    problem = hl.problem(model, pairs(2), "cross_entropy")
    found = readout_of(problem, problem.data[0])
    assert found is None or readout_norm([found], found.use.parameter) is None
    op = hl.hessian(problem, "unembed", method="hvp")
    expected = float((op @ torch.eye(op.shape[1], dtype=DOUBLE)).norm())
    assert hl.block_norms(problem, "unembed")["unembed", "full"].value == pytest.approx(expected, rel=1e-8)


def test_a_norm_is_accurate_or_left_to_products_however_certain_the_chances_are() -> None:
    """Its terms cancel more and more digits as the logits grow: the norm is given up before that shows."""
    problem = READ["toy"]()
    found, answers = readout_of(problem, problem.data[0]), []
    for scale in (1.0, 4.0, 8.0, 12.0, 16.0):
        p = torch.softmax(scale * nnf.one_hot(found.chances.argmax(-1), found.chances.shape[-1]).double(), -1)
        certain = replace(found, chances=p)
        each = found.weights[:, None, None] * (p.diag_embed() - p[:, :, None] * p[:, None])
        expected = float(torch.einsum("ni,nj,nkl->ikjl", found.at, found.at, each).norm())
        answers.append(readout_norm([certain], found.use.parameter))
        assert answers[-1] is None or answers[-1] == pytest.approx(expected, rel=1e-8), scale
    assert answers[0] is not None and None in answers


def test_the_vocabulary_is_cut_into_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = READ["GPT-2, padded, two batches"]()
    whole = readout_of(problem, problem.data[0]).curvature
    monkeypatch.setattr(readout, "_SLICE", 2)
    assert_same(readout_of(problem, problem.data[0]).curvature, whole, "curvature")


def test_a_wrong_quadratic_form_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Readout, "gradient", property(lambda self: -self.slope @ self.weight.T))
    with pytest.raises(AssertionError):
        test_the_curvature_is_that_of_products("toy", monkeypatch)


def test_it_is_made_only_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = READ["toy"]()
    block = problem.blocks["layer0.mlp.in"]
    maps = LinearMaps(problem)
    maps.operator("full", maps.plan(block, block, float("inf"))).to_dense()
    assert "curvature" not in vars(maps.graphs.readout(0))


def test_a_weight_and_its_bias_share_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, ticks = hl.problem(hugging_face.gpt2(), {"input_ids": tokens()}), []
    maps = LinearMaps(problem)
    monkeypatch.setattr(plan, "KEPT_BYTES", 0)
    names = ["layer1.mlp.in", "layer1.mlp.in.bias"]
    with maps.watched(lambda: ticks.append(1)):
        found = [maps.norms(maps.plan(*[problem.blocks[name]] * 2, float("inf")), tuple(PARTS)) for name in names]
    assert len(ticks) <= 2 * len(problem.params["transformer.h.1.mlp.c_fc.bias"])
    for name, norms in zip(names, found, strict=True):
        for part, make in PARTS.items():
            op = make(problem, name, method="hvp")
            expected = float((op @ torch.eye(op.shape[1], dtype=DOUBLE)).norm())
            assert norms.values[part] == pytest.approx(expected, rel=1e-10)
