"""Models that cast to a narrower dtype in the middle, or are in half precision, are differentiated without."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as nnf

import hessianlens as hl
from hessianlens.models.adapters.precision import WidenedPrecision
from tests.curvature.networks import LENGTH, VOCAB, scrambled, tokens
from tests.oracles.autograd import DenseHessian
from tests.oracles.comparison import assert_same
from tests.oracles.network import PARTS, dense_network_hessian, float64_by_another_name
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


@pytest.mark.expensive
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
        op = make_operator(problem, list(places), method="hvp")
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
    with WidenedPrecision(DOUBLE):
        assert CASTS[name](torch.ones(3, 3, dtype=DOUBLE)).dtype == DOUBLE


NARROW = torch.ones(3, 3, dtype=torch.bfloat16)
HALF_CASTS: dict[str, Callable[[Tensor], Tensor]] = {
    "half": lambda x: x.half(),
    "bfloat16": lambda x: x.bfloat16(),
    "to": lambda x: x.to(torch.float16),
    "to, by keyword": lambda x: x.to(dtype=torch.bfloat16),
    "type": lambda x: x.type(torch.bfloat16),
    "type_as": lambda x: x.type_as(NARROW),
    "to another tensor's": lambda x: x.to(NARROW),
    "softmax": lambda x: nnf.softmax(x, dim=-1, dtype=torch.float16),
    "linear with half": lambda x: nnf.linear(x, NARROW),
    "matmul with half": lambda x: NARROW @ x,
}


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("name", HALF_CASTS)
def test_what_does_not_become_half(name: str, dtype: torch.dtype) -> None:
    x = torch.full((3, 3), 1 + 2.0**-20, dtype=dtype)
    with WidenedPrecision(dtype):
        found = HALF_CASTS[name](x)
    assert found.dtype == dtype
    assert not torch.equal(found, found.bfloat16().to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_autocast_has_no_effect(dtype: torch.dtype) -> None:
    x = randn(3, 3).to(dtype)
    with WidenedPrecision(dtype) as seen, torch.autocast("cpu", dtype=torch.bfloat16):
        found = x @ x
    assert torch.equal(found, x @ x)
    assert seen.asked == {torch.bfloat16}


def test_numbers_that_only_float64_holds_are_made_in_it() -> None:
    """A mask with the least number of the scores' precision (XGLM), where torch would take float32."""
    least = torch.finfo(DOUBLE).min
    with WidenedPrecision(DOUBLE):
        assert torch.full((), least).item() == torch.tensor(least).item() == least
        mask = torch.tensor([0.0, 1.0])  # CANINE: zero times what float32 takes for infinity
        assert torch.equal(mask * least, torch.tensor([-0.0, least], dtype=DOUBLE))
        assert torch.equal(mask.long() * least, torch.tensor([-0.0, least], dtype=DOUBLE))  # Splinter
        assert torch.equal(mask.masked_fill(mask > 0, least), torch.tensor([0.0, least], dtype=DOUBLE))
        assert torch.full((), torch.finfo(torch.float32).min).dtype == torch.tensor(-torch.inf).dtype == torch.float32


def test_experts_run_in_float64_and_stay_grouped_for_the_user() -> None:
    """Grouped kernels, which transformers takes by default, know no float64."""
    model = causal("Mixtral", num_local_experts=3, num_experts_per_tok=2)
    model.set_experts_implementation("grouped_mm")
    problem = hl.problem(model, {"input_ids": tokens()})
    assert any("experts run one after the other" in note for note in problem.notes)
    plain = copy.deepcopy(model).eval()
    plain.set_experts_implementation("eager")
    with float64_by_another_name():
        expected = plain(input_ids=tokens(), labels=tokens()).loss.detach()
    assert_same(problem.total_loss(), expected, "loss", 1e-12)
    assert model.config._experts_implementation == "grouped_mm"


def test_what_is_left_as_it_is() -> None:
    """The narrow itself, whole numbers and wider numbers: buckets of relative positions depend on float32 rounding."""
    with WidenedPrecision(DOUBLE) as seen:
        assert torch.ones(2).to(torch.float32).dtype == torch.float32
        assert torch.arange(LENGTH).float().dtype == torch.float32
        assert torch.zeros(2, dtype=torch.float32).dtype == torch.float32
        assert torch.ones(2, dtype=DOUBLE).to(torch.long).dtype == torch.long
    with WidenedPrecision(torch.float32) as single:
        assert torch.ones(2).to(torch.float32).dtype == torch.float32
        assert torch.ones(2).double().dtype == DOUBLE
    assert seen.asked == single.asked == set()


# --- weights in half precision ---------------------------------------------------------------------------------------


class Casting(nn.Module):
    """A network that computes its first layer in half precision, one way or another."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.first, self.last = how, nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "autocast":
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.last(self.first(x).tanh())
        if self.how == "half":
            hidden = nnf.linear(x.half(), self.first.weight.half(), self.first.bias.half())
            return self.last(hidden.tanh().float())
        if self.how == "bfloat16":
            kind = torch.bfloat16
            hidden = nnf.linear(x.to(kind), self.first.weight.to(kind), self.first.bias.to(kind))
            return self.last(hidden.tanh().to(x.dtype))
        return self.last(self.first(x).tanh())


def casting(how: str) -> nn.Module:
    torch.manual_seed(0)
    return Casting(how)


PAIR = (randn(5, 3), torch.tensor([0, 1, 1, 0, 1]))


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("how, kind", [("autocast", "bfloat16"), ("half", "float16"), ("bfloat16", "bfloat16")])
def test_a_model_that_casts_to_half_is_not_rounded(how: str, kind: str, dtype: torch.dtype) -> None:
    problem = hl.problem(casting(how), PAIR, "cross_entropy", dtype=dtype)
    plain = hl.problem(casting("not at all"), PAIR, "cross_entropy", dtype=dtype)
    found, expected = (hl.hessian(p, "first.weight") @ torch.eye(12, dtype=dtype) for p in (problem, plain))
    assert_same(found, expected, how, 20 * torch.finfo(dtype).eps)
    name = str(dtype).removeprefix("torch.")
    narrow = [note for note in problem.notes if "casts some steps" in note]
    assert len(narrow) == 1 and kind in narrow[0] and f"they run in {name} while differentiating" in narrow[0]


@pytest.mark.long
@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_weights_in_half_precision_are_computed_with_in_single(kind: torch.dtype) -> None:
    model = hl.models.Transformer(layers=1, d_model=12, d_mlp=16, vocab=12, context=8, seed=0).to(kind)
    data = {"tokens": torch.randint(12, (3, 8), generator=torch.Generator().manual_seed(0))}

    def loss(out: Tensor, _: object) -> Tensor:
        return out.square().mean()

    problem, wide = hl.problem(model, data, loss), hl.problem(copy.deepcopy(model).float(), data, loss)
    name = str(kind).removeprefix("torch.")
    note = f"weights are {name}: derivatives are computed in float32 of the rounded weights"
    assert problem.dtype == torch.float32 and note in problem.notes and note not in wide.notes
    assert next(model.parameters()).dtype == kind
    for method in ("hvp", "auto"):
        blocks = ["layer0.attn.q"]
        op, expected = (hl.hessian(p, blocks, method=method) for p in (problem, wide))
        eye = torch.eye(op.shape[1])
        assert_same(op @ eye, expected @ eye, method, 1e-6)
    norms, expected = (hl.block_norms(p, "layer0.attn.*") for p in (problem, wide))
    for key in norms:
        assert norms[key].value == pytest.approx(expected[key].value, rel=1e-5, abs=1e-12)


def test_a_hugging_face_model_in_half_precision() -> None:
    """Its norms cast to float32 and back to the dtype of what came in."""
    model = causal("Llama").bfloat16()
    problem = hl.problem(model, BATCH, "cross_entropy")
    wide = hl.problem(copy.deepcopy(model).float(), BATCH, "cross_entropy")
    assert any(note.startswith("weights are bfloat16: derivatives are computed in float32") for note in problem.notes)
    assert problem.forward(problem.params, problem.data[0]).dtype == torch.float32
    found, expected = (hl.hessian(p, "layer0.attn.k", method="hvp") for p in (problem, wide))
    eye = torch.eye(found.shape[1])
    assert_same(found @ eye, expected @ eye, "hessian", 1e-6)


def test_half_precision_in_double() -> None:
    model = nn.Linear(3, 2).bfloat16()
    problem = hl.problem(model, PAIR, "cross_entropy", dtype=DOUBLE)
    assert "weights are bfloat16: derivatives are computed in float64 of the rounded weights" in problem.notes
    assert problem.data[0][0].dtype == DOUBLE


@pytest.mark.parametrize("kinds, expected", [
    ((torch.bfloat16, torch.float32), torch.float32),
    ((torch.float32, DOUBLE), DOUBLE),
    ((torch.float16, torch.bfloat16), torch.float32),
])  # fmt: skip
def test_mixed_weights_are_computed_with_in_the_widest(kinds: tuple[torch.dtype, ...], expected: torch.dtype) -> None:
    model = nn.Sequential(*(nn.Linear(3, 3, dtype=kind) for kind in kinds))
    problem = hl.problem(model, PAIR, "cross_entropy")
    assert {p.dtype for p in problem.params.values()} == {expected}
    first, second = sorted(str(kind).removeprefix("torch.") for kind in kinds)
    assert any(note.startswith(f"weights are {first} and {second}: derivatives") for note in problem.notes)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, "float64"])
def test_no_derivatives_in_half_precision(dtype: object) -> None:
    with pytest.raises(hl.InputError, match=r"dtype: got .*, expected torch.float32 or torch.float64"):
        hl.problem(nn.Linear(3, 2), PAIR, "cross_entropy", dtype=dtype)
    with pytest.raises(hl.InputError, match=r"dtype: got .*, expected torch.float32 or torch.float64"):
        hl.problem(nn.Linear(3, 2), PAIR, "cross_entropy").to(dtype)
