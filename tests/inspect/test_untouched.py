"""Whatever is asked of a model, and whatever goes wrong on the way, it is left as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hessianlens as hl
from hessianlens.models.adapters import differentiable_twice
from tests.curvature import hugging_face, networks
from tests.curvature.networks import LENGTH, WIDTH, pairs, tokens
from tests.variants import randn


def partly_frozen(model: nn.Module) -> nn.Module:
    """In training mode but for one part; one parameter without gradient, another that has one already."""
    list(model.modules())[-1].eval()
    parameters = list(model.parameters())
    parameters[0].requires_grad_(False)
    parameters[1].grad = torch.ones_like(parameters[1])
    return model


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any], str | None, str]] = {
    "toy": (networks.toy, lambda: pairs(2)[0], "cross_entropy", "layer0.attn.q"),
    "GPT-2": (hugging_face.gpt2, lambda: hugging_face.padded(2), None, "layer1.attn.q"),
    "nanoGPT": (networks.nano_gpt, lambda: pairs(2)[0], "cross_entropy", "layer1.attn.v"),
    "BERT": (hugging_face.masked_bert, lambda: hugging_face.padded(2), None, "layer0.attn.q"),
    "nn.TransformerEncoder": (
        networks.torch_encoder,
        lambda: (randn(2, LENGTH, WIDTH), randn(2, LENGTH, WIDTH)),
        "square",
        "layer0.attn.k",
    ),
}


def state(model: nn.Module) -> dict[str, Any]:
    """Everything about a model, and about PyTorch's kernels, that could have been changed."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    config = getattr(model, "config", None)
    return {
        "modes": [module.training for module in model.modules()],
        "hooks": [len(getattr(module, kind)) for module in model.modules() for kind in hooks],
        "places": {name: p.data_ptr() for name, p in model.named_parameters()},
        "values": {name: p.detach().clone().tolist() for name, p in model.named_parameters()},
        "buffers": {name: b.clone().tolist() for name, b in model.named_buffers()},
        "gradients": {name: None if p.grad is None else p.grad.tolist() for name, p in model.named_parameters()},
        "trained": [p.requires_grad for p in model.parameters()],
        "config": None if config is None else config.to_dict(),
        "attention": getattr(config, "_attn_implementation", None),
        "kernels": (
            torch.backends.mha.get_fastpath_enabled(),
            torch.backends.cuda.flash_sdp_enabled(),
            torch.backends.cuda.mem_efficient_sdp_enabled(),
            torch.backends.cuda.math_sdp_enabled(),
        ),
        "gradients on": torch.is_grad_enabled(),
    }


def assert_untouched(model: nn.Module, before: dict[str, Any]) -> None:
    after = state(model)
    assert [key for key in before if after[key] != before[key]] == []


@pytest.mark.expensive
@pytest.mark.parametrize("name", MODELS)
def test_everything_that_can_be_asked(name: str) -> None:
    make, data, loss, block = MODELS[name]
    model = partly_frozen(make())
    before = state(model)
    problem = hl.problem(model, data(), loss)
    problem.total_loss()
    for part in (hl.hessian, hl.ggn, hl.functional):
        for method in ("auto", "hvp"):
            op = part(problem, block, method=method)
            op @ randn(op.shape[1])
            op.adjoint() @ randn(op.shape[0], 2)
    hl.block_norms(problem, block, probes=2, method="probes")
    hl.block_norms(problem, "*.attn.[qv]", probes=2)
    assert_untouched(model, before)


def test_an_own_loss_leaves_the_configuration_alone() -> None:
    """Hugging Face writes down the kind of problem it finds; asking for the loss here does not."""
    model = hugging_face.classifying_bert(num_labels=1)
    before = state(model)
    assert before["config"]["problem_type"] is None
    hl.problem(model, {"input_ids": tokens(3), "labels": randn(3)})
    assert_untouched(model, before)


class Failing:
    """A loss that fails from a given call on."""

    def __init__(self, call: int) -> None:
        self.call, self.calls = call, 0

    def __call__(self, outputs: Tensor, batch: Any) -> Tensor:
        self.calls += 1
        if self.calls >= self.call:
            raise ZeroDivisionError("in the loss")
        return outputs.square().mean()


@pytest.mark.parametrize("call", range(1, 6))
@pytest.mark.parametrize("name", ["toy", "GPT-2"])
def test_a_loss_that_fails(name: str, call: int) -> None:
    make, data, _, block = MODELS[name]
    model = partly_frozen(make())
    before = state(model)
    loss = Failing(call)
    with pytest.raises(hl.InputError, match=r"the given function failed: in the loss; it was given outputs") as failure:
        problem = hl.problem(model, data(), loss)
        problem.total_loss()
        op = hl.hessian(problem, block, method="hvp")
        op @ randn(op.shape[1])
        hl.hessian(problem, block, method="exact").to_dense()
    assert isinstance(failure.value.__cause__, ZeroDivisionError)
    assert_untouched(model, before)


class Fragile(nn.Module):
    """A model whose forward pass fails when it is told to."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.broken = inner, False

    def forward(self, inputs: Tensor) -> Tensor:
        result = self.inner(inputs)
        if self.broken:
            raise ZeroDivisionError("in the model")
        return result[0] if isinstance(result, tuple) else result


@pytest.mark.parametrize("part", [hl.hessian, hl.ggn, hl.functional])
def test_a_model_that_fails(part) -> None:
    model = partly_frozen(Fragile(networks.nano_gpt()))
    before = state(model)
    problem = hl.problem(model, pairs(2), "cross_entropy")
    model.broken = True
    op = part(problem, "layer1.attn.q", method="hvp")
    for attempt in (lambda: op @ randn(16), problem.total_loss, lambda: hl.block_norms(problem, "layer1.attn.q")):
        with pytest.raises(hl.InputError, match="Fragile could not be run on the data: in the model") as failure:
            attempt()
        assert isinstance(failure.value.__cause__, ZeroDivisionError)
        assert_untouched(model, before)
    model.broken = False
    assert (op @ randn(16)).isfinite().all()


# --- the scope itself ------------------------------------------------------------------------------------------------


def test_inside_the_scope_everything_is_off_that_must_be() -> None:
    model = partly_frozen(hugging_face.gpt2())
    before = state(model)
    with differentiable_twice(model):
        assert not any(module.training for module in model.modules())
        assert model.config.use_cache is False
        assert not torch.backends.mha.get_fastpath_enabled() and not torch.backends.cuda.flash_sdp_enabled()
        with differentiable_twice(model):
            pass
        assert model.config.use_cache is False and not model.training
    assert_untouched(model, before)


def test_the_scope_is_left_by_an_exception() -> None:
    model = partly_frozen(hugging_face.gpt2())
    before = state(model)
    with pytest.raises(KeyError), differentiable_twice(model):
        raise KeyError("inside")
    assert_untouched(model, before)


@pytest.mark.parametrize("cached", [True, False])
def test_a_cache_is_put_back_as_it_was(cached: bool) -> None:
    model = hugging_face.gpt2(use_cache=cached)
    hl.problem(model, {"input_ids": tokens()})
    assert model.config.use_cache is cached


def test_a_fused_implementation_gives_way_to_the_eager_one() -> None:
    """flex_attention stands for every implementation of its own that a Hugging Face model may be set to."""
    model, batch = hugging_face.masked_bert(), hugging_face.padded(2)
    plain = hl.hessian(hl.problem(model, batch), "layer0.attn.q", method="hvp") @ randn(16)
    model.set_attn_implementation("flex_attention")
    before = state(model)
    problem = hl.problem(model, batch)
    assert any("flex_attention has no second derivative: eager attention is used" in note for note in problem.notes)
    fused = hl.hessian(problem, "layer0.attn.q", method="hvp") @ randn(16)
    assert torch.allclose(fused, plain, rtol=1e-9)
    assert_untouched(model, before)
    assert model.config._attn_implementation == "flex_attention"


def test_parts_keep_their_own_implementations() -> None:
    """A model in two parts, whose attention was chosen part by part."""
    import transformers

    small = {"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 3}
    text = {
        **small,
        "vocab_size": 5,
        "max_position_embeddings": 4,
        "pad_token_id": 0,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    config = transformers.CLIPConfig(text_config=text, vision_config={**small, "image_size": 4, "patch_size": 2})
    model = transformers.CLIPModel(config)
    model.set_attn_implementation({"": "flex_attention", "text_config": "eager", "vision_config": "sdpa"})
    before = state(model)
    with differentiable_twice(model):
        assert model.config._attn_implementation == "eager"
    parts = (model.config.text_config, model.config.vision_config)
    assert [part._attn_implementation for part in parts] == ["eager", "sdpa"]
    assert_untouched(model, before)
