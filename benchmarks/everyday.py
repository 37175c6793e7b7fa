"""What users do first, against ten lines of PyTorch: one HVP of a fresh problem, an eigenvalue, a trace, a density."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
import scipy.sparse.linalg as sparse
import torch
from torch import Tensor, nn
from torch.autograd import grad

import hessianlens as hl
from benchmarks.network_peers import gradient, kept_graph_product, only, pyhessian_product
from benchmarks.network_settings import GRADIENT, Scaled, Setting

RTOL = 1e-3
VECTORS = 8
PROBES = 20
INTERVAL = 0.05
"""Half the width of a 95 % interval, relative to the norm, that is asked for where a tolerance is."""
KEPT = "kept double-backward graph, the rest frozen"
PLAIN = "double backward, nothing frozen"
Loss = Callable[[Tensor, dict[str, Tensor]], Tensor]


@dataclass(frozen=True)
class ToySize:
    """Sizes of a toy Transformer with norms and GELU, and of its batch."""

    layers: int
    width: int
    length: int
    sequences: int
    heads: int = 4


SIZES = {
    "tiny": ToySize(1, 32, 18, 8, 1),
    "small": ToySize(2, 64, 32, 8),
    "toy": ToySize(6, 128, 64, 8),
    "deep": ToySize(12, 256, 128, 4, 8),
}


def _made(size: ToySize) -> tuple[hl.models.Transformer, dict[str, Tensor], Loss]:
    model = hl.models.Transformer(
        layers=size.layers,
        d_model=size.width,
        heads=size.heads,
        d_mlp=4 * size.width,
        vocab=512,
        context=size.length,
        norm="pre",
        mlp_activation="gelu",
    )
    shape, generator = (size.sequences, size.length), torch.Generator().manual_seed(0)
    tokens = torch.randint(512, shape, generator=generator)

    def loss(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["tokens"][:, 1:].flatten())

    return model, {"tokens": tokens}, loss


def _sizes(size: ToySize, products: int) -> dict[str, object]:
    return {"layers": size.layers, "d": size.width, "L": size.length, "products": products}


def cold(name: str) -> Setting:
    """Problem, operator and one HVP with the query block of the middle layer; checks and verification or none."""

    def setting(tiny: bool) -> tuple[dict[str, Scaled], dict[str, object]]:
        size = SIZES["tiny" if tiny else name]
        model, batch, loss = _made(size)
        middle = size.layers // 2
        attention = model.blocks[middle].attention
        v = torch.randn(attention.W_Q.shape, generator=torch.Generator().manual_seed(0))

        def ours(check: bool) -> Tensor:
            problem = hl.problem(model, batch, loss, check=check, verify=check)
            return hl.hessian(problem, f"layer{middle}.attn.q") @ v.flatten()

        def plain() -> Tensor:
            (slope,) = grad(loss(model(batch["tokens"]), batch), attention.W_Q, create_graph=True)
            return grad(slope, attention.W_Q, v)[0]

        runs = {
            "ours, unchecked and not verified": Scaled(lambda: ours(False)),
            "ours": Scaled(lambda: ours(True)),
            KEPT: Scaled(lambda: kept_graph_product(model, batch, loss, attention, [v])),
            PLAIN: Scaled(plain),
            GRADIENT: Scaled(lambda: gradient(model, batch, loss, attention.W_Q)),
        }
        if (found := pyhessian_product(model, batch, loss, attention, [v])) is not None:
            runs["PyHessian"] = Scaled(found)
        return runs, _sizes(size, 1)

    return setting


class _KeptGraph:
    """HVPs of one weight through a graph that is kept, with everything else frozen."""

    def __init__(self, model: nn.Module, batch: dict[str, Tensor], loss: Loss, weight: Tensor) -> None:
        self.weight, self.size = weight, weight.numel()
        with only(model, [weight]):
            (self._slope,) = grad(loss(model(batch["tokens"]), batch), weight, create_graph=True)

    def __call__(self, v: Tensor) -> Tensor:
        return grad(self._slope, self.weight, v.reshape(self.weight.shape), retain_graph=True)[0].flatten()

    def several(self, V: Tensor) -> Tensor:
        """One vector per row."""
        vectors = V.reshape(-1, *self.weight.shape)
        return grad(self._slope, self.weight, vectors, retain_graph=True, is_grads_batched=True)[0].flatten(1)


def _signs(size: int, count: int) -> Tensor:
    return torch.randint(0, 2, (count, size), generator=torch.Generator().manual_seed(0)) * 2.0 - 1


def _eigsh(A: _KeptGraph) -> float:
    def matvec(x: np.ndarray) -> np.ndarray:
        return A(torch.from_numpy(np.ascontiguousarray(x)).float()).double().numpy()

    start = np.random.default_rng(0).standard_normal(A.size)
    linear = sparse.LinearOperator((A.size, A.size), matvec=matvec, dtype=np.float64)
    return float(sparse.eigsh(linear, k=1, which="LA", tol=RTOL, v0=start)[0][0])


def _trace(A: _KeptGraph, probes: int = 100, at_once: int = 1) -> float:
    V = _signs(A.size, probes)
    if at_once == 1:
        return float(np.mean([float(v @ A(v)) for v in V]))
    return float(sum((part * A.several(part)).sum() for part in V.split(at_once))) / probes


def _lanczos(A: _KeptGraph, probes: int = 2, steps: int = 50) -> list[np.ndarray]:
    return [_nodes(A, v / v.norm(), steps) for v in _signs(A.size, probes)]


def _nodes(A: _KeptGraph, q: Tensor, steps: int) -> np.ndarray:
    Q, alpha, beta = [q], list[float](), list[float]()
    for _ in range(steps):
        w = A(Q[-1])
        alpha.append(float(w @ Q[-1]))
        basis = torch.stack(Q)
        for _ in range(2):
            w = w - basis.T @ (basis @ w)
        beta.append(float(w.norm()))
        Q.append(w / beta[-1])
    return np.linalg.eigvalsh(np.diag(alpha) + np.diag(beta[:-1], 1) + np.diag(beta[:-1], -1))


def estimator(question: str, name: str) -> Setting:
    """An estimate of the query block of the middle layer from a new problem, verification included."""

    def setting(tiny: bool) -> tuple[dict[str, Scaled], dict[str, object]]:
        size = SIZES["tiny" if tiny else name]
        model, batch, loss = _made(size)
        middle = size.layers // 2
        weight = model.blocks[middle].attention.W_Q
        problem = hl.problem(model, batch, loss)
        asked, products, peers = _ESTIMATORS[question]

        def ours() -> object:
            return asked(hl.hessian(replace(problem), f"layer{middle}.attn.q"))

        def against(peer: Callable[[_KeptGraph], object]) -> Callable[[], object]:
            return lambda: peer(_KeptGraph(model, batch, loss, weight))

        runs = {"ours": Scaled(ours)}
        runs |= {label: Scaled(against(peer)) for label, peer in peers.items()}
        runs[GRADIENT] = Scaled(lambda: gradient(model, batch, loss, weight))
        return runs, _sizes(size, products)

    return setting


def _eight(A: _KeptGraph, at_once: bool) -> Tensor:
    V = _signs(A.size, VECTORS)
    return A.several(V).T if at_once else torch.stack([A(v) for v in V], 1)


def repeated(name: str) -> Setting:
    """Eight vectors at once times the query block of the middle layer, once operator and graph are there."""

    def setting(tiny: bool) -> tuple[dict[str, Scaled], dict[str, object]]:
        size = SIZES["tiny" if tiny else name]
        model, batch, loss = _made(size)
        middle = size.layers // 2
        weight = model.blocks[middle].attention.W_Q
        problem, block = hl.problem(model, batch, loss), f"layer{middle}.attn.q"
        op, hvps = hl.hessian(problem, block), hl.hessian(problem, block, method="hvp")
        A, M = _KeptGraph(model, batch, loss, weight), _signs(op.shape[1], VECTORS).T.contiguous()
        runs = {
            "ours": Scaled(lambda: op @ M),
            "ours, by HVPs alone": Scaled(lambda: hvps @ M),
            "kept graph, one by one": Scaled(lambda: _eight(A, False)),
            "kept graph, 8 at once": Scaled(lambda: _eight(A, True)),
            GRADIENT: Scaled(lambda: gradient(model, batch, loss, weight)),
        }
        return runs, _sizes(size, VECTORS)

    return setting


_ESTIMATORS: dict[str, tuple[Callable[[hl.operators.Operator], object], int, dict[str, Callable]]] = {
    "eigenvalue": (lambda op: hl.eigenvalues(op, rtol=RTOL), 21, {"kept graph and eigsh": _eigsh}),
    "trace": (
        lambda op: hl.trace(op, probes=100),
        100,
        {"kept graph, one by one": _trace, "kept graph, 20 at once": lambda A: _trace(A, at_once=20)},
    ),
    "density": (lambda op: hl.density(op, 2, 50, method="lanczos"), 100, {"kept graph, Lanczos by hand": _lanczos}),
}
"""By question: how it is asked here, HVPs that it takes about, and peers."""


def one_norm(rtol: float | None) -> Setting:
    """The norm of the query block of the last layer, from a new problem: unasked, or to a tolerance."""

    def setting(tiny: bool) -> tuple[dict[str, Scaled], dict[str, object]]:
        size = SIZES["tiny" if tiny else "deep"]
        model, batch, loss = _made(size)
        weight = model.blocks[-1].attention.W_Q
        problem, name = hl.problem(model, batch, loss), f"layer{size.layers - 1}.attn.q"
        V = _signs(weight.numel(), PROBES)
        wanted = None if rtol is None else _probes_for(_KeptGraph(model, batch, loss, weight), rtol)

        def sampled() -> Tensor:
            A = _KeptGraph(model, batch, loss, weight)
            return torch.stack([A(v).square().sum() for v in V]).mean().sqrt()

        scale = 1.0 if wanted is None else wanted / PROBES
        label = f"kept graph, {PROBES} probes" if wanted is None else f"kept graph, probes to {rtol:.0%}"
        runs = {
            "ours": Scaled(lambda: hl.block_norms(replace(problem), [name], ("full",), rtol=rtol)),
            label: Scaled(sampled, scale),
            GRADIENT: Scaled(lambda: gradient(model, batch, loss, weight)),
        }
        return runs, _sizes(size, 1) | ({} if wanted is None else {"probes of the peer": round(wanted)})

    return setting


def _probes_for(A: _KeptGraph, rtol: float) -> float:
    """Probes after which the 95 % interval of a norm is `rtol` wide to either side, from the spread of 60."""
    squares = torch.stack([A(v).square().sum() for v in _signs(A.size, 60)]).double()
    return float((NormalDist().inv_cdf(0.975) * squares.std() / squares.mean() / 2 / rtol) ** 2)


def settings() -> Iterator[tuple[str, str, Setting, float]]:
    """Name, title, setting and the ratio aimed at of every benchmark."""
    for name in SIZES:
        yield f"cold_{name}", f"One HVP of a fresh problem, {name} model", cold(name), 1 / 1.3
    for question, title in (
        ("eigenvalue", "The largest eigenvalue of a block"),
        ("trace", "A trace from 100 probes"),
        ("density", "A density from 2 probes and 50 steps"),
    ):
        for name in ("small", "toy"):
            yield f"{question}_{name}", f"{title}, {name} model", estimator(question, name), 1.0
    for name in ("tiny", "small", "toy"):
        yield f"vectors_{name}", f"An operator that is there times eight vectors, {name} model", repeated(name), 1.0
    yield "one_norm", "One norm in the last layer of twelve, no accuracy asked for", one_norm(None), 1 / 1.3
    yield "one_norm_interval", "The same to 5 %", one_norm(INTERVAL), 1 / 1.3
