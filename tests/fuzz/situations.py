"""Public calls on models of users, each with much of theirs that could be changed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

import hessianlens as hl
from tests.curvature import hugging_face, networks
from tests.curvature.networks import LENGTH, WIDTH, pairs
from tests.curvature.refused import Applied, OnceTanh, stack
from tests.curvature.refused import pairs as stack_pairs
from tests.fuzz.interrupts import Situation
from tests.inspect.test_untouched import partly_frozen
from tests.variants import randn


def _with_problem(
    make: Callable[[], nn.Module],
    data: Callable[[], Any],
    loss: Any,
    ask: Callable[[hl.problems.Problem], list[float] | None],
    **options: Any,
) -> Callable[[], Situation]:
    """A question about a problem that has been made before."""

    def situation() -> Situation:
        model, given = partly_frozen(make()), data()
        problem = hl.problem(model, given, loss, **options)
        return Situation(model, lambda: ask(problem), given)

    return situation


def _made(make: Callable[[], nn.Module], data: Callable[[], Any], loss: Any, **options: Any) -> Callable[[], Situation]:
    """The problem itself."""

    def situation() -> Situation:
        model, given = partly_frozen(make()), data()
        return Situation(model, lambda: [float(hl.problem(model, given, loss, **options).total_loss())], (given, loss))

    return situation


def _product(block: str, part: Callable[..., Any] = hl.hessian, method: str = "hvp") -> Any:
    def ask(problem: Any) -> list[float]:
        op = part(problem, block, method=method)
        return list((op @ randn(op.shape[1])).tolist())

    return ask


def _norms(blocks: str, **options: Any) -> Any:
    def ask(problem: Any) -> list[float]:
        found = hl.block_norms(problem, blocks, probes=2, progress=False, **options)
        return [estimate.value for estimate in found.values()]

    return ask


def _trace(problem: Any) -> list[float]:
    return [hl.trace(hl.hessian(problem, "layer0.attn.q", method="hvp"), probes=2).value]


def _dense(problem: Any) -> list[float]:
    return list(hl.hessian(problem, "layer0.attn.v", method="exact").to_dense().flatten().tolist())


def _measure(problem: Any) -> None:
    hl.measure(problem, "layer0.attn.*", budget=None, probes=2, progress=False)


def _refused(problem: Any) -> None:
    op = hl.hessian(problem, "layers.0.input.weight", method="hvp")
    with contextlib.suppress(hl.InputError):
        op @ randn(op.shape[1])
        raise AssertionError("this was not refused")


def _monitor() -> Situation:
    model = partly_frozen(networks.toy(layers=1))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    inputs, targets = pairs(2)[0]
    loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    loss.backward()
    optimizer.step()
    problem = hl.problem(model, (inputs, targets), "cross_entropy")
    monitor = hl.Monitor(problem, ["layer0.attn.q"], optimizer=optimizer, every=1, overhead=None, probes=2, steps=2)

    def step() -> None:
        monitor.step()

    return Situation(model, step, (inputs, targets), optimizer)


def _hugging_face_monitor() -> Situation:
    model, data = partly_frozen(hugging_face.gpt2()), hugging_face.padded(2)
    quantities = ("top", "entropy", "gradient")
    monitor = hl.Monitor(model, data=data, every=1, overhead=None, probes=2, steps=2, quantities=quantities)

    def step() -> None:
        monitor.step()

    return Situation(model, step, data)


def _flex() -> nn.Module:
    model: Any = hugging_face.masked_bert()
    model.set_attn_implementation("flex_attention")
    return model


@cache
def _encoder_data() -> tuple[Tensor, Tensor]:
    return randn(2, LENGTH, WIDTH), randn(2, LENGTH, WIDTH)


def _layer() -> Situation:
    layer = hl.SelfAttention.random(d_model=3, d_k=2, seed=0, dtype=torch.float64, activation="softmax")
    X = randn(4, 3)

    def loss(outputs: Tensor) -> Tensor:
        return outputs.square().sum() + outputs.pow(4).sum()

    def ask() -> list[float]:
        found = hl.attention_hessian(layer, X, hl.losses.CustomLoss(loss))
        return list((found.full["Q", "K"] @ randn(6)).tolist())

    return Situation(None, ask, X)


def _classifier_data() -> dict[str, Tensor]:
    return {"input_ids": networks.tokens(3), "labels": randn(3)}


def _page(problem: Any) -> None:
    import tempfile
    from pathlib import Path

    measured = hl.measure(problem, "layer0.attn.q", budget=None, probes=1, progress=False)
    with tempfile.TemporaryDirectory() as folder:
        measured.page(Path(folder) / "page.html", budget=0.05, progress=False)


_MLP_DATA = pairs(3, classes=3, length=None)
_NANO_DATA = pairs(2)

SITUATIONS: dict[str, Callable[[], Situation]] = {
    "problem of an MLP": _made(networks.mlp, lambda: _MLP_DATA[0], "cross_entropy"),
    "problem with a loss of PyTorch's": _made(
        networks.mlp, lambda: _MLP_DATA[0], nn.CrossEntropyLoss(weight=torch.ones(3, dtype=torch.float64))
    ),
    "problem of GPT-2": _made(hugging_face.gpt2, lambda: hugging_face.padded(2), None),
    "problem of GPT-2 in chunks": _made(
        hugging_face.gpt2, lambda: hugging_face.padded(2), None, attention="chunked", logits="chunked"
    ),
    "problem of BERT with flex_attention": _made(_flex, lambda: hugging_face.padded(2), None),
    "problem of a regression": _made(lambda: hugging_face.classifying_bert(num_labels=1), _classifier_data, None),
    "product of an MLP": _with_problem(networks.mlp, lambda: _MLP_DATA[0], "cross_entropy", _product("0.weight")),
    "product of GPT-2": _with_problem(
        hugging_face.gpt2, lambda: hugging_face.padded(2), None, _product("layer0.attn.q")
    ),
    "norms of GPT-2": _with_problem(hugging_face.gpt2, lambda: hugging_face.padded(2), None, _norms("layer1.attn.*")),
    "norms of a toy Transformer": _with_problem(
        networks.toy, lambda: _NANO_DATA[0], "cross_entropy", _norms("layer0.*")
    ),
    "norms of a toy Transformer, backpropagated": _with_problem(
        lambda: networks.toy(layers=2, d_model=8, heads=2),
        lambda: pairs(2, length=6)[0],
        "cross_entropy",
        _norms("layer0.attn.[qv]", method="exact"),
    ),
    "norms of an encoder": _with_problem(
        networks.torch_encoder, _encoder_data, "square", _norms("layer0.attn.*"), attention="chunked"
    ),
    "dense block of nanoGPT": _with_problem(networks.nano_gpt, lambda: _NANO_DATA[0], "cross_entropy", _dense),
    "trace of nanoGPT": _with_problem(networks.nano_gpt, lambda: _NANO_DATA[0], "cross_entropy", _trace),
    "measure of nanoGPT": _with_problem(networks.nano_gpt, lambda: _NANO_DATA[0], "cross_entropy", _measure),
    "page of nanoGPT": _with_problem(networks.nano_gpt, lambda: _NANO_DATA[0], "cross_entropy", _page),
    "a step without second derivative": _with_problem(
        lambda: stack(Applied(OnceTanh)), stack_pairs, "cross_entropy", _refused
    ),
    "step of a monitor": _monitor,
    "step of a monitor of GPT-2": _hugging_face_monitor,
    "Hessian of an attention layer": _layer,
}
