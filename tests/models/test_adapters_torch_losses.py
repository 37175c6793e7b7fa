"""PyTorch's own losses, handed over as they are: over all of the data, as one call on everything would reduce."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

import hessianlens as hl
from tests.curvature import hugging_face, networks
from tests.curvature.agreement import same_operator
from tests.curvature.networks import LENGTH, VOCAB, NanoGPT, pairs, scrambled, tokens
from tests.oracles.comparison import assert_same
from tests.variants import DOUBLE, randn

WEIGHT = torch.tensor([0.5, 2.0, 1.0, 0.1, 3.0])
BY_CLASS: dict[str, Any] = {
    "module": nn.CrossEntropyLoss(),
    "function": nnf.cross_entropy,
    "sum": nn.CrossEntropyLoss(reduction="sum"),
    "ignore_index": nn.CrossEntropyLoss(ignore_index=2),
    "float32 weights": nn.CrossEntropyLoss(weight=WEIGHT),
    "label smoothing": nn.CrossEntropyLoss(label_smoothing=0.2),
    "weights and smoothing": nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.2),
    "bound": partial(nnf.cross_entropy, weight=WEIGHT, ignore_index=1),
}


def batches_for(loss: Any) -> list[tuple[Tensor, Tensor]]:
    """Uneven batches of tokens; a target of each has no loss, by the number this loss knows."""
    options = vars(loss) if isinstance(loss, nn.Module) else getattr(loss, "keywords", {})
    ignored = options.get("ignore_index", -100)
    return [(x, y.masked_fill(y == -100, ignored)) for x, y in pairs(3, 1, 2)]


def double(loss: Any) -> Callable[[Tensor, Tensor], Tensor]:
    if isinstance(loss, nn.Module):
        weight = getattr(loss, "weight", None)
        kept = {key: getattr(loss, key) for key in ("reduction", "ignore_index", "label_smoothing")}
        return type(loss)(weight=None if weight is None else weight.double(), **kept)
    if isinstance(loss, partial):
        return partial(loss.func, **{**loss.keywords, "weight": WEIGHT.double()})
    return loss


@pytest.mark.parametrize("name", BY_CLASS)
def test_several_uneven_batches_are_one_reduction(name: str) -> None:
    """Tokens are flattened and targets without a loss are left out, of the mean's divisor too."""
    loss, model = BY_CLASS[name], networks.toy()
    batches = batches_for(loss)
    problem = hl.problem(model, batches, loss)
    outputs = torch.cat([model.eval()(x).detach() for x, _ in batches]).flatten(0, 1)
    expected = double(loss)(outputs, torch.cat([y for _, y in batches]).flatten())
    assert_same(problem.total_loss(), expected, name, 1e-12)


def test_it_is_the_loss_of_that_name() -> None:
    model, batches = networks.toy(), pairs(2, 1)
    named = hl.problem(model, batches, "cross_entropy")
    for loss in (nn.CrossEntropyLoss(), nnf.cross_entropy):
        same_operator(hl.problem(model, batches, loss), named, ["layer0.attn.q", "unembed"], 1e-9)
    dictionaries = [{"tokens": x, "labels": y} for x, y in batches]
    same_operator(hl.problem(model, dictionaries, nn.CrossEntropyLoss()), named, ["layer0.attn.q"], 1e-9)


def test_reductions_are_stated() -> None:
    model, batches = networks.toy(), pairs(3, 1)
    said = {
        "CrossEntropyLoss, mean over 14 targets": nn.CrossEntropyLoss(),
        "cross_entropy, mean over 14 targets": nnf.cross_entropy,
        "CrossEntropyLoss, summed over everything": nn.CrossEntropyLoss(reduction="sum"),
    }
    assert {hl.problem(model, batches, loss).reduction for loss in said.values()} == set(said)
    weighted = hl.problem(model, batches, nn.CrossEntropyLoss(weight=torch.full((VOCAB,), 2.0)))
    assert weighted.reduction == "CrossEntropyLoss, mean over 28 weights of targets"


ELEMENTWISE: dict[str, tuple[Any, Callable[..., Tensor]]] = {
    "MSELoss": (nn.MSELoss(), nnf.mse_loss),
    "mse_loss": (nnf.mse_loss, nnf.mse_loss),
    "BCEWithLogitsLoss": (nn.BCEWithLogitsLoss(), nnf.binary_cross_entropy_with_logits),
    "HuberLoss": (nn.HuberLoss(delta=0.3), partial(nnf.huber_loss, delta=0.3)),
    "KLDivLoss": (nn.KLDivLoss(reduction="batchmean"), partial(nnf.kl_div, reduction="batchmean")),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_losses_of_numbers(name: str) -> None:
    loss, by_hand = ELEMENTWISE[name]
    model = networks.mlp()
    batches = [(randn(n, 3, seed=n), (randn(n, 3, seed=9 + n) > 0).double()) for n in (3, 1, 2)]
    problem = hl.problem(model, batches, loss)
    outputs = torch.cat([model.eval()(x).detach() for x, _ in batches])
    assert_same(problem.total_loss(), by_hand(outputs, torch.cat([y for _, y in batches])), name, 1e-12)


def test_one_number_a_sequence_is_not_broadcast() -> None:
    """PyTorch would: outputs (4, 1) and targets (4,) are refused where it does, and read where it raises."""
    model, x, y = scrambled(nn.Linear(3, 1).to(DOUBLE)), randn(4, 3), randn(4, seed=1)
    refused = r"targets: got shape \(4,\), expected .* \(4, 1\), .* broadcast both to \(4, 4\)"
    for loss in (nn.MSELoss(), nnf.l1_loss, nn.HuberLoss(), nn.KLDivLoss(reduction="batchmean"), nnf.poisson_nll_loss):
        with pytest.raises(hl.InputError, match=refused):
            hl.problem(model, (x, y), loss)
    binary = (y > 0).double()
    found = hl.problem(model, (x, binary), nn.BCEWithLogitsLoss())
    expected = nnf.binary_cross_entropy_with_logits(model(x)[:, 0], binary).detach()
    assert_same(found.total_loss(), expected)
    assert any("BCEWithLogitsLoss takes no outputs (4, 1) and targets (4,)" in note for note in found.notes)


def test_probabilities_and_classes_in_the_second_axis() -> None:
    model, ids = networks.toy(), tokens(3)
    outputs = model.eval()(ids).detach()
    shares = torch.softmax(randn(3, LENGTH, VOCAB), -1)
    expected = nnf.cross_entropy(outputs, shares)  # PyTorch takes axis 1 for the classes of shares as well
    assert_same(hl.problem(model, (ids, shares), nn.CrossEntropyLoss()).total_loss(), expected, "probabilities")
    images = scrambled(nn.Conv2d(1, 3, 1).to(DOUBLE))
    x, y = randn(2, 1, 4, 5), torch.randint(3, (2, 4, 5), generator=torch.Generator().manual_seed(0))
    expected = nnf.cross_entropy(images(x), y).detach()
    assert_same(hl.problem(images, (x, y), nn.CrossEntropyLoss()).total_loss(), expected, "classes second")


def test_a_causal_language_model_predicts_the_next_token() -> None:
    """Its labels are its inputs: without the shift the loss would compare a token with itself."""
    model, batch = hugging_face.gpt2(), hugging_face.padded(3)
    problem = hl.problem(model, batch, nn.CrossEntropyLoss())
    assert problem.reduction == "next-token CrossEntropyLoss, mean over 8 targets"
    assert_same(problem.total_loss(), hl.problem(model, batch).total_loss(), "own loss", 1e-12)


def test_a_batch_without_a_single_target_counts_for_nothing() -> None:
    model, (one, other) = networks.toy(), pairs(2, 1)
    silent = (other[0], torch.full_like(other[1], -100))
    both, alone = (hl.problem(model, data, nn.CrossEntropyLoss()) for data in ([one, silent], [one]))
    assert_same(both.total_loss(), alone.total_loss())


# --- models that give only the last position -------------------------------------------------------------------------


class LastPosition(NanoGPT):
    """As nanoGPT itself: all logits, and a loss, with targets; those of the last position without."""

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        logits, _ = super().forward(tokens)
        if targets is None:
            return logits[:, [-1]], None
        return logits, nnf.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


@pytest.mark.parametrize("loss", ["cross_entropy", nn.CrossEntropyLoss(), nnf.cross_entropy])
def test_targets_are_handed_to_a_model_that_needs_them(loss: Any) -> None:
    batches = pairs(2, 1)
    model, plain = scrambled(LastPosition().to(DOUBLE)), networks.nano_gpt()
    problem, expected = (hl.problem(m, batches, loss) for m in (model, plain))
    assert any("LastPosition gives outputs at every position only with targets" in note for note in problem.notes)
    assert not any("with targets" in note for note in expected.notes)
    same_operator(problem, expected, ["layer0.attn.q", "layer1.mlp.in"], 1e-9)


def test_a_model_of_one_answer_is_left_alone() -> None:
    """Without targets at every position there is nothing to hand over."""
    model = scrambled(LastPosition().to(DOUBLE))
    problem = hl.problem(model, tokens(), lambda out, batch: out.square().mean())
    assert problem.forward(problem.params, tokens()).shape == (2, 1, VOCAB)


# --- errors ----------------------------------------------------------------------------------------------------------

X, Y = randn(6, 3), torch.tensor([0, 2, 1, 1, 0, 2])
BAD: dict[str, Callable[[], object]] = {
    r"targets: got class 3 \(1 of 6 out of range\), expected 0 \.\. 2 for outputs of 3 classes, or -100": lambda: (
        hl.problem(networks.mlp(), (X, torch.tensor([0, 3, 1, 1, 0, 2])), "cross_entropy")
    ),
    r"targets: got class -1 \(2 of 6 out of range\), expected 0 \.\. 2": lambda: hl.problem(
        networks.mlp(), (X, torch.tensor([0, -1, 1, -1, 0, 2])), nn.CrossEntropyLoss()
    ),
    r"targets: got class 7 .* or 1 where there is no loss": lambda: hl.problem(
        networks.mlp(), (X, torch.tensor([0, 7, 1, 1, 0, 2])), nn.CrossEntropyLoss(ignore_index=1)
    ),
    r"targets: got dtype torch\.float64, expected numbers of classes": lambda: hl.problem(
        networks.mlp(), (X, Y.double()), "cross_entropy"
    ),
    r"targets: got shape \(5,\), expected \(6,\) for outputs \(6, 3\)": lambda: hl.problem(
        networks.mlp(), (X, Y[:5]), nn.CrossEntropyLoss()
    ),
    "loss: CrossEntropyLoss has reduction='none', expected 'mean' or 'sum'": lambda: hl.problem(
        networks.mlp(), (X, Y), nn.CrossEntropyLoss(reduction="none")
    ),
    "reduction: got 'sum', but CrossEntropyLoss itself has reduction='mean'; set it there": lambda: hl.problem(
        networks.mlp(), (X, Y), nn.CrossEntropyLoss(), reduction="sum"
    ),
    r"targets: CrossEntropyLoss counts none of them \(ignore_index=-100\)": lambda: hl.problem(
        networks.mlp(), (X, torch.full((6,), -100)), nn.CrossEntropyLoss()
    ),
    r"data: no targets; give \(inputs, targets\) pairs": lambda: hl.problem(networks.mlp(), X, nn.MSELoss()),
}


@pytest.mark.parametrize("message", BAD)
def test_what_cannot_be_used(message: str) -> None:
    with pytest.raises(hl.InputError, match=message):
        BAD[message]()
