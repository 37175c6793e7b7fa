"""The check of second derivatives: no correct model is accused; it runs once, with the first measurement, or never."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import transformers
from torch import Tensor, nn

import hessianlens as hl
from hessianlens.curvature import verify
from hessianlens.problems import Block, Problem
from tests.curvature import hugging_face, networks
from tests.curvature.networks import VOCAB
from tests.curvature.refused import Applied, CoarseTwiceTanh, DetachedTanh, OnceTanh, TwiceTanh, pairs, stack
from tests.curvature.registry import CASES
from tests.variants import DOUBLE, randn


def _verify_all(problem: Problem) -> None:
    verify(problem, [block.parameter for block in problem.blocks.values()])


# --- correct models --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [DOUBLE, torch.float32], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_no_model_of_the_registry_is_accused(name: str, dtype: torch.dtype) -> None:
    _verify_all(CASES[name].problem(dtype=dtype))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "squared relu": lambda x: x.relu().square(),
    "leaky relu": nn.functional.leaky_relu,
    "hardtanh": nn.functional.hardtanh,
    "abs": torch.abs,
    "max-pool": lambda x: nn.functional.max_pool1d(x, 3, 1, 1),
    "top half": lambda x: x * (x >= x.median(-1, keepdim=True).values),
    "where": lambda x: torch.where(x > 0, x, 0.1 * x.square()),
    "through float32": lambda x: x.float().tanh().to(x.dtype),
    "Function": TwiceTanh.apply,
    "Function in float32": CoarseTwiceTanh.apply,
}


class Elementwise(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def _perceptron(name: str, width: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    act = Elementwise(ACTIVATIONS[name])
    return nn.Sequential(nn.Linear(8, width), act, nn.Linear(width, width), act, nn.Linear(width, 3)).to(DOUBLE)


def _vectors(seed: int, length: int = 5) -> tuple[Tensor, Tensor]:
    return randn(2, length, 8, seed=seed), torch.randint(3, (2, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_kinks_and_steps_in_float32_accuse_nobody(name: str, seed: int) -> None:
    for width in (2, 24):
        for dtype in (DOUBLE, torch.float32):
            _verify_all(hl.problem(_perceptron(name, width, seed), _vectors(seed), "cross_entropy", dtype=dtype))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["relu", "abs"])
def test_tens_of_thousands_of_kinks_accuse_nobody(name: str, seed: int) -> None:
    _verify_all(hl.problem(_perceptron(name, 600, seed), _vectors(seed, length=32), "cross_entropy"))


@pytest.mark.parametrize("name", ["relu", "squared relu", "leaky relu"])
@pytest.mark.parametrize("seed", range(3))
def test_kinks_right_where_the_model_is_accuse_nobody(name: str, seed: int) -> None:
    """Black pixels and biases that are still zero: units exactly on their kink, and nothing around them is smooth."""
    model, (inputs, targets) = _perceptron(name, 16, seed), _vectors(seed)
    nn.init.zeros_(model[0].bias)
    inputs[:, 2:] = 0
    _verify_all(hl.problem(model, (inputs, targets), "cross_entropy"))


@pytest.mark.parametrize("factor", [0.0, 1e-8, 1e-3, 10.0, 100.0])
@pytest.mark.parametrize("norm", [None, "pre", "post"])
def test_flat_and_saturated_networks_are_not_accused(norm: str | None, factor: float) -> None:
    model = networks.toy(layers=2, norm=norm)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)
    data = (networks.tokens(2), networks.tokens(2, seed=1))
    for dtype in (DOUBLE, torch.float32):
        _verify_all(hl.problem(model, data, "cross_entropy", dtype=dtype))


@pytest.mark.parametrize("spread", [1e-3, 1e-6, 1e-8, 1e-10, 1e-14])
def test_a_norm_of_almost_equal_numbers_is_not_accused(spread: float) -> None:
    class AlmostEqual(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 1 + spread * x

    for seed in range(3):
        torch.manual_seed(seed)
        layers = (nn.Linear(8, 6), AlmostEqual(), nn.LayerNorm(6, eps=1e-12), nn.Linear(6, 3))
        _verify_all(hl.problem(nn.Sequential(*layers).to(DOUBLE), _vectors(seed), "cross_entropy"))


LOSSES: dict[str, Callable[[Tensor, object], Tensor]] = {
    "linear": lambda outputs, _: outputs.sum(),
    "absolute": lambda outputs, _: outputs.abs().sum(),
    "zero": lambda outputs, _: 0 * outputs.sum(),
    "constant": lambda outputs, _: torch.ones((), dtype=outputs.dtype),
    "tiny": lambda outputs, _: 1e-30 * outputs.exp().sum(),
    "far from zero": lambda outputs, _: 1e9 + outputs.exp().sum(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_no_loss_is_accused(name: str) -> None:
    problem = networks.toy_problem(data=networks.tokens(2), loss=LOSSES[name])
    _verify_all(problem)
    hl.block_norms(problem, ["layer0.attn.q", "layer0.mlp.in"], probes=2, method="probes")


def test_the_row_that_stands_for_padding_is_not_accused() -> None:
    """PyTorch leaves it out of the gradient, also where the same weights unembed."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(VOCAB, 4, padding_idx=0)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.embedding(tokens).sin() @ self.embedding.weight.T

    tokens = networks.tokens(2)
    assert bool((tokens[0] == 0).any())
    _verify_all(hl.problem(networks.scrambled(Tied().to(DOUBLE)), (tokens, tokens), "cross_entropy"))


class T5Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = {"d_model": 8, "d_kv": 4, "d_ff": 6, "num_layers": 2, "num_heads": 2, "vocab_size": VOCAB}
        self.encoder = transformers.T5EncoderModel(transformers.T5Config(**sizes))
        self.unembedding = nn.Linear(8, VOCAB)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.unembedding(self.encoder(input_ids=tokens).last_hidden_state)


def _opt() -> nn.Module:
    """ReLU, and biases that are zero."""
    sizes = {"hidden_size": 8, "word_embed_proj_dim": 8, "ffn_dim": 12, "num_hidden_layers": 2}
    config = transformers.OPTConfig(
        **sizes, num_attention_heads=2, vocab_size=VOCAB, max_position_embeddings=8, pad_token_id=1
    )
    return transformers.OPTForCausalLM(config)


FRESH: dict[str, tuple[Callable[[], nn.Module], object]] = {
    "T5 encoder": (T5Encoder, (networks.tokens(2), networks.tokens(2, seed=1))),
    "OPT": (_opt, {"input_ids": networks.tokens(2)}),
    "BERT": (lambda: transformers.BertForMaskedLM(hugging_face.bert_config()), {"input_ids": networks.tokens(2)}),
    "GPT-2": (
        lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=8, n_layer=2, n_head=2, vocab_size=VOCAB)),
        {"input_ids": networks.tokens(2)},
    ),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", FRESH)
def test_fresh_models_of_hugging_face_are_not_accused(name: str, seed: int) -> None:
    make, data = FRESH[name]
    torch.manual_seed(seed)
    model = make()
    if isinstance(data, dict) and name == "BERT":
        data = {**data, "labels": networks.tokens(2, seed=3)}
    for dtype in (torch.float32, DOUBLE):
        _verify_all(hl.problem(model, data, "cross_entropy" if name == "T5 encoder" else None, dtype=dtype))


# --- where it cannot look --------------------------------------------------------------------------------------------


class OnlySingle(Applied):
    """A kernel that knows float32 only, as most do; in float64 it is refused, or replaced by a plain one."""

    def __init__(self, function: type, replaced: bool) -> None:
        super().__init__(function)
        self.replaced = replaced

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float32:
            return super().forward(x)
        if self.replaced:
            return x.tanh()
        raise RuntimeError("expected scalar type Float")


@pytest.mark.parametrize("replaced", [True, False])
def test_a_kernel_for_single_precision_is_looked_at_in_single_precision(replaced: bool) -> None:
    for function in (DetachedTanh, TwiceTanh):
        model = stack(OnlySingle(function, replaced)).to(torch.float32)
        problem = hl.problem(model, pairs(), "cross_entropy")
        if function is TwiceTanh:
            _verify_all(problem)
            continue
        with pytest.raises(hl.InputError, match=r"model: layers\.1\.act \(OnlySingle\) hides part"):
            _verify_all(problem)


def test_half_precision_has_no_differences_to_accuse_by() -> None:
    class Half(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.to(torch.bfloat16).tanh().to(x.dtype)

    _verify_all(hl.problem(stack(Half()), pairs(), "cross_entropy"))


def test_a_loss_that_needs_several_sequences_gets_them() -> None:
    """One sequence alone has no loss in it: the check would see nothing."""

    def contrast(outputs: Tensor, _: object) -> Tensor:
        flat = outputs.flatten(1)
        return nn.functional.cross_entropy(flat @ flat.T, torch.arange(len(flat)))

    with pytest.raises(hl.InputError, match=r"layers\.1\.act \(Applied\) hides part"):
        _verify_all(hl.problem(stack(Applied(DetachedTanh)), pairs(), contrast))
    _verify_all(hl.problem(stack(), pairs(), contrast))


def test_a_model_that_needs_its_whole_batch_gets_it() -> None:
    class Whole(nn.Module):
        def __init__(self, act: nn.Module) -> None:
            super().__init__()
            self.inner = stack(act)

        def forward(self, tokens: Tensor) -> Tensor:
            if len(tokens) != 3:
                raise IndexError("expected three sequences")
            return self.inner(tokens)

    with pytest.raises(hl.InputError, match=r"inner\.layers\.1\.act \(Applied\) hides part"):
        _verify_all(hl.problem(Whole(Applied(DetachedTanh)), pairs(), "cross_entropy"))


@pytest.mark.parametrize("function", [DetachedTanh, OnceTanh])
def test_a_problem_without_modules_is_refused_by_its_parameters(function: type) -> None:
    """Nothing to name but the weights on whose way it lies."""
    weight = randn(3, 2)

    def forward(params, batch) -> Tensor:
        return function.apply(batch @ params["weight"])

    problem = Problem(
        forward,
        lambda outputs, _: outputs.square().sum(),
        {"weight": weight},
        {"weight": Block.of("weight", "weight", weight)},
        [randn(4, 3, seed=1)],
    )
    with pytest.raises(
        hl.InputError, match=r"^model: a step (between weight and the loss hides|outside of its modules)"
    ):
        _verify_all(problem)


def test_a_parameter_that_is_detached_is_no_constant() -> None:
    """Its gradient is zero, that of the loss is not: zero curvature would be as wrong."""

    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(8, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                hidden = self.inner(x)
            return self.outer(hidden.tanh())

    problem = hl.problem(Frozen().to(DOUBLE), _vectors(0), "cross_entropy")
    verify(problem, ["outer.weight"])
    with pytest.raises(
        hl.InputError, match=r"Frozen.* hides part of its derivative .*the loss changes by .*autograd 0\)"
    ):
        verify(problem, ["inner.weight"])


# --- once, lazily, or not at all -------------------------------------------------------------------------------------


class Counted:
    """A problem that counts how often its model runs, and on how many sequences; `twisted` by a Function at its end."""

    def __init__(self, twisted: bool = False, **options) -> None:
        self._twisted = twisted
        made = networks.toy_problem(data=(networks.tokens(6), networks.tokens(6, seed=1)), given=options)
        self.sizes: list[int] = []
        self.problem = replace(made, forward=self._forward)
        self._inner = made.forward

    def _forward(self, params, batch) -> Tensor:
        self.sizes.append(len(batch[0]))
        outputs = self._inner(params, batch)
        return TwiceTanh.apply(outputs) if self._twisted else outputs

    def product(self, rows: str, cols: str | None = None) -> None:
        before = len(self.sizes)
        op = hl.hessian(self.problem, rows, cols, method="hvp")
        assert len(self.sizes) == before
        op @ randn(op.shape[1])


def _ran(counted: Counted) -> list[int]:
    found, counted.sizes[:] = list(counted.sizes), []
    return found


def test_the_check_takes_no_pass_of_its_own_where_every_step_is_pytorchs() -> None:
    counted = Counted()
    counted.product("layer0.*")
    counted.product("layer0.mlp.in")
    counted.product("layer0.mlp.in", "unembed")
    assert _ran(counted) == [6, 6, 6]


def test_the_check_runs_with_the_first_product_on_one_sequence_and_not_again() -> None:
    """Where a step is in doubt."""
    counted = Counted(twisted=True)
    counted.product("layer0.*")
    first = _ran(counted)
    assert first.count(6) == 1 and first.count(1) >= 2 and len(first) < 14
    counted.product("layer0.*")
    counted.product("layer0.mlp.in")
    counted.product("layer0.attn.q", "layer0.attn.v")
    assert _ran(counted) == [6, 6, 6]
    counted.product("layer0.mlp.in", "unembed")
    assert _ran(counted).count(1) >= 2


def test_the_check_can_be_turned_off() -> None:
    counted = Counted(verify=False)
    counted.product("layer0.*")
    assert _ran(counted) == [6]


def test_norms_of_blocks_are_checked_once() -> None:
    counted = Counted(twisted=True)
    hl.block_norms(counted.problem, ["layer0.mlp.in", "unembed"], probes=2, method="probes")
    first = _ran(counted)
    hl.block_norms(counted.problem, ["layer0.mlp.in"], probes=2, method="probes")
    assert first.count(1) > _ran(counted).count(1)


def test_what_was_wrong_is_remembered(monkeypatch) -> None:
    problem = hl.problem(stack(Applied(DetachedTanh)), pairs(), "cross_entropy")
    with pytest.raises(hl.InputError) as first:
        _verify_all(problem)
    monkeypatch.setattr("hessianlens.curvature.verification.representative_sequence", None)
    with pytest.raises(hl.InputError) as again:
        _verify_all(problem)
    assert str(first.value) == str(again.value)


def test_a_problem_is_not_kept_alive_by_what_is_remembered() -> None:
    from hessianlens.curvature.verification import _done

    problem = networks.toy_problem(data=(networks.tokens(2), networks.tokens(2)))
    verify(problem, ["W_U"])
    before = len(_done)
    del problem
    gc.collect()
    assert len(_done) < before


def test_the_model_is_left_as_it_was_also_when_it_is_refused() -> None:
    model = stack(Applied(DetachedTanh))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(hl.InputError):
        _verify_all(hl.problem(model, pairs(), "cross_entropy"))
    assert model.training and all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())
    assert not any(parameter.grad is not None for parameter in model.parameters())
