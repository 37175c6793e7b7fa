"""The loss of a problem is the user's loss: against plain calls of the model and of the loss, batch by batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

import hessianlens as hl
from hessianlens.models.adapters import comparison, micro_batches
from hessianlens.problems import LogitsForward, Problem

VOCAB, LENGTH, WIDTH = 7, 5, 4


def ids(sequences: int, length: int = LENGTH, seed: int = 0, classes: int = VOCAB) -> Tensor:
    return torch.randint(classes, (sequences, length), generator=torch.Generator().manual_seed(seed))


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Tokens(nn.Module):
    """Logits of tokens, to which something may be done."""

    def __init__(self, after: Callable[[Tensor, Tensor], Any] = lambda z, x: z, classes: int = VOCAB) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed, self.mix, self.unembed = (
            nn.Embedding(VOCAB, WIDTH),
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, classes),
        )
        self.after = after
        self.double().requires_grad_()

    def forward(self, x: Tensor) -> Any:
        h = torch.tanh(self.mix(self.embed(x)))
        return self.after(self.unembed(h + h.cumsum(1)), x)


def value(problem: Problem) -> float:
    with torch.no_grad():
        return float(problem.total_loss())


def derivatives(loss: Callable[[dict[str, Tensor]], Tensor], params: dict[str, Tensor], twice: bool) -> list[Tensor]:
    """Gradient and one Hessian-vector product by plain autograd."""
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in params.items()}
    first = torch.autograd.grad(loss(leaves), list(leaves.values()), create_graph=True)
    if not twice:  # PyTorch has no second derivative of this loss
        return list(first)
    along = [numbers(*each.shape, seed=k) for k, each in enumerate(first)]
    inner = torch.stack([(g * v).sum() for g, v in zip(first, along, strict=True)]).sum()
    return [*first, *torch.autograd.grad(inner, list(leaves.values()))]


def agrees(problem: Problem, model: nn.Module, plain: Callable[[nn.Module], Tensor], twice: bool = True) -> None:
    """The problem, and the problem as written, have the value, gradient and HVP of a plain computation."""

    def by_hand(leaves: dict[str, Tensor]) -> Tensor:
        # The model as the user has it, with other tensors in the place of its parameters.
        return torch.func.functional_call(_Plain(model, plain), {f"model.{n}": t for n, t in leaves.items()}, ())

    def here(of: Problem) -> Callable[[dict[str, Tensor]], Tensor]:
        def loss(leaves: dict[str, Tensor]) -> Tensor:
            with of.scope():
                return torch.stack([of.batch_loss({**of.params, **leaves}, batch) for batch in of.data]).sum()

        return loss

    params = dict(model.named_parameters())
    expected = derivatives(by_hand, params, twice)
    for found in (problem, problem.as_written()):
        assert value(found) == pytest.approx(float(by_hand(params).detach()), rel=1e-10)
        for one, other in zip(derivatives(here(found), params, twice), expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


class _Plain(nn.Module):
    def __init__(self, model: nn.Module, plain: Callable[[nn.Module], Tensor]) -> None:
        super().__init__()
        self.model, self.plain = model, plain

    def forward(self) -> Tensor:
        return self.plain(self.model)


# --- logits that are not materialised ---------------------------------------------------------------------------------


def _scaled(z: Tensor, x: Tensor) -> Tensor:
    z *= 3
    return z


def _divided(z: Tensor, x: Tensor) -> Tensor:
    return z.div_(0.7)


def _masked(z: Tensor, x: Tensor) -> Tensor:
    return z.masked_fill_(torch.arange(VOCAB) == 2, -4.0)


def _set(z: Tensor, x: Tensor) -> Tensor:
    z[..., 0] = -5
    return z


def _through_a_view(z: Tensor, x: Tensor) -> Tensor:
    z.view(-1, VOCAB)[:, 1].mul_(2)
    return z


def _behind_autograd(z: Tensor, x: Tensor) -> Tensor:
    z.data.mul_(2)
    return z


def _shifted_twice(z: Tensor, x: Tensor) -> Tensor:
    z *= 2
    z += 1
    return z


def _on_long_batches(z: Tensor, x: Tensor) -> Tensor:
    return 2 * z if x.shape[1] > LENGTH else z


def _on_long_batches_in_place(z: Tensor, x: Tensor) -> Tensor:
    if x.shape[1] > LENGTH:
        z.clamp_(max=0.1)
    return z


CHANGES = [
    *(_scaled, _divided, _masked, _set, _through_a_view, _shifted_twice, _on_long_batches, _on_long_batches_in_place)
]


@pytest.mark.parametrize("after", CHANGES)
@pytest.mark.parametrize("loss", ["cross_entropy", nn.CrossEntropyLoss()])
def test_what_a_model_does_to_its_logits_is_kept(after: Callable[[Tensor, Tensor], Tensor], loss: Any) -> None:
    model = Tokens(after)
    data = [(ids(3), ids(3, seed=1)), (ids(2, LENGTH + 1, 2), ids(2, LENGTH + 1, 3))]
    problem = hl.problem(model, data, loss, logits="chunked")
    assert not isinstance(problem.forward, LogitsForward)
    assert any(note.startswith("logits (") and "formed and held as a whole" in note for note in problem.notes)
    assert not any("are not materialised" in note for note in problem.notes)

    def plain(by: nn.Module) -> Tensor:
        outputs = torch.cat([by(x).flatten(0, 1) for x, _ in data])
        return nnf.cross_entropy(outputs, torch.cat([y.flatten() for _, y in data]))

    agrees(problem, model, plain)


def test_what_autograd_does_not_see_is_seen_in_the_value() -> None:
    model = Tokens(_behind_autograd)
    problem = hl.problem(model, (ids(3), ids(3, seed=1)), "cross_entropy", logits="chunked")
    assert not isinstance(problem.forward, LogitsForward)
    assert any("the loss of batch 0 is" in note and "without materialising" in note for note in problem.notes)


def test_logits_as_they_are_stay_unmaterialised() -> None:
    data = [(ids(3), ids(3, seed=1)), (ids(2, LENGTH + 1, 2), ids(2, LENGTH + 1, 3))]
    assert isinstance(hl.problem(Tokens(), data, "cross_entropy", logits="chunked").forward, LogitsForward)


# --- micro-batches ----------------------------------------------------------------------------------------------------


def _masked_mean(outputs: Tensor, batch: Any) -> Tensor:
    kept = batch["weight"]
    return (nnf.cross_entropy(outputs.mT, batch["y"], reduction="none") * kept).sum() / kept.sum()


def _between_sequences(outputs: Tensor, batch: Any) -> Tensor:
    rows = outputs.flatten(1)
    return (rows @ rows.T).logsumexp(1).mean()


def _mean(outputs: Tensor, batch: Any) -> Tensor:
    return outputs.square().mean()


class Named(Tokens):
    """Takes its tokens by name, and a mask between positions."""

    def forward(self, x: Tensor, mask: Tensor | None = None, **_: Tensor) -> Tensor:
        h = torch.tanh(self.mix(self.embed(x)))
        return self.unembed(h if mask is None else mask.tril().to(h) @ h)


class Centred(Tokens):
    """Takes the mean over its batch away."""

    def forward(self, x: Tensor, **_: Tensor) -> Tensor:
        h = self.mix(self.embed(x))
        return self.unembed(h - 0.01 * h.mean(0))


def named(sequences: int, length: int = LENGTH) -> dict[str, Tensor]:
    weight = (numbers(sequences, length, seed=4) > 0).double()
    weight[0] = 1
    return {"x": ids(sequences, length), "y": ids(sequences, length, 1), "weight": weight}


def _fit(problem: Problem, width: int) -> Problem:
    made = hl.network.forecast(problem, list(problem.blocks.values()), probes=1, parts=1)
    return hl.network.fit_memory(problem, made.vector_bytes + width * made.bytes_per_sequence)


REFUSED: dict[str, tuple[type[Tokens], Callable[[], dict[str, Tensor]], Any]] = {
    "masked mean": (Named, lambda: named(4), _masked_mean),
    "between sequences": (Named, lambda: named(4), _between_sequences),
    "model between sequences": (Centred, lambda: named(4), _mean),
    "mask of positions as long as the batch": (
        Named,
        lambda: {**named(4, 4), "mask": torch.ones(4, 4, dtype=torch.float64)},
        _mean,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_cut_that_changes_the_loss_is_refused(name: str) -> None:
    kind, batch, loss = REFUSED[name]
    with pytest.raises(hl.InputError, match=r"^micro_batch: batch 0, of 4 sequences, cannot be cut into pieces of 2"):
        hl.problem(kind(), batch(), loss, micro_batch=2)
    whole = hl.problem(kind(), batch(), loss)
    if "mask of" not in name:  # which needs its whole batch to be run at all
        with pytest.raises(
            hl.InputError, match=r"^max_memory: batch 0, of 4 sequences, cannot be cut into pieces of 2"
        ):
            _fit(whole, 2)


@pytest.mark.parametrize("loss", [_mean, "cross_entropy", nn.CrossEntropyLoss(label_smoothing=0.1)])
def test_a_cut_that_does_not_is_made(loss: Any) -> None:
    batch = {"x": ids(5), "labels": ids(5, seed=1)}
    model = Named()
    problem = hl.problem(model, batch, loss, micro_batch=2)
    assert [len(piece["x"]) for piece in problem.data] == [2, 2, 1]
    assert value(problem) == pytest.approx(value(hl.problem(model, batch, loss)), rel=1e-12)


def test_a_masked_mean_with_equal_counts_by_chance_is_no_sum_over_sequences_in_its_gradient() -> None:
    """The value alone would pass: every sequence has the same loss, and other weights."""
    row = ids(1)
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)[:, None].expand(4, LENGTH).clone()
    batch = {"x": row.expand(4, LENGTH).clone(), "y": ids(1, seed=1).expand(4, LENGTH).clone(), "weight": weight}
    with pytest.raises(hl.InputError, match="its derivatives with respect to the outputs differ"):
        hl.problem(Named(), batch, _masked_mean, micro_batch=2)


def test_a_variance_over_equal_sequences_shows_its_coupling_in_its_second_derivative_only() -> None:
    batch = {"x": ids(1).expand(4, LENGTH).clone()}
    with pytest.raises(hl.InputError, match=r"its loss is .* its derivatives with respect to the outputs differ"):
        hl.problem(Named(), batch, lambda out, _: out.var(0).sum(), micro_batch=2)


def test_an_uncut_batch_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses known to be sums over sequences are cut with a note, functions are refused."""
    monkeypatch.setattr(micro_batches, "available_bytes", lambda _: 0)
    batch = {"x": ids(4), "labels": ids(4, seed=1)}
    problem = hl.problem(Named(), batch, "cross_entropy", micro_batch=2)
    assert any("too large to be run" in note for note in problem.notes) and len(problem.data) == 2
    with pytest.raises(hl.InputError, match="whether its loss stays the same cannot be found"):
        hl.problem(Named(), batch, _mean, micro_batch=2)


# --- a registry of losses against plain calls -------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A model, batches, a loss for `hl.problem` and the same loss as one plain computation on the model."""

    model: Callable[[], nn.Module]
    data: list[Any]
    loss: Any
    plain: Callable[[nn.Module], Tensor]
    reduction: str = "mean"
    logits: str = "auto"
    note: str = ""


def _last_two(z: Tensor, x: Tensor) -> Tensor:
    return z.mT


WEIGHT = torch.rand(VOCAB, generator=torch.Generator().manual_seed(5), dtype=torch.float64) + 0.1
FEW = [(ids(3), ids(3, seed=1)), (ids(2, seed=2), ids(2, seed=3))]
SILENT = [FEW[0], (FEW[1][0], torch.full_like(FEW[1][1], -100))]
SQUARE = [(ids(3, VOCAB), ids(3, VOCAB, 1)), (ids(2, VOCAB, 2), ids(2, VOCAB, 3))]
SHARES = [(x, torch.softmax(numbers(len(x), VOCAB, LENGTH, seed=len(x)), 1)) for x, _ in FEW]
FLOATS = [(x, numbers(len(x), LENGTH, VOCAB, seed=len(x))) for x, _ in FEW]
MARGINS = [(numbers(n, 3, seed=n), torch.tensor([0, 2, 1][:n])) for n in (3, 2)]


def rows_of_first(by: nn.Module) -> Tensor:
    outputs = torch.cat([by(x)[0].flatten(0, 1) for x, _ in FEW])
    return nnf.cross_entropy(outputs, torch.cat([y.flatten() for _, y in FEW]))


def joined(by: nn.Module, data: list[Any]) -> tuple[Tensor, Tensor]:
    return torch.cat([by(x) for x, _ in data]), torch.cat([y for _, y in data])


def one_call(loss: Callable[[Tensor, Tensor], Tensor], data: list[Any]) -> Callable[[nn.Module], Tensor]:
    return lambda by: loss(*joined(by, data))


def rows(loss: Callable[[Tensor, Tensor], Tensor], data: list[Any]) -> Callable[[nn.Module], Tensor]:
    def plain(by: nn.Module) -> Tensor:
        outputs, targets = joined(by, data)
        return loss(outputs.flatten(0, 1), targets.flatten())

    return plain


def _mean_by_size(loss: Callable[[Tensor, Tensor], Tensor], data: list[Any]) -> Callable[[nn.Module], Tensor]:
    total = sum(len(x) for x, _ in data)
    return lambda by: torch.stack([loss(by(x), y) * len(x) / total for x, y in data]).sum()


class Focal(nn.CrossEntropyLoss):
    """A loss of one's own with the name of a parent in its ancestry."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        p = torch.softmax(input, -1).gather(-1, target[..., None])
        return -((1 - p).square() * p.log()).mean()


class Weighted(nn.Module):
    """A loss module of outputs and batch, with a buffer in another precision."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor([0.5, 2.0, 1.0, 0.25, 3.0, 1.0, 4.0]))

    def forward(self, outputs: Tensor, batch: Any) -> Tensor:
        assert isinstance(self.scale, Tensor)
        return (outputs.square() * self.scale.to(outputs)).mean()


def twice_mixed(loss: Any) -> dict[str, Any]:
    return {"loss": loss, "plain": one_call(loss, SQUARE)}


CASES: dict[str, Case] = {
    "classes last, PyTorch raises": Case(
        Tokens, FEW, nn.CrossEntropyLoss(), rows(nnf.cross_entropy, FEW), note="classes are read from the last axis"
    ),
    "classes last, nll_loss": Case(
        lambda: Tokens(lambda z, x: z.log_softmax(-1)), FEW, nnf.nll_loss, rows(nnf.nll_loss, FEW), note="last axis"
    ),
    "classes in axis 1": Case(
        lambda: Tokens(_last_two), FEW, nn.CrossEntropyLoss(), one_call(nnf.cross_entropy, FEW), note="from axis 1"
    ),
    "as many positions as classes": Case(Tokens, SQUARE, **twice_mixed(nn.CrossEntropyLoss()), note="from axis 1"),
    "as many positions as classes, chunked": Case(
        Tokens, SQUARE, **twice_mixed(nnf.cross_entropy), logits="chunked", note="reads the classes from axis 1"
    ),
    "as many positions as classes, nll_loss": Case(
        lambda: Tokens(lambda z, x: z.log_softmax(1)), SQUARE, **twice_mixed(nn.NLLLoss(weight=WEIGHT))
    ),
    "as many positions as classes, sum": Case(Tokens, SQUARE, **twice_mixed(nn.CrossEntropyLoss(reduction="sum"))),
    "as many positions as classes, by name": Case(Tokens, SQUARE, "cross_entropy", rows(nnf.cross_entropy, SQUARE)),
    "shares of classes": Case(
        lambda: Tokens(_last_two), SHARES, nn.CrossEntropyLoss(), one_call(nnf.cross_entropy, SHARES)
    ),
    "shares of classes, weights and smoothing": Case(
        lambda: Tokens(_last_two),
        SHARES,
        nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.2),
        one_call(nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.2), SHARES),
    ),
    "weights, smoothing, chunked": Case(
        Tokens,
        FEW,
        nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.2, ignore_index=3),
        rows(nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.2, ignore_index=3), FEW),
        logits="chunked",
    ),
    "a batch without targets": Case(Tokens, SILENT, nn.CrossEntropyLoss(), rows(nnf.cross_entropy, SILENT)),
    "a batch without targets, by name, chunked": Case(
        Tokens, SILENT, "cross_entropy", rows(nnf.cross_entropy, SILENT), logits="chunked"
    ),
    "floats": Case(Tokens, FLOATS, nn.SmoothL1Loss(beta=0.3), one_call(nn.SmoothL1Loss(beta=0.3), FLOATS)),
    "margins": Case(
        lambda: nn.Linear(3, 3).double(), MARGINS, nn.MultiMarginLoss(p=2), one_call(nn.MultiMarginLoss(p=2), MARGINS)
    ),
    "margins of several labels": Case(
        lambda: nn.Linear(3, 3).double(),
        [(x, torch.tensor([[0, 2, -1], [1, -1, 0], [2, 1, -1]])[: len(x)]) for x, _ in MARGINS],
        nn.MultiLabelMarginLoss(),
        one_call(
            nn.MultiLabelMarginLoss(),
            [(x, torch.tensor([[0, 2, -1], [1, -1, 0], [2, 1, -1]])[: len(x)]) for x, _ in MARGINS],
        ),
    ),
    "derived from one of PyTorch's": Case(Tokens, FEW, Focal(), _mean_by_size(Focal(), FEW)),
    "a module of outputs and batch": Case(
        Tokens, FEW, Weighted(), _mean_by_size(lambda out, y: (out.square() * Weighted().scale.double()).mean(), FEW)
    ),
    "first of a tuple": Case(lambda: Tokens(lambda z, x: (z, z.square())), FEW, "cross_entropy", rows_of_first),
    "square, one number per sequence": Case(
        lambda: Tokens(lambda z, x: z.mean((1, 2))[:, None]),
        [(x, numbers(len(x), seed=len(x))) for x, _ in FEW],
        "square",
        one_call(lambda out, y: (out[:, 0] - y).square().mean(), [(x, numbers(len(x), seed=len(x))) for x, _ in FEW]),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_problem_has_the_loss_of_a_plain_call(name: str) -> None:
    case = CASES[name]
    model = case.model()
    problem = hl.problem(model, case.data, case.loss, reduction=case.reduction, logits=case.logits)
    assert case.note in "; ".join(problem.notes)
    agrees(problem, model, case.plain, twice="margins" not in name)


@pytest.mark.filterwarnings("ignore:size_average and reduce")
def test_a_sum_in_the_former_way_is_a_sum() -> None:
    model, loss = Tokens(), partial(nnf.mse_loss, size_average=False)
    agrees(hl.problem(model, FLOATS, loss), model, one_call(partial(nnf.mse_loss, reduction="sum"), FLOATS))


@pytest.mark.parametrize("method", ["auto", "exact", "hvp"])
def test_the_gauss_newton_split_follows_pytorchs_axis(method: str) -> None:
    """``G = J^T C J`` with the curvature C of PyTorch's own reading, by hand."""
    model, (x, y) = Tokens(), SQUARE[0]
    problem = hl.problem(model, (x, y), nn.CrossEntropyLoss())
    weight = model.mix.weight.detach()

    def outputs(at: Tensor) -> Tensor:
        return torch.func.functional_call(model, {"mix.weight": at}, (x,)).flatten()

    jacobian = torch.autograd.functional.jacobian(outputs, weight).flatten(1)
    shape = model(x).shape
    curved = torch.autograd.functional.hessian(
        lambda z: nnf.cross_entropy(z.reshape(shape), y), outputs(weight).detach()
    )
    found = hl.ggn(problem, "mix.weight", method=method).to_dense()
    torch.testing.assert_close(found, jacobian.T @ curved @ jacobian, rtol=1e-9, atol=1e-12)


def test_a_class_with_the_name_of_one_of_pytorchs_is_called_as_it_is() -> None:
    kind = type("CrossEntropyLoss", (Focal,), {})
    model = Tokens()
    problem = hl.problem(model, FEW, kind(), logits="chunked")
    agrees(problem, model, _mean_by_size(Focal(), FEW))
    assert problem.reduction == "CrossEntropyLoss, mean over batches by size"


def test_a_function_that_means_another_tensor_of_the_model_is_told() -> None:
    model = Tokens(lambda z, x: (z, z.square().sum(-1)))
    with pytest.raises(hl.InputError, match=r"loss: the model returns tuple of 2, for which the function gives"):
        hl.problem(model, FEW, lambda out, batch: out[1].mean())
    problem = hl.problem(model, FEW, lambda out, batch: out.mean())
    assert value(problem) == pytest.approx(float(torch.cat([model(x)[0].detach() for x, _ in FEW]).mean()), rel=1e-12)


def test_classes_in_one_axis_here_and_in_another_there_are_refused() -> None:
    data = [FEW[0], (ids(3, VOCAB), ids(3, VOCAB, 1))]
    with pytest.raises(hl.InputError, match="some batches have the classes in axis 1"):
        hl.problem(Tokens(), data, nn.CrossEntropyLoss())


# --- the model itself -------------------------------------------------------------------------------------------------


class Undecided(Tokens):
    """Gives other numbers in float64."""

    def forward(self, x: Tensor) -> Tensor:
        z = self.unembed(self.mix(self.embed(x)))
        return 2 * z if z.dtype == torch.float64 else z


def test_a_model_that_is_another_one_in_another_precision_is_told() -> None:
    problem = hl.problem(Undecided().float(), FEW, "cross_entropy", dtype=torch.float64)
    assert any("the model itself gives" in note and "in float64 instead of float32" in note for note in problem.notes)
    same = hl.problem(Tokens().float(), FEW, "cross_entropy", dtype=torch.float64)
    assert not any("the model itself" in note for note in same.notes)


class Unplain(Tokens):
    """Sees that it is run with PyTorch's plain attention kernel, and does something else."""

    def forward(self, x: Tensor) -> Tensor:
        z = self.unembed(self.mix(self.embed(x)))
        return z if torch.backends.cuda.flash_sdp_enabled() else 2 * z


def test_a_model_that_is_another_one_while_differentiating_is_refused() -> None:
    """With the problem where it is run in another way, and otherwise with the first number."""
    words = r"loss: the model itself gives .* on batch 0 .* more than rounding explains"
    for given in ({"logits": "chunked"}, {"micro_batch": 1}):
        with pytest.raises(hl.InputError, match=words):
            hl.problem(Unplain(), FEW, "cross_entropy", **given)
    problem = hl.problem(Unplain(), FEW, "cross_entropy")
    for first in (problem.total_loss, lambda: hl.hessian(problem, "mix.bias", method="hvp") @ numbers(WIDTH)):
        with pytest.raises(hl.InputError, match=words):
            first()
    hl.problem(Unplain(), FEW, "cross_entropy", check=False).total_loss()


class WithGradients(Tokens):
    """Is another one where gradients are enabled."""

    def forward(self, x: Tensor) -> Tensor:
        z = super().forward(x)
        return 2 * z if torch.is_grad_enabled() else z


def test_a_model_that_is_another_one_with_gradients_is_refused() -> None:
    problem = hl.problem(WithGradients(), FEW, "cross_entropy")
    with pytest.raises(hl.InputError, match=r"model: its loss is .* where gradients are enabled and .* where they are"):
        hl.hessian(problem, "mix.bias", method="hvp") @ numbers(WIDTH)


def test_weights_may_change_before_the_first_number() -> None:
    model = Tokens()
    problem = hl.problem(model, FEW, "cross_entropy")
    with torch.no_grad():
        model.mix.weight.mul_(2)
    assert value(problem) == pytest.approx(float(rows(nnf.cross_entropy, FEW)(model).detach()), rel=1e-12)


def test_losses_near_zero_are_not_told_apart_by_their_rounding() -> None:
    """In float32 a fitted regression has a loss of rounding errors only."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 50), nn.Tanh(), nn.Linear(50, 3))
    x = torch.randn(40, 20)
    hl.problem(model, (x, model(x).detach()), nn.MSELoss(), dtype=torch.float64)
    hl.problem(model, (x, model(x).detach()), lambda out, batch: (out - batch[1]).square().mean(), micro_batch=7)


def test_comparisons_cost_one_forward_pass_of_a_batch_and_share_the_first_products(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of the model itself; what is compared with it is the pass that is differentiated."""
    model, runs = Tokens(), 0

    def count(*_: object) -> None:
        nonlocal runs
        runs += 1

    model.register_forward_pre_hook(count)
    counted: dict[str, tuple[int, int]] = {}
    for name, given in {
        "plain": {},
        "not verified": {"verify": False},
        "chunked": {"logits": "chunked", "verify": False},
        "cut": {"micro_batch": 3, "verify": False},
        "no check": {"check": False, "logits": "whole", "verify": False},
    }.items():
        runs = 0
        problem = hl.problem(model, [(ids(6), ids(6, seed=1)) for _ in range(4)], "cross_entropy", **given)
        made = runs
        hl.hessian(problem, "mix.bias", method="hvp") @ numbers(WIDTH)
        counted[name] = made, runs - made
    assert counted == {
        "plain": (4, 4),
        "not verified": (4, 4),
        "chunked": (1 + 3 * 4, 4),
        "cut": (2 * 8 + 12, 8),
        "no check": (0, 4),
    }


FUNCTIONS: dict[str, tuple[Callable[[Tensor, Any], Tensor], int]] = {
    "reads nothing else": (lambda out, batch: nnf.cross_entropy(out.flatten(0, 1), batch[1].flatten()), 1),
    "reads something that may change": (lambda out, batch: out.square().mean() + len(CHANGES), 2),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_that_reads_nothing_else_takes_no_pass_to_make_sure(name: str) -> None:
    model, runs = Tokens(), []
    model.register_forward_pre_hook(lambda *_: runs.append(1))
    function, expected = FUNCTIONS[name]
    hl.problem(model, FEW[:1], function)
    assert len(runs) == expected


class Noisy(Tokens):
    """Draws numbers on every run but the first."""

    runs = 0

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        z = super().forward(x)
        return z if self.runs == 1 else z + torch.randn_like(z)


class OtherDigits(Tokens):
    """Has other digits where fused attention kernels are allowed, by rounding."""

    def forward(self, x: Tensor) -> Tensor:
        z = super().forward(x)
        return z * (1 + 1e-15) if torch.backends.cuda.flash_sdp_enabled() else z


def test_a_model_by_itself_shows_that_runs_repeat_if_its_digits_are_the_same() -> None:
    with pytest.raises(hl.InputError, match="two runs on the same batch differ"):
        hl.problem(Noisy(), FEW, "cross_entropy").total_loss()
    hl.problem(OtherDigits(), FEW, "cross_entropy").total_loss()


def test_noise_tells_rounding_from_difference() -> None:
    outputs = numbers(50)

    def loss(at: Tensor) -> Tensor:
        return (at - outputs).square().sum()

    assert comparison.same_value(1e-30, 3e-30, 2e-16, loss, outputs)
    assert not comparison.same_value(1e-6, 3e-6, 2e-16, loss, outputs)
