"""Models that cast to float32 in the middle are differentiated in float64, and only where float64 was asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as nnf

import hessianlens as hl
from hessianlens.models.adapters.precision import Doubles
from tests.curvature.networks import LENGTH, VOCAB, scrambled, tokens
from tests.oracles.autograd import DenseHessian
from tests.oracles.comparison import assert_same
from tests.oracles.network import PARTS, dense_network_hessian
from tests.variants import DOUBLE, randn

SIZES = {"vocab_size": VOCAB, "hidden_size": 4, "intermediate_size": 3, "num_hidden_layers": 1}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 8}
NOTE = "the model casts some steps to float32: they run in float64 while differentiating"


def causal(kind: str, **options) -> nn.Module:
    config = getattr(transformers, f"{kind}Config")(**SIZES, **HEADS, pad_token_id=0, **options)
    return scrambled(getattr(transformers, f"{kind}ForCausalLM")(config).to(DOUBLE))


class T5Tagger(nn.Module):
    """An encoder of T5's kind with classes at every token."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"vocab_size": VOCAB, "d_model": 4, "d_kv": 2, "d_ff": 3, "num_layers": 1, "num_heads": 2}
        self.encoder = transformers.T5EncoderModel(transformers.T5Config(**sizes, dropout_rate=0.1))
        self.head = nn.Linear(4, VOCAB)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.encoder(input_ids).last_hidden_state)


_LLAMA = {
    "layer0.attn.k": "model.layers.0.self_attn.k_proj.weight",
    "layer0.norm1": "model.layers.0.input_layernorm.weight",
    "norm_final": "model.norm.weight",
}
BATCH = {"input_ids": tokens(), "labels": tokens(seed=1)}
_T5 = "encoder.encoder.block.0.layer."
CASES: dict[str, tuple[Callable[[], nn.Module], dict[str, str]]] = {
    "Llama": (lambda: causal("Llama"), _LLAMA),
    "Mistral": (lambda: causal("Mistral", sliding_window=2), _LLAMA),
    "Qwen2": (lambda: causal("Qwen2"), _LLAMA),
    "Gemma": (lambda: causal("Gemma", head_dim=2), _LLAMA),
    "T5": (
        lambda: scrambled(T5Tagger().to(DOUBLE)),
        {
            "layer0.attn.q": _T5 + "0.SelfAttention.q.weight",
            "layer0.norm1": _T5 + "0.layer_norm.weight",
            "layer0.mlp.in": _T5 + "1.DenseReluDense.wi.weight",
        },
    ),
}


def shifted(outputs: list[Tensor], batches: list[dict[str, Tensor]]) -> Tensor:
    return nnf.cross_entropy(outputs[0][:, :-1].flatten(0, 1), batches[0]["labels"][:, 1:].flatten())


def aligned(outputs: list[Tensor], batches: list[dict[str, Tensor]]) -> Tensor:
    return nnf.cross_entropy(outputs[0].flatten(0, 1), batches[0]["labels"].flatten())


@cache
def dense(name: str) -> DenseHessian:
    make, places = CASES[name]
    model = make()
    pieces = {block: (place, (slice(None),) * model.get_parameter(place).ndim) for block, place in places.items()}
    return dense_network_hessian(model, [BATCH], aligned if name == "T5" else shifted, pieces)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", CASES)
def test_products_equal_dense_derivatives_in_float64(name: str, attention: str) -> None:
    make, places = CASES[name]
    model = make()
    if isinstance(model, transformers.PreTrainedModel):
        model.set_attn_implementation(attention)
    problem = hl.problem(model, BATCH, "cross_entropy")
    assert NOTE in problem.notes
    for part, make_operator in {"full": hl.hessian, "ggn": hl.ggn, "functional": hl.functional}.items():
        op = make_operator(problem, list(places), method="products")
        assert_same(op @ torch.eye(op.shape[1], dtype=DOUBLE), getattr(dense(name), PARTS[part]), part, 1e-9)


def test_without_the_scope_float32_shows() -> None:
    """The agreement above is not for want of float32 steps: the same model by itself is far from float64."""
    model, ids = causal("Llama").eval(), {"input_ids": tokens()}
    problem = hl.problem(model, ids)
    difference = problem.forward(problem.params, ids) - model(**ids).logits
    assert 1e-9 < float(difference.detach().abs().max()) < 1e-4


def test_the_model_is_not_changed_by_it() -> None:
    model, ids = causal("Llama").eval(), {"input_ids": tokens()}
    before = model(**ids).logits
    problem = hl.problem(model, ids)
    problem.total_loss()
    assert torch.equal(model(**ids).logits, before)
    assert torch.ones(1, dtype=DOUBLE).float().dtype == torch.float32


def test_a_float32_problem_keeps_the_casts_of_its_model() -> None:
    model = causal("Llama").float()
    problem = hl.problem(model, {"input_ids": tokens()})
    assert NOTE not in problem.notes
    assert problem.forward(problem.params, problem.data[0]).dtype == torch.float32


def test_a_problem_that_moves_to_float64_is_float64_throughout() -> None:
    model = causal("Llama").float()
    moved = hl.problem(model, {"input_ids": tokens()}).to(DOUBLE)
    precise = hl.problem(model, {"input_ids": tokens()}, dtype=DOUBLE)
    assert_same(moved.total_loss(), precise.total_loss(), "total loss", 1e-14)


def test_a_function_as_loss_is_float64_too() -> None:
    model = nn.Linear(3, 2, dtype=DOUBLE)
    x = randn(4, 3)
    problem = hl.problem(model, x, lambda out, batch: out.float().pow(2).mean())
    assert_same(problem.total_loss(), model(x).detach().pow(2).mean(), "loss", 1e-14)


# --- the rule itself -------------------------------------------------------------------------------------------------

CASTS: dict[str, Callable[[Tensor], Tensor]] = {
    "to": lambda x: x.to(torch.float32),
    "to, by keyword": lambda x: x.to(dtype=torch.float32),
    "to a device and dtype": lambda x: x.to("cpu", torch.float32),
    "float": lambda x: x.float(),
    "type": lambda x: x.type(torch.float32),
    "softmax": lambda x: nnf.softmax(x, dim=-1, dtype=torch.float32),
    "torch.softmax": lambda x: torch.softmax(x, -1, dtype=torch.float32),
    "sum": lambda x: x.sum(-1, dtype=torch.float32),
    "matmul with float32": lambda x: x @ torch.ones(3, 3),
    "float32 matmul with it": lambda x: torch.ones(3, 3) @ x,
    "einsum with float32": lambda x: torch.einsum("ij,jk->ik", x, torch.ones(3, 3)),
}


@pytest.mark.parametrize("name", CASTS)
def test_what_stays_float64(name: str) -> None:
    with Doubles():
        assert CASTS[name](torch.ones(3, 3, dtype=DOUBLE)).dtype == DOUBLE


def test_what_is_left_as_it_is() -> None:
    """Float32 itself, half precision and whole numbers: buckets of relative positions depend on float32 rounding."""
    with Doubles() as seen:
        assert torch.ones(2).to(torch.float32).dtype == torch.float32
        assert torch.arange(LENGTH).float().dtype == torch.float32
        assert torch.zeros(2, dtype=torch.float32).dtype == torch.float32
        assert torch.ones(2, dtype=DOUBLE).half().dtype == torch.float16
        assert torch.ones(2, dtype=DOUBLE).to(torch.long).dtype == torch.long
    assert seen.widened == 0
