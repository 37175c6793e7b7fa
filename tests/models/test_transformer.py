"""The decoder is what its documentation says, part by part."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call, hessian, vmap

import hessianlens as hl
from hessianlens.models import Transformer
from hessianlens.models.block import MLP_ACTIVATIONS
from tests.oracles import comparison
from tests.variants import ALL_ACTIVATIONS, DOUBLE, randn

SMALL = {"d_model": 6, "d_mlp": 7, "vocab": 5, "context": 8, "dtype": DOUBLE, "embedding_std": 1.0}


def assert_same(found: Tensor, expected: Tensor, what: str = "", relative: float = comparison.RELATIVE) -> None:
    comparison.assert_same(found.detach(), expected.detach(), what, relative)


def tokens(batch: int = 3, length: int = 8, vocab: int = 5, seed: int = 0) -> Tensor:
    return torch.randint(vocab, (batch, length), generator=torch.Generator().manual_seed(seed))


def with_random_biases(model: Transformer) -> Transformer:
    """Every vector (bias, gain, shift) away from its initial value, so that a missing one shows."""
    with torch.no_grad():
        for k, parameter in enumerate(p for p in model.parameters() if p.ndim == 1):
            parameter += 0.5 * randn(*parameter.shape, seed=100 + k)
    return model


# --- an independent implementation: one sequence, one head and one row of scores at a time ---------------------------


def normalise(x: Tensor, w: dict[str, Tensor], name: str) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * w[f"{name}.weight"] + w[f"{name}.bias"]


def attend(x: Tensor, w: dict[str, Tensor], heads: int, causal: bool, temperature: float, linear: bool) -> Tensor:
    width, output = w["W_Q"].shape[1] // heads, w["b_O"].clone().expand(len(x), -1)
    for h in range(heads):
        own = slice(h * width, (h + 1) * width)
        Q, K, V = (x @ w[f"W_{n}"][:, own] + w[f"b_{n}"][own] for n in "QKV")
        rows = []
        for i in range(len(x)):
            seen = i + 1 if causal else len(x)
            scores = K[:seen] @ Q[i] / math.sqrt(width) / temperature
            rows.append((scores if linear else scores.softmax(0)) @ V[:seen])
        output = output + torch.stack(rows) @ w["W_O"][own]
    return output


def decoder(
    model: Transformer,
    sequence: Tensor,
    *,
    heads: int = 1,
    norm: str | None = None,
    residual_scale: float = 1.0,
    causal: bool = True,
    temperature: float = 1.0,
    linear: bool = False,
    mlp: bool = True,
) -> Tensor:
    w = model.state_dict()
    x = torch.stack([w["token_embedding"][t] + w["position_embedding"][p] for p, t in enumerate(sequence.tolist())])
    for k in range(len(model.blocks)):
        own = {name.removeprefix(f"blocks.{k}."): v for name, v in w.items() if name.startswith(f"blocks.{k}.")}
        attention = {name.removeprefix("attention."): v for name, v in own.items() if name.startswith("attention.")}
        entering = normalise(x, own, "norm1") if norm == "pre" else x
        x = residual_scale * x + attend(entering, attention, heads, causal, temperature, linear)
        x = normalise(x, own, "norm1") if norm == "post" else x
        if mlp:
            entering = normalise(x, own, "norm2") if norm == "pre" else x
            hidden = (entering @ own["mlp.W_in"] + own["mlp.b_in"]).clamp(min=0)
            x = x + hidden @ own["mlp.W_out"] + own["mlp.b_out"]
            x = normalise(x, own, "norm2") if norm == "post" else x
    x = normalise(x, w, "norm_final") if norm == "pre" else x
    return x @ w["W_U"] + w["b_U"]


CONFIGURATIONS = {
    "the paper's": {},
    "three blocks": {"layers": 3},
    "heads": {"heads": 3},
    "wide heads": {"heads": 2, "d_head": 5},
    "pre-norm": {"norm": "pre", "layers": 2},
    "post-norm": {"norm": "post", "layers": 2},
    "no skip around attention": {"residual_scale": 0.0},
    "half a skip, pre-norm": {"residual_scale": 0.5, "norm": "pre"},
    "attention only": {"mlp": False, "layers": 2},
    "attention only, post-norm": {"mlp": False, "norm": "post"},
    "bidirectional": {"causal": False},
    "cold": {"temperature": 0.3},
    "linear attention": {"attention": "linear", "layers": 2},
}


@pytest.mark.parametrize("options", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_logits_are_those_of_a_plain_implementation(options: dict) -> None:
    model = with_random_biases(Transformer(**SMALL, **options))
    plain = {name: value for name, value in options.items() if name not in ("layers", "d_head", "attention")}
    plain["linear"] = options.get("attention") == "linear"
    expected = torch.stack([decoder(model, sequence, **plain) for sequence in tokens()])
    assert_same(model(tokens()), expected)


@pytest.mark.parametrize("name", MLP_ACTIVATIONS)
def test_mlp_activations_by_name_and_by_function(name: str) -> None:
    named = Transformer(**SMALL, mlp_activation=name)
    given = Transformer(**SMALL, mlp_activation=MLP_ACTIVATIONS[name])
    assert torch.equal(named(tokens()), given(tokens()))


def test_the_mlp_uses_its_activation() -> None:
    model = Transformer(**SMALL, mlp_activation="gelu")
    mlp = model.blocks[0].mlp
    x = randn(4, 6)
    assert_same(mlp(x), torch.nn.functional.gelu(x @ mlp.W_in) @ mlp.W_out)


# --- initial weights -------------------------------------------------------------------------------------------------


def test_every_matrix_has_the_documented_spread_and_every_bias_is_zero() -> None:
    model = Transformer(layers=2, d_model=64, vocab=200, context=100, seed=5)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            assert not parameter.any(), name
        else:
            error = 4 / math.sqrt(2 * parameter.numel())
            assert parameter.std().item() == pytest.approx(0.8 / 8, rel=error), name
            assert abs(parameter.mean().item()) < 4 * 0.1 / math.sqrt(parameter.numel()), name


def test_no_two_matrices_share_their_draws() -> None:
    matrices = [p for p in Transformer(layers=2, d_model=8, seed=1).parameters() if p.ndim == 2]
    first = {round(m[0, 0].item(), 6) for m in matrices}
    assert len(first) == len(matrices) == 2 + 2 * 6 + 1


def test_one_seed_means_the_same_weights_in_every_dtype() -> None:
    double, single = (Transformer(layers=2, d_model=8, seed=7, dtype=d) for d in (torch.float64, torch.float32))
    for (name, p), (_, q) in zip(double.named_parameters(), single.named_parameters(), strict=True):
        assert torch.equal(p.to(torch.float32), q), name
    assert not torch.equal(double.W_U, Transformer(layers=2, d_model=8, seed=8, dtype=torch.float64).W_U)


def test_weights_leave_the_global_generator_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    Transformer(d_model=4, norm="pre").redraw_embeddings(1.0, seed=1)
    assert torch.equal(torch.rand(3), expected)


def test_the_embedding_scale_rescales_the_embeddings_only() -> None:
    one, ten = (Transformer(d_model=8, seed=2, embedding_std=s, dtype=DOUBLE) for s in (1.0, 10.0))
    for (name, p), (_, q) in zip(one.named_parameters(), ten.named_parameters(), strict=True):
        factor = 10.0 if "embedding" in name else 1.0
        assert_same(q, factor * p, name, relative=1e-15)
    assert Transformer(d_model=64, vocab=300, embedding_std=3.0).token_embedding.std().item() == pytest.approx(
        3, rel=0.03
    )


def test_redrawing_changes_the_embeddings_only_and_follows_its_seed() -> None:
    model, before = Transformer(d_model=8, seed=2), Transformer(d_model=8, seed=2).state_dict()
    assert model.redraw_embeddings(0.5, seed=9) is model
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]) == ("embedding" not in name), name
    again = Transformer(d_model=8, seed=3).redraw_embeddings(0.5, seed=9)
    assert torch.equal(model.token_embedding, again.token_embedding)
    assert torch.equal(model.redraw_embeddings(None, seed=2).position_embedding, before["position_embedding"])
    assert model.token_embedding.requires_grad


def test_parts_that_are_left_out_have_no_parameters() -> None:
    names = {name for name, _ in Transformer(d_model=4, mlp=False, attention_bias=False).named_parameters()}
    attention = {f"blocks.0.attention.W_{n}" for n in "QKVO"}
    assert names == {"token_embedding", "position_embedding", "W_U", "b_U", *attention}
    assert "norm_final.weight" in dict(Transformer(d_model=4, norm="pre").named_parameters())
    assert "norm_final.weight" not in dict(Transformer(d_model=4, norm="post").named_parameters())
    assert Transformer(d_model=4).blocks[0].mlp.W_in.shape == (4, 16)


# --- attention -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL_ACTIVATIONS)
def test_the_future_does_not_matter(name: str) -> None:
    model = Transformer(layers=2, heads=2, norm="pre", attention=ALL_ACTIVATIONS[name](), **SMALL)
    changed = tokens()
    changed[:, 5:] = (changed[:, 5:] + 1) % 5
    before, after = model(tokens()), model(changed)
    assert_same(after[:, :5], before[:, :5])
    assert (after[:, 5:] - before[:, 5:]).abs().max().item() > 1e-6


def test_without_a_causal_mask_it_does() -> None:
    model, changed = Transformer(causal=False, **SMALL), tokens()
    changed[:, -1] = (changed[:, -1] + 1) % 5
    assert (model(changed) - model(tokens()))[:, 0].abs().min().item() > 0


@pytest.mark.parametrize("name", ALL_ACTIVATIONS)
@pytest.mark.parametrize("query_key", ["dual", "single"])
def test_attention_is_that_of_the_layers(name: str, query_key: str) -> None:
    options = {"query_key": query_key, "temperature": 0.7, "heads": 2, "d_head": 4}
    attention = Transformer(attention=ALL_ACTIVATIONS[name](), **options, **SMALL).blocks[0].attention
    names = ("W_Q", "W_K", "W_V") if query_key == "dual" else ("W_QK", "W_V")
    pieces = zip(*(getattr(attention, name).detach().chunk(2, dim=1) for name in names), strict=True)
    kind = hl.SelfAttention if query_key == "dual" else hl.SingleMatrixAttention
    given = {"activation": attention.activation, "causal": True, "temperature": 0.7}
    X, layers = randn(3, 8, 6), [kind(*weights, **given) for weights in pieces]
    assert_same(attention.head_outputs(X), torch.cat([layer(X) for layer in layers], -1))
    through = [w.W_V @ W_O for w, W_O in zip(layers, attention.W_O.detach().chunk(2), strict=True)]
    whole = hl.MultiHeadAttention([w.with_parameters({"V": v}) for w, v in zip(layers, through, strict=True)])
    assert_same(attention(X), whole(X))


def test_a_layer_with_biases_is_the_layer_on_tokens_with_a_constant() -> None:
    attention = with_random_biases(Transformer(**SMALL)).blocks[0].attention
    Q, K, V = (torch.cat([getattr(attention, f"W_{n}"), getattr(attention, f"b_{n}")[None]]).detach() for n in "QKV")
    X = randn(3, 8, 6)
    extended = torch.cat([X, torch.ones(3, 8, 1, dtype=DOUBLE)], -1)
    assert_same(attention.head_outputs(X), hl.SelfAttention(Q, K, V, causal=True)(extended))


def test_one_query_key_matrix_equals_two() -> None:
    dual = with_random_biases(Transformer(heads=2, d_head=4, **SMALL))
    single = Transformer(heads=2, d_head=4, query_key="single", **SMALL)
    weights, source = dual.state_dict(), dual.blocks[0].attention
    with torch.no_grad():
        source.b_K.zero_()
    Q, K, b = source.W_Q.chunk(2, 1), source.W_K.chunk(2, 1), source.b_Q.chunk(2)
    kept = {name: w for name, w in weights.items() if name.rsplit("_")[-1] not in ("Q", "K")}
    kept["blocks.0.attention.W_QK"] = torch.cat([q @ k.T for q, k in zip(Q, K, strict=True)], 1) / 2
    kept["blocks.0.attention.b_QK"] = torch.cat([k @ c for k, c in zip(K, b, strict=True)]) / 2
    single.load_state_dict(kept)
    assert_same(single(tokens()), dual(tokens()))


def test_attention_weights_are_distributions_over_the_past() -> None:
    A = Transformer(heads=2, **SMALL).blocks[0].attention.weights(randn(3, 8, 6))
    assert A.shape == (3, 2, 8, 8)
    assert_same(A.sum(-1), torch.ones(3, 2, 8, dtype=DOUBLE))
    assert not A.triu(1).any()


# --- looking inside --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [None, "pre", "post"])
@pytest.mark.parametrize("layer", [0, 1, 2, -1])
def test_the_blocks_behind_a_layer_compose_to_the_model(norm: str | None, layer: int) -> None:
    model = with_random_biases(Transformer(layers=3, heads=2, norm=norm, **SMALL))
    residual, X = model.residual(tokens(), layer), model.attention_input(tokens(), layer)
    assert torch.equal(X, residual) == (norm != "pre")
    stream = model.blocks[layer].finish(model.blocks[layer].attention.head_outputs(X), residual)
    for block in model.blocks[layer % 3 + 1 :]:
        stream = block(stream)
    assert_same(model.unembed(stream), model(tokens()))


# --- derivatives -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"norm": "pre", "mlp_activation": "gelu"}, {"norm": "post", "heads": 2}])
def test_double_backward_agrees_with_differences_of_gradients(options: dict) -> None:
    model = Transformer(**SMALL, **options)
    names = ("token_embedding", "blocks.0.attention.W_Q", "blocks.0.attention.W_V", "W_U")
    targets = torch.randint(5, (24,), generator=torch.Generator().manual_seed(1))
    start = {name: p.detach() for name, p in model.named_parameters() if name in names}
    direction = {name: 0.1 * randn(*p.shape, seed=k) for k, (name, p) in enumerate(start.items())}

    def gradient(step: float, graph: bool = False) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        at = {name: (p + step * direction[name]).requires_grad_() for name, p in start.items()}
        logits = functional_call(model, at, (tokens(),)).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, targets)
        found = torch.autograd.grad(loss, list(at.values()), create_graph=graph)
        return at, dict(zip(at, found, strict=True))

    at, g = gradient(0.0, graph=True)
    along = sum((g[name] * direction[name]).sum() for name in g)
    product = torch.autograd.grad(along, list(at.values()))
    (_, ahead), (_, downstream) = gradient(1e-5), gradient(-1e-5)
    for name, found in zip(at, product, strict=True):
        assert_same(found, (ahead[name] - downstream[name]) / 2e-5, name, relative=1e-6)


@pytest.mark.parametrize("name", ["softmax", "linear", "relu_normalised", "user row function"])
@pytest.mark.parametrize("norm", [None, "pre"])
def test_functional_transforms_work(name: str, norm: str | None) -> None:
    model = Transformer(d_model=4, vocab=3, context=4, attention=ALL_ACTIVATIONS[name](), norm=norm, dtype=DOUBLE)
    batch = tokens(2, 4, 3)

    def value(weight: Tensor) -> Tensor:
        return functional_call(model, {"blocks.0.attention.W_Q": weight}, (batch,)).square().sum()

    weight = model.blocks[0].attention.W_Q.detach()
    by_backward = torch.autograd.functional.hessian(value, weight)
    assert_same(hessian(value)(weight), by_backward, relative=1e-9)
    assert_same(vmap(model)(batch), model(batch))
    stacked = torch.stack([weight, 2 * weight])
    assert_same(vmap(value)(stacked), torch.stack([value(w) for w in stacked]))


# --- input -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"layers": 0}, "layers"),
        ({"d_model": 2.0}, "d_model"),
        ({"heads": 3, "d_model": 8}, "give d_head"),
        ({"d_mlp": -1}, "d_mlp"),
        ({"vocab": True}, "vocab"),
        ({"attention": "softmaxx"}, "softmax"),
        ({"norm": "middle"}, "norm"),
        ({"query_key": "triple"}, "query_key"),
        ({"temperature": 0.0}, "temperature"),
        ({"residual_scale": math.inf}, "residual_scale"),
        ({"mlp_activation": "swishy"}, "mlp_activation"),
        ({"embedding_std": -1.0}, "embedding_std"),
        ({"init_scale": "big"}, "init_scale"),
        ({"seed": -1}, "seed"),
        ({"dtype": torch.int64}, "dtype"),
    ],
)
def test_bad_options_are_named(options: dict, named: str) -> None:
    with pytest.raises(hl.InputError, match=named):
        Transformer(**options)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (tokens(vocab=9), "larger vocab"),
        (-1 - tokens(), "tokens"),
        (tokens(length=9), "larger context"),
        (tokens().double(), "long"),
        (tokens()[None], "shape"),
        ({"tokens": tokens()}, r"batch\['tokens'\]"),
        ([1, 2], "list"),
    ],
)
def test_bad_tokens_are_explained(given: object, named: str) -> None:
    with pytest.raises(hl.InputError, match=named):
        Transformer(**SMALL)(given)


@pytest.mark.parametrize("layer", [2, -3, 0.0, True])
def test_a_block_that_does_not_exist_is_refused(layer: object) -> None:
    with pytest.raises(hl.InputError, match="layer"):
        Transformer(layers=2, **SMALL).attention_input(tokens(), layer)


def test_a_residual_stream_of_another_width_is_refused() -> None:
    with pytest.raises(hl.InputError, match=r"residual: .*last axis"):
        Transformer(**SMALL).unembed(torch.zeros(7, dtype=DOUBLE))


def test_a_model_can_be_copied_and_pickled() -> None:
    model = Transformer(norm="pre", mlp_activation="gelu_tanh", attention="sigmoid", **SMALL)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(again(tokens()), model(tokens()))


def test_numbers_from_numpy_will_do() -> None:
    model = Transformer(d_model=np.int64(4), seed=np.int64(3), embedding_std=np.float32(0.5))
    assert torch.equal(model.W_U, Transformer(d_model=4, seed=3).W_U)


def test_a_single_sequence_and_a_short_one_will_do() -> None:
    model = Transformer(**SMALL)
    assert_same(model(tokens()[0, :3]), model(tokens())[0, :3])
