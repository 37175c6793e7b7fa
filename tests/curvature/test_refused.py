"""What autograd cannot differentiate twice is refused by name, whichever way its curvature is asked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

import hessianlens as hl
from hessianlens.curvature import Linearisation
from hessianlens.problems import Problem
from tests.curvature import networks
from tests.curvature.networks import pairs as tokens_and_classes
from tests.curvature.refused import (
    REFUSED,
    Applied,
    DetachedCrossEntropy,
    DetachedTanh,
    OnceCrossEntropy,
    OnceTanh,
    TwiceTanh,
    pairs,
    stack,
)
from tests.oracles.comparison import assert_same
from tests.variants import randn

REMEDY = r"[Uu]se an implementation made of plain PyTorch operations \(eager, unfused"
BEFORE, BEHIND = "layers.0.input.weight", "layers.1.output.weight"


def _product(operator) -> Tensor:
    return operator @ randn(operator.shape[1])


WAYS: dict[str, Callable[[Problem], object]] = {
    "hessian": lambda p: _product(hl.hessian(p, BEFORE)),
    "ggn": lambda p: _product(hl.ggn(p, BEFORE)),
    "functional": lambda p: _product(hl.functional(p, BEFORE)),
    "block_norms": lambda p: hl.block_norms(p, "*", probes=2),
    "block_pair_norms": lambda p: hl.block_pair_norms(p, [BEFORE, "embedding.weight"], probes=2),
    "trace": lambda p: hl.trace(hl.hessian(p, BEFORE), probes=2),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", REFUSED)
def test_the_part_to_blame_is_named_with_the_remedy(name: str, way: str) -> None:
    with pytest.raises(hl.InputError, match=f"^{REFUSED[name].blamed}.*{REMEDY}"):
        WAYS[way](REFUSED[name].problem())


@pytest.mark.expensive
@pytest.mark.parametrize("name", [name for name, case in REFUSED.items() if not case.by_graph])
def test_a_single_precision_problem_is_refused_as_well(name: str) -> None:
    with pytest.raises(hl.InputError, match=f"^{REFUSED[name].blamed}.*{REMEDY}.*verify=False"):
        WAYS["hessian"](REFUSED[name].problem(dtype=torch.float32))


@pytest.mark.parametrize("way", ["hessian", "functional", "block_norms"])
@pytest.mark.parametrize("name", REFUSED)
def test_unverified_numbers_lack_a_part_but_nothing_marked_is_taken_for_zero(name: str, way: str) -> None:
    """Without the check the graph still knows what is marked."""
    case = REFUSED[name]
    problem = case.problem(verify=False)
    if case.by_graph:
        with pytest.raises(hl.InputError, match=f"^{case.blamed}.*once_differentiable"):
            WAYS[way](problem)
    else:
        WAYS[way](problem)


@pytest.mark.parametrize("function", [OnceTanh, DetachedTanh])
def test_what_plays_no_part_is_not_accused(function: type) -> None:
    """Weights behind the activation see it as a constant; pairs of weights on both sides need it once only."""
    suspect, plain = (hl.problem(stack(act), pairs(), "cross_entropy") for act in (Applied(function), nn.Tanh()))
    for make in (hl.hessian, hl.ggn, hl.functional):
        for rows, columns in ((BEHIND, BEHIND), (BEFORE, BEHIND)):
            found, expected = (_product(make(p, rows, columns)) for p in (suspect, plain))
            assert bool(expected.any()) == ((make, rows) != (hl.functional, BEHIND))
            assert_same(found, expected, f"{rows} x {columns}")
    assert hl.block_norms(suspect, BEHIND, probes=2) == hl.block_norms(plain, BEHIND, probes=2)


def test_branches_that_do_not_meet_are_zero_to_each_other() -> None:
    """A loss that adds up two networks, one of them once differentiable: their pair of weights has no curvature."""

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([OnceTanh.apply(self.one(x)), self.other(x).tanh()], -1)

    model = networks.scrambled(Branches().double())
    problem = hl.problem(model, (randn(4, 3), randn(4)), lambda outputs, _: outputs.sum())
    assert not _product(hl.hessian(problem, "one.weight", "other.weight")).any()
    at = Linearisation(problem, problem.data[0], ["one.weight", "other.weight"])
    assert not at.hessian({"one.weight": randn(2, 3)}, ["other.weight"])["other.weight"].any()
    assert _product(hl.hessian(problem, "other.weight")).any()
    with pytest.raises(hl.InputError, match="OnceTanh"):
        _product(hl.hessian(problem, "one.weight"))


def test_a_function_as_it_should_be_is_not_refused() -> None:
    found, expected = (hl.problem(stack(act), pairs(), "cross_entropy") for act in (Applied(TwiceTanh), nn.Tanh()))
    for make in (hl.hessian, hl.ggn, hl.functional):
        assert_same(_product(make(found, "*")), _product(make(expected, "*")), make.__name__)


# --- what PyTorch itself refuses -------------------------------------------------------------------------------------


class Flash(nn.Module):
    """Attention that insists on the fused kernel."""

    def forward(self, x: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return nn.functional.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])[:, 0]


class Recomputed(nn.Module):
    """A checkpoint of the kind that knows no `torch.autograd.grad`."""

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(torch.tanh, x, use_reentrant=True) if x.requires_grad else x.tanh()


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("module", [Flash])
def test_errors_of_pytorch_name_the_module(module: type[nn.Module], verify: bool) -> None:
    problem = hl.problem(stack(module()), pairs(), "cross_entropy", verify=verify)
    for way in ("hessian", "ggn", "block_norms"):
        with pytest.raises(
            hl.InputError, match=rf"^model: layers\.1\.act \({module.__name__}\).*PyTorch says.*{REMEDY}"
        ):
            WAYS[way](problem)


def test_a_checkpoint_is_left_aside() -> None:
    """Autograd cannot go twice through a reentrant checkpoint; the steps inside of it are taken plainly."""
    network = stack(Recomputed())
    found = hl.block_norms(hl.problem(network, pairs(), "cross_entropy")).rows()
    network.layers[1].act = nn.Tanh()
    plain = hl.block_norms(hl.problem(network, pairs(), "cross_entropy")).rows()
    assert [row["block"] for row in found] == [row["block"] for row in plain]
    assert [row["value"] for row in found] == pytest.approx([row["value"] for row in plain], rel=1e-6)


# --- closed forms ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("squared", [False, True])
def test_a_closed_form_under_a_once_differentiable_loss(squared: bool, verify: bool) -> None:
    """The closed form of an attention layer takes the loss's curvature from autograd, too."""

    def loss(outputs: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        found = OnceCrossEntropy.apply(outputs, batch[1].clamp(min=0))
        return found.square() if squared else found

    problem = networks.toy_problem(loss=loss, given={"verify": verify})
    for method in ("auto", "exact", "hvp"):
        with pytest.raises(hl.InputError, match=r"^loss .*OnceCrossEntropy"):
            _product(hl.hessian(problem, "layer0.attn.q", method=method))
        with pytest.raises(hl.InputError, match=r"^loss .*OnceCrossEntropy"):
            hl.block_norms(problem, "layer0.attn.v", method=method)


def test_a_closed_form_under_a_loss_that_hides_its_curvature() -> None:
    def loss(outputs: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        return DetachedCrossEntropy.apply(outputs, batch[1].clamp(min=0))

    problem = networks.toy_problem(loss=loss)
    for method in ("auto", "exact"):
        with pytest.raises(hl.InputError, match=r"^loss hides part of its derivative"):
            _product(hl.ggn(problem, "layer0.attn.q", method=method))
        with pytest.raises(hl.InputError, match=r"^loss hides part of its derivative"):
            hl.block_norms(problem, "layer0.attn.v", method=method)


@pytest.mark.parametrize("verify", [True, False])
def test_a_closed_form_under_a_loss_that_pytorch_refuses(verify: bool) -> None:
    def loss(outputs: Tensor, _: object) -> Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return nn.functional.scaled_dot_product_attention(*([outputs[:, None]] * 3)).square().sum()

    problem = networks.toy_problem(data=networks.tokens(2), loss=loss, given={"verify": verify})
    for method in ("auto", "exact", "hvp"):
        with pytest.raises(hl.InputError, match=rf"^loss .*PyTorch says.*{REMEDY}"):
            _product(hl.hessian(problem, "layer0.attn.q", method=method))


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("layer", [0, 1])
def test_closed_forms_around_an_activation_that_is_once_differentiable(layer: int, verify: bool) -> None:
    """Behind the last attention layer, and between the two: neither is taken for piecewise linear."""
    model = networks.toy(layers=2, mlp_activation="relu")
    model.blocks[layer].mlp.activation = Applied(OnceTanh)
    problem = hl.problem(model, tokens_and_classes(2)[0], "cross_entropy", verify=verify)
    with pytest.raises(hl.InputError, match=rf"^model: .*OnceTanh.*{REMEDY}"):
        hl.block_norms(problem, "layer0.attn.q", probes=2)
    if layer == 1:
        with pytest.raises(hl.InputError, match=rf"^model: .*OnceTanh.*{REMEDY}"):
            _product(hl.hessian(problem, "layer1.attn.q"))


def test_an_activation_of_attention_that_is_once_differentiable() -> None:
    activation = hl.attention.activations.ElementwiseFunction(OnceTanh.apply, "fused")
    layer = hl.SelfAttention(randn(4, 3), randn(4, 3, seed=1), randn(4, 4, seed=2), activation=activation)
    with pytest.raises(hl.InputError, match=f"^activation fused .*OnceTanh.*{REMEDY}"):
        hl.attention_hessian(layer, randn(5, 4), hl.SquareLoss(randn(5, 4, seed=3))).full["Q", "Q"].frobenius_norm()
