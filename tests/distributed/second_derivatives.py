"""PyTorch and second derivatives of models that are cut over processes: what docs/how-to/distributed.md says."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.func import functional_call
from torch.nn import functional as nnf

import hessianlens as hl
from hessianlens.errors import InputError

WRONG = 1e-3
"""Relative error that is no rounding."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(x)))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), nn.Linear(6, 4)).double()


def data() -> tuple[Tensor, Tensor]:
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64), torch.arange(5) % 4


def product(model: nn.Module, params: dict[str, Tensor], vectors: list[Tensor]) -> list[Tensor]:
    """``H v`` by double backward."""
    inputs, targets = data()
    out = functional_call(model, params, (inputs,))
    loss = nnf.cross_entropy(out.full_tensor() if isinstance(out, DTensor) else out, targets)
    gradient = torch.autograd.grad(loss, list(params.values()), create_graph=True)
    return list(torch.autograd.grad(gradient, list(params.values()), vectors))


def error(model: nn.Module) -> float:
    """Of a product with a model whose weights are cut, relative to the same in one process."""
    whole = network()
    named = {name: p.detach().requires_grad_() for name, p in whole.named_parameters()}
    source = torch.Generator().manual_seed(2)
    vectors = [torch.randn(p.shape, generator=source, dtype=p.dtype) for p in named.values()]
    expected = product(whole, named, vectors)
    cut = {name: p.detach().requires_grad_() for name, p in model.named_parameters()}
    laid = [
        distribute_tensor(v, p.device_mesh, p.placements) if isinstance(p, DTensor) else v
        for v, p in zip(vectors, cut.values(), strict=True)
    ]
    found = [d.full_tensor() if isinstance(d, DTensor) else d for d in product(model, cut, laid)]
    errors = [float((f - e).abs().max() / e.abs().max()) for f, e in zip(found, expected, strict=True)]
    return max(errors)


def tensor_parallel(mesh: DeviceMesh) -> nn.Module:
    model = network()
    for block in (model[0], model[1]):
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def distributed_weights(mesh: DeviceMesh) -> nn.Module:
    """Weights that are DTensors, and a network that is nothing but operations on them."""

    def cut(_: str, module: nn.Module, mesh: DeviceMesh) -> None:
        for name, parameter in list(module.named_parameters(recurse=False)):
            module.register_parameter(name, nn.Parameter(distribute_tensor(parameter, mesh, [Shard(0)])))

    def laid(_: nn.Module, inputs: Any, mesh: DeviceMesh) -> Any:
        return (DTensor.from_local(inputs[0], mesh, [Replicate()], run_check=False),)

    return distribute_module(network(), mesh, cut, laid)


def fully_sharded(mesh: DeviceMesh) -> nn.Module:
    model = network()
    for part in (*model, model):
        fully_shard(part, mesh=mesh)
    return model


def check(group: Any) -> None:
    """Everything the page says; where PyTorch has become better, this fails and the page is to be rewritten."""
    mesh = DeviceMesh.from_group(group, "cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert error(distributed_weights(mesh)) < 1e-12
        assert error(tensor_parallel(mesh)) > WRONG  # and PyTorch says nothing
        sharded = fully_sharded(mesh)
        inputs, targets = data()
        nnf.cross_entropy(sharded(inputs), targets).backward(create_graph=True)
        gradients = [parameter.grad for parameter in sharded.parameters()]
        assert all(gradient is not None and not gradient.requires_grad for gradient in gradients)
        for parameter in sharded.parameters():
            parameter.grad = None
    for model, said in (
        (sharded, "FSDPModule"),
        (tensor_parallel(mesh), "DTensor"),
        (distributed_weights(mesh), "DTensor"),
    ):
        try:
            hl.problem(model, data(), "cross_entropy")
        except InputError as refused:
            assert said in str(refused), refused
        else:
            raise AssertionError(f"{said} was not refused")
