"""The last attention layer of LLaMA-like models: the closed form equals products by double backward."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import hessianlens as hl
from hessianlens.network.last_attention.exact import exact_attention
from hessianlens.network.sites.llama import llama_site
from hessianlens.network.sites.site import Storage
from tests.oracles.comparison import assert_same
from tests.variants import randn

transformers = pytest.importorskip("transformers")

DOUBLE = torch.float64
VOCABULARY = 7
PARTS = {"full": hl.hessian, "ggn": hl.ggn, "functional": hl.functional}
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 8,
    "intermediate_size": 6,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16,
}

MODELS = {
    "grouped": ("Llama", {}),
    "one key head a query head": ("Llama", {"num_attention_heads": 2}),
    "biases everywhere, wide heads": ("Llama", {"attention_bias": True, "num_attention_heads": 2, "head_dim": 6}),
    "biases of q, k and v": ("Qwen2", {}),
    "window wider than the text": ("Mistral", {}),
    "window": ("Mistral", {"sliding_window": 2}),
}


def language_model(kind: str, exact_norms: bool = True, **changes: object) -> nn.Module:
    """A tiny model in training mode with weights large enough for its attention to be far from uniform."""
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, "num_key_value_heads": 2, **changes})
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    return _with_exact_norms(model).train() if exact_norms else model.train()


def _with_exact_norms(model: nn.Module) -> nn.Module:
    """Norms in the model's own precision: those of these models compute in float32 whatever it is."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__.endswith("RMSNorm"):
                norm = nn.RMSNorm(child.weight.shape, eps=child.variance_epsilon)
                norm.weight = child.weight
                setattr(parent, name, norm)
    return model


def token_ids(sequences: int = 2, length: int = 4) -> Tensor:
    return torch.randint(VOCABULARY, (sequences, length), generator=torch.Generator().manual_seed(2))


def assert_exact(problem, names: list[str], relative: float = 1e-9, parts: tuple[str, ...] = tuple(PARTS)) -> None:
    found = exact_attention(problem)
    assert found is not None and found.covers([problem.blocks[name] for name in names])
    for part, (row, column) in itertools.product(parts, itertools.combinations_with_replacement(names, 2)):
        exact = found.operator(part, problem.blocks[row], problem.blocks[column])
        products = PARTS[part](problem, row, column, method="products")
        expected = products @ torch.eye(products.shape[1], dtype=DOUBLE)
        scale = max(float(expected.norm()), 1e-8)
        error = float((exact.to_dense() - expected).norm())
        assert error <= relative * scale, f"{part}[{row}, {column}]: relative error {error / scale:.1e}"
        assert float(exact.frobenius_norm()) == pytest.approx(float(expected.norm()), rel=10 * relative, abs=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_every_pair_and_part(name: str) -> None:
    kind, changes = MODELS[name]
    model = language_model(kind, **changes)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    problem = hl.problem(model, {"input_ids": token_ids()}, dtype=DOUBLE)
    assert_exact(problem, [f"layer1.attn.{x}" for x in "qkvo"])
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.model.layers[-1].modules())


def test_biases() -> None:
    problem = hl.problem(language_model("Qwen2"), {"input_ids": token_ids()}, dtype=DOUBLE)
    names = ["layer1.attn.q.bias", "layer1.attn.k.bias", "layer1.attn.v.bias", "layer1.attn.k"]
    assert set(names) <= set(problem.blocks)
    assert_exact(problem, names, parts=("full",))


def test_padding_and_several_batches() -> None:
    ids = token_ids(3)
    mask = torch.ones_like(ids)
    mask[1, -2:] = 0
    labels = ids.masked_fill(mask == 0, -100)
    batches = [
        {"input_ids": ids[k], "attention_mask": mask[k], "labels": labels[k]} for k in (slice(0, 2), slice(2, 3))
    ]
    problem = hl.problem(language_model("Llama"), batches, dtype=DOUBLE)
    assert_exact(problem, ["layer1.attn.q", "layer1.attn.k"], parts=("full",))


def test_positions_given_by_the_user() -> None:
    ids = token_ids()
    positions = torch.tensor([[0, 1, 2, 3], [5, 6, 9, 10]])
    problem = hl.problem(language_model("Llama"), {"input_ids": ids, "position_ids": positions}, dtype=DOUBLE)
    assert_exact(problem, ["layer1.attn.q", "layer1.attn.k"], parts=("full",))


@pytest.mark.parametrize("kind", ["Llama", "Mistral", "Qwen2"])
def test_models_as_they_come(kind: str) -> None:
    """Their norms ask for float32; both ways compute them in float64."""
    problem = hl.problem(language_model(kind, exact_norms=False), {"input_ids": token_ids()}, dtype=DOUBLE)
    assert_exact(problem, ["layer1.attn.q", "layer1.attn.v"], parts=("full",))


@pytest.mark.parametrize(("kind", "changes"), [("Qwen3", {"head_dim": 4}), ("Gemma2", {"head_dim": 4})])
def test_what_the_closed_form_of_attention_does_not_know_is_met_at_its_linear_maps(
    kind: str, changes: dict[str, object]
) -> None:
    """Norms of queries and keys; soft-capped scores."""
    if not hasattr(transformers, f"{kind}Config"):
        pytest.skip(f"no {kind} in this version of transformers")
    model = language_model(kind, exact_norms=False, **changes)
    problem = hl.problem(model, {"input_ids": token_ids()}, dtype=DOUBLE)
    assert exact_attention(problem) is None
    for block in ("layer1.attn.q", "layer1.attn.k"):
        op = hl.hessian(problem, block, method="exact")
        V = randn(op.shape[1], 2)
        assert_same(op @ V, hl.hessian(problem, block, method="products") @ V, block, 1e-9)


@pytest.mark.parametrize("part", PARTS)
def test_asked_for_by_name(part: str) -> None:
    problem = hl.problem(language_model("Llama"), {"input_ids": token_ids()}, dtype=DOUBLE)
    exact = PARTS[part](problem, "layer1.attn.q", "layer1.attn.k", method="exact")
    v = torch.randn(exact.shape[1], generator=torch.Generator().manual_seed(3), dtype=DOUBLE)
    expected = PARTS[part](problem, "layer1.attn.q", "layer1.attn.k", method="products") @ v
    assert float((exact @ v - expected).norm()) <= 1e-9 * float(expected.norm())


def test_lower_layers_are_left_to_products() -> None:
    problem = hl.problem(language_model("Llama"), {"input_ids": token_ids()}, dtype=DOUBLE)
    found = exact_attention(problem)
    assert found is not None and found.prefix == "layer1.attn"
    assert not found.covers([problem.blocks["layer0.attn.q"]])


def test_shared_heads_are_cut_and_repeated() -> None:
    storage = Storage(4, transposed=True, kv_heads=2)
    assert [tuple(w.shape) for w in storage.by_head("v", torch.zeros(6, 5))] == [(5, 3)] * 2
    assert [tuple(w.shape) for w in storage.by_head("o", torch.zeros(5, 12))] == [(3, 5)] * 4
    assert [tuple(b.shape) for b in storage.bias_by_head("k", torch.zeros(6))] == [(1, 3)] * 2
    assert [list(storage.sharing("k", g)) for g in range(2)] == [[0, 1], [2, 3]]


def _attention(**changes: object) -> SimpleNamespace:
    sizes = {"q": (8, 8), "k": (8, 4), "v": (8, 4), "o": (8, 8)}
    linear = {f"{name}_proj": nn.Linear(*size) for name, size in sizes.items()}
    return SimpleNamespace(**{"head_dim": 2, "scaling": 2**-0.5, **linear, **changes})


@pytest.mark.parametrize(
    "changes",
    [{"head_dim": 3}, {"head_dim": None}, {"v_proj": nn.Linear(8, 8)}, {"o_proj": nn.Linear(4, 8)}, {"q_proj": None}],
)
def test_other_modules_are_left_alone(changes: dict[str, object]) -> None:
    class Layer(nn.Module):
        self_attn = _attention(**changes)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Layer()])

    assert llama_site(Model(), token_ids()) is None
    assert llama_site(nn.Linear(2, 2), token_ids()) is None
