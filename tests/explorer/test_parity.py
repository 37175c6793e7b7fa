"""The closed form in JavaScript, in a real browser, equals that of the library and autograd's."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, jacrev

import hessianlens as hl
from hessianlens.explorer.module import module_source, plain_source
from hessianlens.parts import LAYER_PARTS
from tests.explorer.settings import ALL_ACTIVATIONS, ANSWER, KINDS, LOSSES, MASKS, Setting, module_page, setting

COUNT = 200
RELATIVE = 1e-10
ROUNDING = 1e-13
"""Of a block beside the largest of its part, from which it may have come by cancellation."""

HESSIANS = (
    ANSWER
    + """
return arguments[0].map(({ heads, X, loss }) => {
  const [layer, tokens, asked] = [layerOf(heads), lens.matrix(X), lossOf(loss)];
  const H = lens.hessian(layer, tokens, asked);
  const parts = Object.fromEntries([...lens.PARTS, "tFunctional"].map((part) => [part, lens.toRows(H[part])]));
  const { gradient } = lens.lossAndGradient(layer, tokens, asked);
  return { ...parts, names: H.blocks.map((block) => block.name), gradient: [...gradient], loss: H.loss };
});
"""
)


@pytest.fixture(scope="module")
def settings() -> list[Setting]:
    return [setting(k) for k in range(COUNT)]


def answers(page, tmp_path, script: str, given: object, source: str | None = None) -> Any:
    file = tmp_path / "module.html"
    file.write_text(module_page(module_source() if source is None else source))
    page.open(file)
    return page.run(script, given)


def _nearly(found: Sequence[object], expected: Tensor) -> bool:
    error = (torch.tensor(found, dtype=torch.float64).reshape(expected.shape) - expected).norm()
    return bool(error <= RELATIVE * expected.norm())


def disagreements(one: Setting, found: dict[str, Any]) -> list[str]:
    """Blocks of any part in which the two forms differ."""
    wrong = []
    for part in (*LAYER_PARTS, "t_functional"):
        grid = one.H.part(part)
        matrix = torch.tensor(found["tFunctional" if part == "t_functional" else part], dtype=torch.float64)
        sizes = {name: weight.numel() for name, weight in one.layer.parameters.items()}
        starts = dict(zip(sizes, [0, *torch.tensor(list(sizes.values())).cumsum(0).tolist()], strict=False))
        names = [name for name in sizes if part != "t_functional" or "V" not in name]
        expected = {(r, c): grid[r, c].to_dense() for r in names for c in names}
        largest = max(float(block.norm()) for block in expected.values())
        for (r, c), block in expected.items():
            rows, columns = slice(starts[r], starts[r] + sizes[r]), slice(starts[c], starts[c] + sizes[c])
            error = float((matrix[rows, columns] - block).norm())
            if not error <= RELATIVE * float(block.norm()) + ROUNDING * largest:
                wrong.append(f"{part} {r} {c}: {error:.1e} of {float(block.norm()):.1e}")
    return wrong


def test_the_settings_have_everything(settings):
    chosen = {choice for one in settings for choice in one.choices}
    assert chosen == {*ALL_ACTIVATIONS, *MASKS, *LOSSES, *KINDS}
    assert {len(one.choices) for one in settings} == {4, 7, 10}


@pytest.mark.browser
def test_every_block_of_every_part_equals_the_library(page, tmp_path, settings):
    found = answers(page, tmp_path, HESSIANS, [one.given for one in settings])
    wrong = {one.choices: bad for one, its in zip(settings, found, strict=True) if (bad := disagreements(one, its))}
    assert not wrong
    for one, its in zip(settings, found, strict=True):
        assert [str(name) for name in its["names"]] == [
            name if isinstance(name, str) else f"{name[0]}{name[1]}" for name in one.layer.parameters
        ]
        if one.value is not None:
            assert its["loss"] == pytest.approx(one.value, rel=RELATIVE)
    assert page.console_errors() == []


@pytest.mark.browser
def test_gradients_equal_autograd(page, tmp_path, settings):
    known = [one for one in settings if one.choices[-1] in ("mean", "sum")]
    for one, its in zip(known, answers(page, tmp_path, HESSIANS, [one.given for one in known]), strict=True):
        weights = {name: w.clone().requires_grad_() for name, w in one.layer.parameters.items()}
        asked = one.given["loss"]
        targets = torch.tensor(asked["targets"], dtype=torch.float64)
        value = hl.SquareLoss(targets, asked["reduction"]).value(one.layer.with_parameters(weights)(one.X)[None])
        expected = torch.autograd.grad(value, list(weights.values()), allow_unused=True, materialize_grads=True)
        flat = torch.cat([g.reshape(-1) for g in expected])
        assert _nearly(its["gradient"], flat), one.choices


WRONG = {
    "the second derivative of a softmax without its rank-two terms": (
        "[[...us, along], [...vs, weighted]]",
        "[us, vs]",
    ),
    "a mask that is not obeyed": ("Boolean(mask[i][j])", "true"),
    "a scale that forgets the temperature": ("const scale = (head.temperature ?? 1) *", "const scale ="),
    "no T-functional part": ("plus(symmetrised(half.functional), tFunctional)", "symmetrised(half.functional)"),
}


@pytest.mark.browser
@pytest.mark.every_case
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_form_is_noticed(page, tmp_path, settings, name):
    right, wrong = WRONG[name]
    assert plain_source().count(right) == 1
    some = settings[:40]
    found = answers(page, tmp_path, HESSIANS, [one.given for one in some], plain_source().replace(right, wrong))
    assert any(disagreements(one, its) for one, its in zip(some, found, strict=True))


# --- several layers --------------------------------------------------------------------------------------------------

STACKS = (
    ANSWER
    + """
return arguments[0].map(({ layers, skip, norm, X, targets }) => {
  const network = { layers: layers.map(layerOf), skip, norm };
  const H = lens.hessian(network, lens.matrix(X), { targets: lens.matrix(targets) });
  return { full: lens.toRows(H.full), outer: lens.toRows(H.outer), gradient: [...H.gradient] };
});
"""
)
ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda t: t.softmax(-1),
    "linear": lambda t: t,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
}


def _norm(x: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], eps=1e-5)


def _attention(x: Tensor, weights: dict[str, Tensor], activation: str) -> Tensor:
    if "QK" in weights:
        scores = x @ weights["QK"] @ x.T
    else:
        scores = x @ weights["Q"] @ (x @ weights["K"]).T / weights["Q"].shape[1] ** 0.5
    return ROWS[activation](scores) @ x @ weights["V"]


class Stack:
    """Layers of heads with random weights, and autograd's derivatives of their loss."""

    def __init__(self, k: int) -> None:
        draw, source = random.Random(k), torch.Generator().manual_seed(k)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=source, dtype=torch.float64)

        self.activation = list(ROWS)[k % len(ROWS)]
        self.skip, self.norm = draw.choice((0, 1, 0.5)), (None, "pre", "post")[k % 3]
        d = draw.randint(3, 4) if self.norm else draw.randint(2, 4)
        self.X, self.targets = normal(draw.randint(2, 5), d), normal(1, d)
        self.targets = normal(len(self.X), d)
        one, two = {"QK": (d, d), "V": (d, d)}, {"Q": (d, 2), "K": (d, 2), "V": (d, d)}
        self.layers = [
            [{n: normal(*s) for n, s in draw.choice((one, two, two)).items()} for _ in range(draw.choice((1, 1, 2)))]
            for _ in range(1 + k // 3 % 3)
        ]

    def weights(self) -> Tensor:
        return torch.cat([w.reshape(-1) for layer in self.layers for head in layer for w in head.values()])

    def output(self, theta: Tensor) -> Tensor:
        x, at = self.X, 0
        for layer in self.layers:
            tokens = _norm(x) if self.norm == "pre" else x
            y = self.skip * x
            for head in layer:
                weights = {}
                for name, w in head.items():
                    weights[name], at = theta[at : at + w.numel()].reshape(w.shape), at + w.numel()
                y = y + _attention(tokens, weights, self.activation)
            x = _norm(y) if self.norm == "post" else y
        return x

    def loss(self, theta: Tensor) -> Tensor:
        return (self.output(theta) - self.targets).square().mean()

    def expected(self) -> dict[str, Tensor]:
        theta = self.weights()
        J = jacrev(self.output)(theta).reshape(-1, len(theta))
        outer = 2 / self.X.numel() * J.T @ J
        return {"full": hessian(self.loss)(theta), "outer": outer, "gradient": grad(self.loss)(theta)}

    def given(self) -> dict[str, Any]:
        def head(weights: dict[str, Tensor]) -> dict[str, Any]:
            return {"activation": self.activation, "weights": {name: w.tolist() for name, w in weights.items()}}

        layers = [[head(weights) for weights in layer] for layer in self.layers]
        numbers = {"X": self.X.tolist(), "targets": self.targets.tolist()}
        return {"layers": layers, "skip": self.skip, "norm": self.norm, **numbers}


@pytest.mark.browser
def test_stacks_equal_autograd(page, tmp_path):
    stacks = [Stack(k) for k in range(24)]
    for one, found in zip(stacks, answers(page, tmp_path, STACKS, [s.given() for s in stacks]), strict=True):
        for name, expected in one.expected().items():
            assert _nearly(found[name], expected), (name, one.activation, one.skip, one.norm)


# --- rows, moments, eigenvalues --------------------------------------------------------------------------------------

MOMENTS = (
    ANSWER
    + """
return arguments[0].map(({ heads, X }) => {
  const state = lens.attend(prepared(heads[0]), lens.matrix(X));
  const found = state.rows.map((row, i) => ({ ...lens.moments(state, i), J: lens.toRows(lens.jacobian(row)) }));
  return { A: lens.toRows(state.A), moments: found };
});
"""
)


@pytest.mark.browser
def test_moments_and_row_derivatives_equal_the_library(page, tmp_path, settings):
    lone = [one for one in settings if len(one.choices) == 4]
    assert {one.choices[0] for one in lone} == set(ALL_ACTIVATIONS)
    found = answers(page, tmp_path, MOMENTS, [one.given for one in lone])
    for one, its in zip(lone, found, strict=True):
        state = one.layer.attend(one.X[None])
        A, activation = state.weights[0], one.layer._activation
        J = activation.jacobian(state.scores, state.visible).to_dense().reshape(*A.shape, -1)
        third = hl.attention.third_moment(A, one.X)
        names = ("mean", "covariance", "third", "J")
        expected = (hl.attention.first_moment(A, one.X), hl.attention.second_moment(A, one.X), third, J)
        assert _nearly(its["A"], A)
        for name, tensor in zip(names, expected, strict=True):
            assert _nearly([row[name] for row in its["moments"]], tensor), (name, one.choices)


EIGEN = """
return arguments[0].map((rows) => {
  const { values, vectors } = lens.symmetricEigen(lens.matrix(rows), { vectors: true });
  return { values: [...values], vectors: lens.toRows(vectors) };
});
"""


@pytest.mark.browser
def test_eigenvalues_and_eigenvectors(page, tmp_path, settings):
    matrices = [one.H.full[:].to_dense() for one in settings[:30]]
    matrices += [torch.zeros(3, 3, dtype=torch.float64), torch.eye(4, dtype=torch.float64).flip(0)]
    for M, found in zip(matrices, answers(page, tmp_path, EIGEN, [M.tolist() for M in matrices]), strict=True):
        values, vectors = (torch.tensor(found[name], dtype=torch.float64) for name in ("values", "vectors"))
        size = M.norm()
        assert (values - torch.linalg.eigvalsh(M)).abs().max() <= 1e-13 * len(M) * size
        assert (vectors @ M - values[:, None] * vectors).norm() <= 1e-12 * size
        assert torch.allclose(vectors @ vectors.T, torch.eye(len(M), dtype=torch.float64), atol=1e-12)
