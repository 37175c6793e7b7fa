"""A model in wrappers is the model inside them: the same blocks, the same numbers, and a note."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

import hessianlens as hl
from hessianlens.models.adapters.wrappers import unwrap_model
from tests.curvature import hugging_face, networks
from tests.curvature.agreement import same_operator
from tests.curvature.networks import tokens
from tests.oracles.comparison import assert_same
from tests.variants import randn

IDS = {"input_ids": tokens()}
BLOCKS = ["layer0.attn.q", "layer1.attn.v", "norm_final"]
compiled = partial(torch.compile, backend="aot_eager")  # has no second derivative, and needs no compiler


# As peft lays them out: a PeftModel around a tuner around the model.


class BaseTuner(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.model, name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model.forward(*args, **kwargs)


class LoraModel(BaseTuner):
    pass


class PeftModel(nn.Module):
    def __init__(self, model: nn.Module, prompts: bool = False) -> None:
        super().__init__()
        self.base_model = model if prompts else LoraModel(model)
        if prompts:
            self.prompt_encoder = nn.ModuleDict({"default": nn.Embedding(2, 4)})

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.base_model, name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.base_model(*args, **kwargs)


class PeftModelForCausalLM(PeftModel):
    pass


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    """A group of one process, which is what a wrapper for several needs to be made."""
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


WRAPPERS: dict[str, tuple[Callable[[nn.Module], nn.Module], list[str]]] = {
    "DataParallel": (nn.DataParallel, ["DataParallel"]),
    "DistributedDataParallel": (DistributedDataParallel, ["DistributedDataParallel"]),
    "torch.compile": (compiled, ["OptimizedModule"]),
    "averaged weights": (AveragedModel, ["AveragedModel"]),
    "PEFT": (PeftModelForCausalLM, ["PeftModelForCausalLM", "LoraModel"]),
    "nested": (
        lambda model: nn.DataParallel(compiled(PeftModel(model))),
        ["DataParallel", "OptimizedModule", "PeftModel", "LoraModel"],
    ),
}


@pytest.mark.expensive
@pytest.mark.parametrize("name", WRAPPERS)
def test_the_model_inside_is_differentiated(name: str, process_group: None) -> None:
    wrap, kinds = WRAPPERS[name]
    plain = hl.problem(hugging_face.gpt2(), IDS)
    inner = hugging_face.gpt2()
    problem = hl.problem(wrap(inner), IDS)
    assert list(problem.blocks) == list(plain.blocks) and list(problem.params) == list(plain.params)
    assert problem.reduction == plain.reduction
    assert problem.notes == (*(f"{kind}: the module inside is differentiated" for kind in kinds), *plain.notes)
    assert_same(problem.total_loss(), plain.total_loss(), name)
    same_operator(problem, plain, BLOCKS, 1e-10)


@pytest.mark.expensive
@pytest.mark.parametrize("name", WRAPPERS)
def test_the_closed_form_looks_inside_too(name: str, process_group: None) -> None:
    problem, plain = (hl.problem(model, IDS) for model in (WRAPPERS[name][0](hugging_face.gpt2()), hugging_face.gpt2()))
    exact = [hl.hessian(p, "layer1.attn.q", method="exact").to_dense() for p in (problem, plain)]
    assert_same(*exact, name)


def test_a_plain_module_in_a_wrapper_still_needs_a_loss() -> None:
    with pytest.raises(hl.InputError, match="loss: Sequential is a plain module"):
        hl.problem(nn.DataParallel(networks.mlp()), (randn(2, 3), torch.tensor([0, 1])))


def test_a_module_of_ones_own_that_holds_another_is_no_wrapper() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = networks.mlp()

        def forward(self, x: Tensor) -> Tensor:
            return 2 * self.module(x)

    model = Scaled()
    assert unwrap_model(model) == (model, ())


def test_prompts_are_not_lost() -> None:
    """Prompt tuning adds tokens to the inputs; the model inside would not see them."""
    with pytest.raises(hl.InputError, match="PeftModel puts learned tokens in front of the inputs"):
        hl.problem(PeftModel(hugging_face.gpt2(), prompts=True), IDS)


# --- compiled in place -----------------------------------------------------------------------------------------------


def compiled_in_place() -> nn.Module:
    model = hugging_face.gpt2()
    model.compile(backend="aot_eager")
    return model


def compiled_layer_by_layer() -> nn.Module:
    model = hugging_face.gpt2()
    for k, layer in enumerate(model.transformer.h):
        model.transformer.h[k] = compiled(layer)
    return model


@pytest.mark.parametrize("make", [compiled_in_place, compiled_layer_by_layer])
def test_what_was_compiled_runs_as_it_is_written(make: Callable[[], nn.Module]) -> None:
    model, plain = make(), hl.problem(hugging_face.gpt2(), IDS)
    problem = hl.problem(model, IDS)
    assert list(problem.blocks) == list(plain.blocks)
    assert any("what torch.compile makes has no second derivative" in note for note in problem.notes)
    same_operator(problem, plain, BLOCKS, 1e-10)
    exact = [hl.hessian(p, "layer1.attn.q", method="exact").to_dense() for p in (problem, plain)]
    assert_same(*exact, "closed form")


def test_the_autocast_of_accelerate_is_left_aside() -> None:
    """It keeps the forward it wraps under this name; here it rounds to bfloat16, as autocast does."""
    model, plain = hugging_face.gpt2(), hl.problem(hugging_face.gpt2(), IDS)

    def rounded(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        found = self._original_forward(*args, **kwargs)
        found.logits = found.logits.bfloat16().double()
        return found

    model._original_forward = model.forward
    model.forward = MethodType(rounded, model)
    problem = hl.problem(model, IDS)
    assert_same(problem.total_loss(), plain.total_loss(), "in double precision")
    assert model.forward.__func__ is rounded


# --- weights that have no derivatives --------------------------------------------------------------------------------


class FullyShardedDataParallel(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def with_weight(tensor: Tensor) -> nn.Module:
    model = networks.mlp()
    model[3].weight = nn.Parameter(tensor, requires_grad=False)
    return model


def quantised(module: str, **state: Any) -> nn.Module:
    """A parameter of a class of a package that quantises."""
    kind = type("Params4bit", (nn.Parameter,), {"__module__": f"{module}.nn.modules"})
    model = networks.mlp()
    model[3].weight = kind(torch.zeros(12, 1, dtype=torch.uint8), requires_grad=False)
    return model


def packed_away() -> nn.Module:
    """GPTQ and its like leave no parameter behind where the weights were."""
    model = hugging_face.gpt2()
    model.is_quantized, model.quantization_method = True, "gptq"
    return model


def test_what_a_gguf_file_held_is_ordinary_weights() -> None:
    """Transformers makes floating-point parameters of them, and goes on to call the model quantised."""
    model = hugging_face.gpt2()
    expected = hl.problem(model, {"input_ids": torch.tensor([[1, 2, 3]])}).total_loss()
    model.is_quantized, model.quantization_method = True, "gguf"
    assert hl.problem(model, {"input_ids": torch.tensor([[1, 2, 3]])}).total_loss() == expected


OBSTACLES: dict[str, Callable[[], nn.Module]] = {
    "the parameter 3.weight is sparse": lambda: with_weight(randn(3, 4).to_sparse()),
    "the parameter 0.weight is on the meta device": lambda: networks.mlp().to("meta"),
    "the parameter 3.weight is torch.int64, whole numbers": lambda: with_weight(torch.ones(3, 4, dtype=torch.int64)),
    "the parameter 3.weight is torch.complex128": lambda: with_weight(randn(3, 4) + 1j * randn(3, 4)),
    r"the parameter 3.weight is quantised \(Params4bit, torch.uint8\)": lambda: quantised("bitsandbytes"),
    r"the parameter 3.weight is quantised \(Params4bit": lambda: quantised("torchao"),
    r"GPT2LMHeadModel is quantised \(gptq\)": packed_away,
    r"sharded over ranks \(FullyShardedDataParallel\)": lambda: FullyShardedDataParallel(networks.mlp()),
    "the parameter 0.weight has no shape yet": lambda: nn.Sequential(nn.LazyLinear(3)),
}


@pytest.mark.parametrize("message", OBSTACLES)
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_the_true_obstacle_is_named(message: str) -> None:
    with pytest.raises(hl.InputError, match=f"^model: .*{message}"):
        hl.problem(OBSTACLES[message](), (randn(2, 3), torch.tensor([0, 1])), "cross_entropy")
