"""A self-check of an installation: what is installed, and on a device what agrees with the CPU and at what ratio.

Everything was developed and tested without a GPU. The check runs what matters most there on a small model: an HVP by
the graph and by a tape, several vectors at once, attention in chunks, a closed form. It compares each with the CPU and
takes the time of an HVP in gradients, a ratio that depends little on the machine. What it returns can be sent back as
it is.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from collections.abc import Callable
from typing import Any

import psutil
import torch
from torch import Tensor

from hessianlens import __version__
from hessianlens.attention import SelfAttention, scaled_dot_product_attention
from hessianlens.checks import check_device
from hessianlens.curvature import Linearisation
from hessianlens.curvature.tape import TapedLinearisation
from hessianlens.layer import attention_hessian
from hessianlens.losses import SquareLoss
from hessianlens.memory import available_bytes
from hessianlens.models import Transformer
from hessianlens.models.adapters import problem as make_problem
from hessianlens.problems import Problem
from hessianlens.sizes import readable

LIBRARIES = ("torch", "numpy", "scipy", "matplotlib")
"""Whose versions are reported."""
EXTRAS = {
    "hf": ("transformers",),
    "explore": ("anywidget",),
    "frames": ("pandas",),
    "parquet": ("pyarrow",),
    "watch": ("accelerate", "pytorch-lightning", "tensorboard"),
    "wandb": ("wandb",),
    "cluster": ("dask", "distributed"),
    "curvlinops": ("curvlinops-for-pytorch",),
    "docs": ("sphinx", "furo", "myst-parser", "sphinx-gallery"),
}
"""Extras, and the packages that show whether one is installed."""
PURPOSES = {
    "hf": "Hugging Face models",
    "explore": "hl.explore() in notebooks",
    "frames": "to_frame()",
    "parquet": "results as Parquet files",
    "watch": "Hugging Face's Trainer, Lightning and TensorBoard",
    "wandb": "Weights & Biases",
    "cluster": "experiments on a Dask cluster",
    "curvlinops": "op.to_curvlinops()",
    "docs": "building the site",
}
"""What an extra is for."""
AGREEMENT = 1e-3
"""Relative difference between a device and the CPU in float32 that is rounding."""
_ROUNDS = 10

Tensors = dict[str, Tensor]


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries; "not installed" for those that are missing.

    >>> versions()["torch"] == torch.__version__.partition("+")[0]
    True
    """
    found = {"python": platform.python_version(), "system": platform.platform(terse=True)}
    found["hessianlens"] = __version__
    return found | {name: _version(name) or "not installed" for name in LIBRARIES}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


def extras() -> dict[str, dict[str, str]]:
    """What each extra is for, the versions of its packages, and the command that installs it where one is missing.

    >>> extras()["hf"]["for"]
    'Hugging Face models'
    """
    rows = {}
    for extra, packages in EXTRAS.items():
        installed = {name: version for name in packages if (version := _version(name))}
        rows[extra] = {"for": PURPOSES[extra], "installed": ", ".join(f"{k} {v}" for k, v in installed.items())}
        if len(installed) < len(packages):
            rows[extra]["install"] = f"pip install 'hessianlens[{extra}]'"
    return rows


def resources() -> dict[str, str]:
    """Memory and threads of this process, and the attention kernels that PyTorch has here.

    >>> sorted(resources())
    ['attention kernels', 'memory', 'threads']
    """
    free, total = available_bytes(torch.device("cpu")), psutil.virtual_memory().total
    kernels = ["math"]
    if torch.cuda.is_available():
        kernels += ["flash"] * torch.backends.cuda.flash_sdp_enabled()
        kernels += ["memory-efficient"] * torch.backends.cuda.mem_efficient_sdp_enabled()
        kernels += ["cuDNN"] * torch.backends.cuda.cudnn_sdp_enabled()
    else:
        kernels.append("flash on the CPU")
    return {
        "memory": f"{readable(free)} free of {readable(total)}",
        "threads": f"{torch.get_num_threads()} of {os.cpu_count()} cores; one is enough for small models",
        "attention kernels": f"{', '.join(kernels)}; only math has a second derivative, and replaces the others for it",
    }


def devices() -> list[str]:
    """Devices that PyTorch can use here, the CPU first."""
    found = ["cpu", *(f"cuda:{k}" for k in range(torch.cuda.device_count()))]
    return [*found, "mps"] if torch.backends.mps.is_available() else found


def device_check(device: str) -> list[dict[str, Any]]:
    """What was compared on a device, a row each: its name, the difference from the CPU, whether it is rounding.

    The last rows hold times: a gradient in milliseconds, and HVPs in gradients.

    Args:
        device: "cuda", "cuda:1", "mps" or "cpu", which agrees with itself.

    >>> rows = device_check("cpu")
    >>> all(row["ok"] for row in rows if "ok" in row), rows[0]["what"]
    (True, 'HVP through the graph')
    """
    there = check_device(device)
    rows = []
    for name, compute in _COMPUTED.items():
        try:
            here, found = compute(torch.device("cpu")), compute(there)
        except Exception as error:  # that is what the check is for
            rows.append({"what": name, "ok": False, "error": f"{type(error).__name__}: {str(error).splitlines()[0]}"})
            continue
        off = float((found.cpu().double() - here.double()).norm() / here.double().norm())
        rows.append({"what": name, "ok": off <= AGREEMENT, "difference": off})
    return [*rows, *_times(there)]


def _problem(device: torch.device, width: int = 32, layers: int = 2) -> Problem:
    model = Transformer(layers=layers, d_model=width, heads=4, d_mlp=4 * width, vocab=64, context=32, norm="pre")
    tokens = torch.randint(64, (4, 32), generator=torch.Generator().manual_seed(0))
    return make_problem(model.to(device), {"tokens": tokens.to(device)}, _next_token)


def _next_token(logits: Tensor, batch: Any) -> Tensor:
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["tokens"][:, 1:].flatten())


def _tangents(problem: Problem, vectors: int = 0) -> Tensors:
    name = problem.blocks["layer0.attn.q"].parameter
    shape = problem.params[name].shape
    drawn = torch.randn((vectors, *shape) if vectors else shape, generator=torch.Generator().manual_seed(1))
    return {name: drawn.to(problem.device)}


def _by_graph(device: torch.device) -> Tensor:
    problem = _problem(device)
    v = _tangents(problem)
    (found,) = Linearisation(problem, problem.data[0], list(v)).hessian(v, list(v)).values()
    return found


def _by_tape(device: torch.device) -> Tensor:
    problem = _problem(device)
    v = _tangents(problem)
    (found,) = TapedLinearisation(problem, problem.data[0], list(v)).hessian(v, list(v)).values()
    return found


def _several(device: torch.device) -> Tensor:
    problem = _problem(device)
    v = _tangents(problem, 4)
    (found,) = Linearisation(problem, problem.data[0], list(v)).hessian(v, list(v), several=True).values()
    return found


def _chunked_attention(device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 200, 16, generator=generator).to(device).requires_grad_().unbind()
    (slope,) = torch.autograd.grad(
        scaled_dot_product_attention(q, k, v, is_causal=True).square().sum(), q, create_graph=True
    )
    return torch.autograd.grad(slope.square().sum(), k)[0]


def _closed_form(device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    layer = SelfAttention.random(d_model=8, d_k=8, seed=0)
    X, Y = torch.randn(2, 2, 16, 8, generator=generator)
    moved = SelfAttention(*(weight.to(device) for weight in (layer.W_Q, layer.W_K, layer.W_V)))
    return attention_hessian(moved, X.to(device), SquareLoss(Y.to(device))).full["Q", "K"].to_dense()


_COMPUTED: dict[str, Callable[[torch.device], Tensor]] = {
    "HVP through the graph": _by_graph,
    "HVP by a tape": _by_tape,
    "several vectors at once": _several,
    "second derivative of attention in chunks": _chunked_attention,
    "closed form of a layer": _closed_form,
}


def _times(device: torch.device) -> list[dict[str, Any]]:
    """A gradient in milliseconds, and HVPs in gradients, of a model of some size."""
    problem = _problem(device, width=256, layers=4)
    v = _tangents(problem)
    names = list(v)
    at = Linearisation(problem, problem.data[0], names)
    tape = TapedLinearisation(problem, problem.data[0], names)

    def gradient() -> object:
        return Linearisation(problem, problem.data[0], names).gradient(names)

    unit = _seconds(gradient, device)
    hvps = {"HVP through the graph": lambda: at.hessian(v, names), "HVP by a tape": lambda: tape.hessian(v, names)}
    rows: list[dict[str, Any]] = [{"what": "gradient", "milliseconds": 1e3 * unit}]
    return rows + [{"what": name, "gradients": _seconds(run, device) / unit} for name, run in hvps.items()]


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    """The least of some rounds, with the device's queue empty before and after."""
    found = []
    for _ in range(_ROUNDS):
        _wait(device)
        began = time.perf_counter()
        run()
        _wait(device)
        found.append(time.perf_counter() - began)
    return min(found)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
