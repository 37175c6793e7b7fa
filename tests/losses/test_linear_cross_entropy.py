"""Cross-entropy of logits that are never formed, against autograd through everything written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import hessianlens as hl
from hessianlens.losses.fused_cross_entropy import CrossEntropyForm, Part, form
from hessianlens.losses.fused_cross_entropy.row_parts import CrossEntropyRule, TokenRows
from hessianlens.memory import LiveBytes

loss_of = hl.losses.linear_cross_entropy
TINY = 200  # bytes: every matrix of logits below takes several chunks
V, D, N = 7, 3, 5


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def targets(*shape: int, ignored: int | None = None) -> Tensor:
    found = torch.randint(V, shape, generator=torch.Generator().manual_seed(3))
    if ignored is not None:
        found.view(-1)[::3] = ignored
    return found


def plain(h: Tensor, W: Tensor, b: Tensor | None, y: Tensor, **how: Any) -> Tensor:
    """The same by autograd, with the logits."""
    scale, cap = how.pop("scale", 1.0), how.pop("softcap", None)
    z = scale * F.linear(h, W, b)
    z = z if cap is None else cap * torch.tanh(z / cap)
    losses = F.cross_entropy(z.reshape(-1, V), y.reshape(-1), **how)
    return losses.reshape(y.shape) if how.get("reduction") == "none" else losses


def ours(h: Tensor, W: Tensor, b: Tensor | None, y: Tensor, memory: float = TINY, **how: Any) -> Tensor:
    return loss_of(h, W, y, linear_bias=b, memory=memory, **how)


CLASSES = drawn(V, seed=9).abs() + 0.1
CASES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "plain": ((drawn(N, D), drawn(V, D, seed=1), None, targets(N)), {}),
    "bias": ((drawn(N, D), drawn(V, D, seed=1), drawn(V, seed=2), targets(N)), {}),
    "sequences": ((drawn(2, N, D), drawn(V, D, seed=1), drawn(V, seed=2), targets(2, N)), {}),
    "one token": ((drawn(D), drawn(V, D, seed=1), None, targets()), {}),
    "sum": ((drawn(N, D), drawn(V, D, seed=1), None, targets(N)), {"reduction": "sum"}),
    "a loss per token": ((drawn(2, N, D), drawn(V, D, seed=1), None, targets(2, N)), {"reduction": "none"}),
    "ignored": ((drawn(N, D), drawn(V, D, seed=1), None, targets(N, ignored=-100)), {}),
    "another number ignored": ((drawn(N, D), drawn(V, D, seed=1), None, targets(N)), {"ignore_index": 2}),
    "smoothed": ((drawn(N, D), drawn(V, D, seed=1), drawn(V, seed=2), targets(N)), {"label_smoothing": 0.3}),
    "smoothed, some ignored": (
        (drawn(N, D), drawn(V, D, seed=1), None, targets(N, ignored=-100)),
        {"label_smoothing": 0.3, "reduction": "sum"},
    ),
    "weighted": ((drawn(N, D), drawn(V, D, seed=1), None, targets(N, ignored=-100)), {"weight": CLASSES}),
    "weighted and smoothed": (
        (drawn(N, D), drawn(V, D, seed=1), None, targets(N)),
        {"weight": CLASSES, "label_smoothing": 0.2},
    ),
    "scaled": ((drawn(N, D), drawn(V, D, seed=1), drawn(V, seed=2), targets(N)), {"scale": 0.4}),
    "soft cap": ((drawn(N, D), drawn(V, D, seed=1), drawn(V, seed=2), targets(N)), {"softcap": 1.3}),
    "everything": (
        (drawn(2, N, D), drawn(V, D, seed=1), drawn(V, seed=2), targets(2, N, ignored=-1)),
        {"softcap": 1.3, "scale": 0.7, "label_smoothing": 0.1, "weight": CLASSES, "ignore_index": -1},
    ),
}
every_case = pytest.mark.parametrize("name", CASES)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)


def differentiated(function: Callable[..., Tensor], inputs: tuple[Any, ...], how: dict[str, Any]) -> list[Tensor]:
    """Value, gradient, and gradient of the gradient's product with a vector, with respect to every tensor."""
    *given, y = inputs
    tensors = [None if x is None else x.clone().requires_grad_() for x in given]
    leaves = [x for x in tensors if x is not None]
    out = function(*tensors, y, **how)
    first = torch.autograd.grad((out.sin() + out.pow(3)).sum(), leaves, create_graph=True)
    product = torch.stack([(g * drawn(*g.shape, seed=7)).sum() for g in first]).sum()
    return [out, *first, *torch.autograd.grad(product, leaves)]


@every_case
def test_value_gradient_and_second_derivative(name: str) -> None:
    for a, b in zip(differentiated(ours, *CASES[name]), differentiated(plain, *CASES[name]), strict=True):
        close(a, b)


def test_a_wrong_second_derivative_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = form._turned
    monkeypatch.setattr(form, "_turned", lambda *given: 1.001 * right(*given))  # type: ignore[operator]
    with pytest.raises(AssertionError):
        test_value_gradient_and_second_derivative("plain")
    monkeypatch.setattr(form, "_turned", right)
    monkeypatch.setattr(TokenRows, "crossed", lambda self, *_: None)
    with pytest.raises(AssertionError):
        test_transforms_of_torch_func("bias", "forward over forward")


TRANSFORMS: dict[str, Callable[..., Any]] = {
    "hessian": torch.func.hessian,
    "reverse over reverse": lambda f, a: torch.func.jacrev(torch.func.jacrev(f, a), a),
    "forward over forward": lambda f, a: torch.func.jacfwd(torch.func.jacfwd(f, a), a),
    "reverse over forward": lambda f, a: torch.func.jacrev(torch.func.jacfwd(f, a), a),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", ["bias", "everything"])
def test_transforms_of_torch_func(name: str, transform: str) -> None:
    (h, W, b, y), how = CASES[name]
    found = TRANSFORMS[transform](lambda *x: ours(*x, y, **how).tanh(), (0, 1, 2))(h, W, b)
    expected = torch.func.hessian(lambda *x: plain(*x, y, **how).tanh(), (0, 1, 2))(h, W, b)
    for row, other in zip(found, expected, strict=True):
        for one, two in zip(row, other, strict=True):
            close(one, two)


def test_vmap_of_features_and_of_targets() -> None:
    h, W, y = drawn(4, N, D), drawn(V, D, seed=1), targets(4, N)
    each = torch.func.vmap(lambda h, y: ours(h, W, None, y), in_dims=(0, 0))(h, y)
    close(each, torch.stack([plain(x, W, None, label) for x, label in zip(h, y, strict=True)]))
    slopes = torch.func.vmap(torch.func.grad(lambda W, y: ours(h[0], W, None, y)), in_dims=(None, 0))(W, y)
    close(slopes[1], torch.func.grad(lambda W: plain(h[0], W, None, y[1]))(W))


@every_case
def test_numerical_differences_agree(name: str) -> None:
    (*given, y), how = CASES[name]
    leaves = [x.clone().requires_grad_() for x in given if x is not None]

    def function(*x: Tensor) -> Tensor:
        return ours(x[0], x[1], x[2] if len(x) > 2 else None, y, **how)

    assert torch.autograd.gradcheck(function, leaves, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, leaves, check_fwd_over_rev=True, fast_mode=True)


@every_case
def test_the_two_parts_of_a_second_derivative_add_up(name: str) -> None:
    """The Gauss-Newton part is ``J^T C J`` at the logits, and the functional one is the rest."""
    (h, W, b, y), how = CASES[name]
    h, y = h.reshape(-1, D), y.reshape(-1)
    cap, scale = how.get("softcap"), how.get("scale", 1.0)
    rule = CrossEntropyRule(how.get("ignore_index", -100), how.get("label_smoothing", 0.0), scale, cap, TINY)
    point, g = (h, W, b) if b is not None else (h, W), drawn(len(y), seed=5)
    change = tuple(drawn(*x.shape, seed=6 + k) for k, x in enumerate(point))
    padded = (*change, *(None,) * (3 - len(change)))

    def logits(*x: Tensor) -> Tensor:
        z = scale * F.linear(*x)
        return z if cap is None else cap * torch.tanh(z / cap)

    def total(z: Tensor) -> Tensor:
        options = {key: how[key] for key in ("weight", "label_smoothing", "ignore_index") if key in how}
        return (g * F.cross_entropy(z, y, reduction="none", **options)).sum()

    _, tangent = torch.func.jvp(logits, point, change)
    curved = torch.func.jvp(torch.func.grad(total), (logits(*point),), (tangent,))[1]
    outer = torch.func.vjp(logits, *point)[1](curved)
    indices = tuple(range(len(point)))
    full = torch.func.jvp(torch.func.grad(lambda *x: total(logits(*x)), indices), point, change)[1]
    asked = {"g": g, "change": padded, "wanted": (True, True, b is not None), "pushing": False}
    found = {
        part: CrossEntropyForm(rule).hvp(h, W, b, y, how.get("weight"), **asked, part=part)[: len(point)]
        for part in Part
    }
    for k in indices:
        close(found[Part.OUTER][k], outer[k])
        close(found[Part.FULL][k], full[k])
        close(found[Part.FUNCTIONAL][k], full[k] - outer[k])


def test_a_third_derivative_is_refused() -> None:
    h, W = drawn(N, D).requires_grad_(), drawn(V, D, seed=1)
    (first,) = torch.autograd.grad(loss_of(h, W, targets(N)), h, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), h, create_graph=True)
    with pytest.raises(hl.InputError, match=r"third derivative.*cross_entropy"):
        torch.autograd.grad(second.sum(), h)


def test_nothing_of_the_size_of_the_logits_is_kept() -> None:
    h, W = torch.randn(40, D, requires_grad=True), torch.randn(50, D, requires_grad=True)
    sizes: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
        (first,) = torch.autograd.grad(loss_of(h, W, torch.zeros(40, dtype=torch.long)), h, create_graph=True)
        torch.autograd.grad(first.square().sum(), (h, W))
    assert max(sizes) <= W.numel()


def run_twice(tokens: int, classes: int, device: str, memory: float) -> tuple[list[torch.Size], LiveBytes]:
    """Shapes of the value and of two derivatives, and the memory that they take."""
    h, W = (torch.zeros(n, 8, dtype=torch.float64, device=device, requires_grad=True) for n in (tokens, classes))
    y = torch.zeros(tokens, dtype=torch.long, device=device)
    with LiveBytes((h, W, y)) as live:
        losses = loss_of(h, W, y, reduction="none", memory=memory)
        first = torch.autograd.grad(losses.square().sum(), (h, W), create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), (h, W))
    return [x.shape for x in (losses, *first, *second)], live


def test_a_dry_run_takes_two_chunks_and_holds_what_a_run_holds() -> None:
    (expected, real), (found, dry) = (run_twice(600, 500, device, 2**20) for device in ("cpu", "meta"))
    assert found == expected and dry.peak == pytest.approx(real.peak, rel=0.25)
    assert dry.made < real.made / 2
    shapes, _ = run_twice(2**20, 50257, "meta", 2**26)
    assert shapes[0] == (2**20,)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_lower_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    h, W = drawn(40, D).to(dtype).requires_grad_(), drawn(V, D, seed=1).to(dtype).requires_grad_()
    loss = loss_of(h, W, targets(40))
    (first,) = torch.autograd.grad(loss, h, create_graph=True)
    (second,) = torch.autograd.grad(first.float().square().sum(), W)
    assert loss.dtype == first.dtype == second.dtype == dtype
    exact = plain(h.detach().double(), W.detach().double(), None, targets(40))
    assert (loss.double() - exact).abs() <= 2 * torch.finfo(dtype).eps * exact


def test_autocast_gives_the_dtype_of_torch() -> None:
    h, W, y = drawn(40, D).float().requires_grad_(), drawn(V, D, seed=1).float(), targets(40)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_of(h, W, y)
        assert loss.dtype == F.cross_entropy(F.linear(h, W), y).dtype == torch.float32
        (first,) = torch.autograd.grad(loss, h, create_graph=True)
        torch.autograd.grad(first.square().sum(), h)
    exact = plain(h.detach().bfloat16().double(), W.bfloat16().double(), None, y)
    torch.testing.assert_close(loss.double(), exact, rtol=1e-5, atol=0)


def test_the_answer_does_not_depend_on_the_memory_and_repeats_itself() -> None:
    small, large, again = (
        differentiated(lambda *x, m=m, **h: ours(*x, memory=m, **h), *CASES["everything"]) for m in (100, 1e9, 1e9)
    )
    for a, b, c in zip(small, large, again, strict=True):
        close(a, b)
        assert torch.equal(b, c)


def test_large_logits_stay_finite() -> None:
    h, W = 1e3 * drawn(N, D), drawn(V, D, seed=1)
    close(loss_of(h, W, targets(N)), plain(h, W, None, targets(N)))


def test_no_tokens_and_none_that_count() -> None:
    W = drawn(V, D)
    assert loss_of(drawn(0, D), W, targets(0), reduction="sum") == 0
    assert loss_of(drawn(2, D), W, torch.full((2,), -100), reduction="sum") == 0
    assert loss_of(drawn(2, D), W, torch.full((2,), -100)).isnan()  # as PyTorch's


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": targets(N).double()}, "target: got torch.float64"),
        ({"target": targets(N - 1)}, r"target: got torch.int64 of shape \(4,\)"),
        ({"target": targets(N) + V}, "target: got class .* expected 0 .. 6"),
        ({"linear_weight": drawn(V, D + 1)}, "input, linear_weight: got shapes"),
        ({"linear_weight": drawn(V, D).float()}, "linear_weight: got torch.float32"),
        ({"linear_bias": drawn(V + 1)}, "linear_bias: got shape"),
        ({"weight": drawn(V + 1)}, "weight: got"),
        ({"weight": drawn(V).requires_grad_()}, "weight: got a tensor that requires grad"),
        ({"reduction": "average"}, "reduction"),
        ({"label_smoothing": 1.5}, "label_smoothing"),
        ({"softcap": 0.0}, "softcap"),
        ({"scale": float("inf")}, "scale"),
        ({"memory": "much"}, "memory"),
        ({"input": torch.ones(N, D, dtype=torch.long)}, "input: got torch.int64"),
    ],
)
def test_refused(change: dict[str, Any], message: str) -> None:
    asked = {"input": drawn(N, D), "linear_weight": drawn(V, D, seed=1), "target": targets(N), **change}
    with pytest.raises(hl.InputError, match=message):
        loss_of(**asked)
