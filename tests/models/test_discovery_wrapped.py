"""Wrapped models and layers: LoRA and its like, compiled and distributed models have the names of what is inside."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from hessianlens.errors import InputError
from hessianlens.models.discovery import Discovery, discover
from hessianlens.models.discovery.paths import read_names
from tests.models.test_discovery import cover
from tests.models.test_discovery_zoo import FAMILIES, discovery_of, model_of, tree

# --- adapters laid out as in PEFT ------------------------------------------------------------------------------------


class PeftLayer(nn.Module):
    """A layer with adapters by name, each two bias-free `nn.Linear`, whatever the layer is."""

    def __init__(self, base: nn.Module, adapters: dict[str, int], magnitude: bool = False) -> None:
        super().__init__()
        self.base_layer = base
        outputs, inputs = _sizes(base)
        self.lora_dropout = nn.ModuleDict({name: nn.Identity() for name in adapters})
        self.lora_A = nn.ModuleDict({n: nn.Linear(inputs, rank, bias=False) for n, rank in adapters.items()})
        self.lora_B = nn.ModuleDict({n: nn.Linear(rank, outputs, bias=False) for n, rank in adapters.items()})
        self.lora_embedding_A, self.lora_embedding_B = nn.ParameterDict({}), nn.ParameterDict({})
        held = {n: tree({"weight": nn.Identity()}) for n in adapters} if magnitude else {}
        for module in held.values():
            del module.weight
            module.weight = nn.Parameter(torch.ones(outputs))
        self.lora_magnitude_vector = nn.ModuleDict(held)

    @property
    def weight(self) -> Tensor:
        return self.base_layer.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + sum(self.lora_B[n](self.lora_A[n](x)) for n in self.lora_A)


class PeftEmbedding(nn.Module):
    def __init__(self, base: nn.Embedding, rank: int) -> None:
        super().__init__()
        self.base_layer = base
        self.lora_A, self.lora_B = nn.ModuleDict({}), nn.ModuleDict({})
        self.lora_embedding_A = nn.ParameterDict({"default": nn.Parameter(torch.zeros(rank, base.num_embeddings))})
        self.lora_embedding_B = nn.ParameterDict({"default": nn.Parameter(torch.zeros(base.embedding_dim, rank))})


class PeftModel(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.base_model = tree({"model": model})

    def forward(self, **inputs: object) -> object:
        return self.base_model.model(**inputs)


def _sizes(layer: nn.Module) -> tuple[int, int]:
    rows, columns = layer.weight.shape
    return (rows, columns) if isinstance(layer, nn.Linear) else (columns, rows)


def adapted(family: str, wrap: Callable[[nn.Module], nn.Module], *layers: str) -> nn.Module:
    """A model with every layer of these names wrapped, in double precision, its adapters drawn at random."""
    model = copy.deepcopy(model_of(family))
    for path, module in list(model.named_modules()):
        parent, _, name = path.rpartition(".")
        if name in layers and hasattr(module, "weight"):
            model.get_submodule(parent).add_module(name, wrap(module))
    torch.manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.double().named_parameters():
            if "lora" in name:
                parameter.copy_(0.5 * torch.randn_like(parameter))
    return model


def added(found: Discovery, family: str) -> dict[str, tuple[int, ...]]:
    """What a model has beside the blocks of the plain one, in its first layer or outside."""
    plain = discovery_of(family).blocks
    assert set(plain) <= set(found.blocks)
    return {n: b.shape for n, b in found.blocks.items() if n not in plain and not n.startswith("layer1")}


def covered_once(model: nn.Module, found: Discovery) -> bool:
    return all(bool((count == 1).all()) for count in cover(model, found).values())


@pytest.mark.parametrize("prefixed", [False, True])
def test_lora_is_named_behind_its_layer(prefixed: bool) -> None:
    model = adapted("llama", lambda layer: PeftLayer(layer, {"default": 2}), "q_proj", "v_proj", "down_proj")
    model = PeftModel(model) if prefixed else model
    found = discover(model)
    assert added(found, "llama") == {
        **{"layer0.attn.q.lora_a": (2, 8), "layer0.attn.q.lora_b": (8, 2)},
        **{"layer0.attn.v.lora_a": (2, 8), "layer0.attn.v.lora_b": (4, 2)},
        **{"layer0.mlp.out.lora_a": (2, 12), "layer0.mlp.out.lora_b": (8, 2)},
    }
    assert found.blocks["layer0.attn.q"].parameter.endswith("self_attn.q_proj.base_layer.weight")
    assert found.heads == discovery_of("llama").heads and found.notes == ()
    assert covered_once(model, found)


def test_several_adapters_have_their_names_behind_except_the_default() -> None:
    model = adapted("llama", lambda layer: PeftLayer(layer, {"default": 2, "other": 3}, magnitude=True), "q_proj")
    assert added(discover(model), "llama") == {
        **{"layer0.attn.q.lora_a": (2, 8), "layer0.attn.q.lora_a.other": (3, 8)},
        **{"layer0.attn.q.lora_b": (8, 2), "layer0.attn.q.lora_b.other": (8, 3)},
        **{"layer0.attn.q.lora_magnitude_vector": (8,), "layer0.attn.q.lora_magnitude_vector.other": (8,)},
    }


@pytest.mark.parametrize("family, layer", [("gpt2", "c_attn"), ("nanogpt", "c_attn"), ("gpt-neox", "query_key_value")])
def test_lora_around_a_packed_layer(family: str, layer: str) -> None:
    """One first matrix for all; the rows of the second lie as the outputs do."""
    model = adapted(family, lambda layer: PeftLayer(layer, {"default": 2}, magnitude=True), layer)
    found = discover(model)
    expected = {"layer0.attn.qkv.lora_a": (2, 8)}
    expected |= {f"layer0.attn.{role}.lora_b": (8, 2) for role in "qkv"}
    expected |= {f"layer0.attn.{role}.lora_magnitude_vector": (8,) for role in "qkv"}
    assert added(found, family) == expected
    assert found.blocks["layer0.attn.qkv.lora_a"].note == "shared by q, k, v"
    assert not any("base_layer" in note for note in found.notes)
    assert covered_once(model, found)
    _adds_up(model, found, family)


def _adds_up(model: nn.Module, found: Discovery, family: str) -> None:
    """Adding the products of the named matrices to the plain model's blocks gives the adapted model's outputs."""
    params, plain = dict(model.named_parameters()), dict(model_of(family).named_parameters())
    blocks = discovery_of(family).blocks
    merged = {name: tensor.detach().clone() for name, tensor in plain.items()}
    for number in range(2):
        A = found.blocks[f"layer{number}.attn.qkv.lora_a"].take(params[_of(found, f"layer{number}.attn.qkv.lora_a")])
        for role in "qkv":
            name = f"layer{number}.attn.{role}"
            B = found.blocks[f"{name}.lora_b"].take(params[_of(found, f"{name}.lora_b")])
            block = blocks[name]
            change = (B @ A).T.reshape(block.shape) if "columns" in block.note else B @ A
            merged[block.parameter] += block.embed(change.detach(), merged[block.parameter])
    inputs = FAMILIES[family].inputs()
    with torch.no_grad():
        expected, mine = model(**inputs), functional_call(model_of(family), merged, (), inputs)
    logits = [out if isinstance(out, Tensor) else out.logits for out in (expected, mine)]
    torch.testing.assert_close(*logits)


def _of(found: Discovery, name: str) -> str:
    return found.blocks[name].parameter


def test_adapters_of_an_embedding() -> None:
    model = copy.deepcopy(model_of("llama"))
    model.model.embed_tokens = PeftEmbedding(model.model.embed_tokens, 2)
    assert added(discover(model), "llama") == {"embed.lora_a": (2, 20), "embed.lora_b": (8, 2)}


def test_other_adapters_keep_their_word() -> None:
    def scaled(layer: nn.Module) -> nn.Module:
        held = nn.ParameterDict({"default": nn.Parameter(torch.ones(layer.weight.shape[0], 1))})
        return tree({"base_layer": layer, "ia3_l": held})

    assert added(discover(adapted("llama", scaled, "k_proj")), "llama") == {"layer0.attn.k.ia3_l": (4, 1)}
    packed = added(discover(adapted("gpt-neox", scaled, "query_key_value")), "gpt-neox")
    assert packed == {f"layer0.attn.{role}.ia3_l": (8, 1) for role in "qkv"}


def test_a_copy_that_is_trained_has_the_name_of_its_layer() -> None:
    model = copy.deepcopy(model_of("llama"))
    copies = {name: copy.deepcopy(model.lm_head) for name in ("default", "other")}
    model.lm_head = tree({"original_module": model.lm_head, "modules_to_save": nn.ModuleDict(copies)})
    found = discover(model)
    assert found.blocks["unembed"].parameter == "lm_head.modules_to_save.default.weight"
    assert added(found, "llama") == {"unembed.original": (20, 8), "unembed.modules_to_save.other": (20, 8)}


def test_adapters_have_no_parts_by_head() -> None:
    found = discover(adapted("llama", lambda layer: PeftLayer(layer, {"default": 2}), "q_proj"), heads=True)
    assert "layer0.attn.q.head3" in found.blocks and not any("lora" in n and "head" in n for n in found.blocks)
    with pytest.raises(InputError, match=r"layer0\.attn\.q\.lora_b: cannot be split by head, since it has no parts"):
        found.head_blocks(0, "q.lora_b")


# --- adapters written by hand ----------------------------------------------------------------------------------------


def by_hand(inner: str, first: str, second: str, rows: bool = False) -> Callable[[nn.Module], nn.Module]:
    """A wrapper with one inner layer and two matrices; of `nn.Linear` if `rows`."""

    def wrap(layer: nn.Module) -> nn.Module:
        outputs, inputs = _sizes(layer)
        if rows:
            made = {first: nn.Linear(inputs, 2, bias=False), second: nn.Linear(2, outputs, bias=False)}
            return tree({inner: layer, **made})
        module = tree({inner: layer})
        for path, size in ((first, (inputs, 2)), (second, (2, outputs))):
            place, _, name = path.rpartition(".")
            if place and not hasattr(module, place):
                module.add_module(place, nn.Module())
            module.get_submodule(place).register_parameter(name, nn.Parameter(torch.zeros(size)))
        return module

    return wrap


HAND_WRITTEN = [
    *(("base", "lora_a", "lora_b"), ("original", "lora_A", "lora_B"), ("linear", "lora.A", "lora.B")),
    *(("wrapped", "A", "B"), ("linear", "lora_down", "lora_up"), ("layer", "lora.down", "lora.up")),
]


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("names", HAND_WRITTEN, ids=" ".join)
def test_adapters_written_by_hand(names: tuple[str, str, str], rows: bool) -> None:
    model = adapted("llama", by_hand(*names, rows=rows), "q_proj")
    shapes = ((2, 8), (8, 2)) if rows else ((8, 2), (2, 8))
    found = discover(model)
    assert added(found, "llama") == dict(zip(("layer0.attn.q.lora_a", "layer0.attn.q.lora_b"), shapes, strict=True))
    packed = discover(adapted("gpt2", by_hand(*names, rows=rows), "c_attn"))
    expected = {"layer0.attn.qkv.lora_a": shapes[0]} | {f"layer0.attn.{role}.lora_b": shapes[1] for role in "qkv"}
    assert added(packed, "gpt2") == expected


def test_adapters_inside_the_layer() -> None:
    """A layer that is a linear layer and has two matrices more."""

    def inside(layer: nn.Linear) -> nn.Module:
        layer.lora_A, layer.lora_B = nn.Parameter(torch.zeros(2, 8)), nn.Parameter(torch.zeros(8, 2))
        return layer

    found = discover(adapted("llama", inside, "q_proj"))
    assert added(found, "llama") == {"layer0.attn.q.lora_a": (2, 8), "layer0.attn.q.lora_b": (8, 2)}


def test_a_second_matrix_of_another_size_is_not_cut() -> None:
    """LoRA for q and v only: which rows are whose is not said."""

    def partly(layer: nn.Module) -> nn.Module:
        module = tree({"base": layer})
        module.lora_A, module.lora_B = nn.Parameter(torch.zeros(4, 8)), nn.Parameter(torch.zeros(16, 2))
        return module

    found = discover(adapted("gpt2", partly, "c_attn"))
    assert added(found, "gpt2") == {"layer0.attn.qkv.lora_a": (4, 8), "layer0.attn.qkv.lora_b": (16, 2)}


def test_what_only_looks_like_an_adapter_keeps_its_name() -> None:
    several = tree({"one": nn.Linear(8, 8), "two": nn.Linear(8, 8)})
    several.lora_A = nn.Parameter(torch.zeros(2, 8))
    state_space = tree({"inner": nn.Linear(8, 8)})
    for name in "ABC":
        state_space.register_parameter(name, nn.Parameter(torch.zeros(2, 8)))
    attention = {f"layers.0.attn.{name}_proj": nn.Linear(8, 8, bias=False) for name in "kvo"}
    for odd in (several, state_space):
        names = set(discover(tree({**attention, "layers.0.attn.q_proj": odd})).blocks)
        inner = {name for name in names if name.endswith(("one.weight", "two.weight", "inner.weight"))}
        assert inner and "layer0.attn.q" not in names


def test_names_that_would_be_one_are_left_alone() -> None:
    names = ["a.base_layer.weight", "a.weight"]
    assert [name.own for name in read_names(names).values()] == names


# --- wrapped models --------------------------------------------------------------------------------------------------


def compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="eager")


def outer(name: str) -> Callable[[nn.Module], nn.Module]:
    return lambda model: tree({name: model})


def _layers_compiled(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.ModuleList):
            for number, layer in enumerate(module):
                module[number] = compiled(layer)
    return model


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "module": outer("module"),
    "data parallel": nn.DataParallel,
    "compiled": compiled,
    "data parallel, compiled": lambda model: nn.DataParallel(compiled(model)),
    "compiled, with adapters": lambda model: compiled(PeftModel(model)),
    "fully sharded": outer("_fsdp_wrapped_module"),
    "adapters": PeftModel,
    "layers compiled": _layers_compiled,
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("family", ["own", "llama", "gpt2", "gpt-neox", "bert-classes", "codegen", "encoder"])
def test_wrappers_change_nothing(family: str, wrapper: str) -> None:
    model = WRAPPERS[wrapper](copy.deepcopy(model_of(family)))
    found, plain = discover(model), discovery_of(family)
    assert list(found.blocks) == list(plain.blocks)
    assert {name: (b.index, b.stretch, b.shape) for name, b in found.blocks.items()} == {
        name: (b.index, b.stretch, b.shape) for name, b in plain.blocks.items()
    }
    assert (found.heads, found.aliases, found.layer_names) == (plain.heads, plain.aliases, plain.layer_names)
    assert {block.parameter for block in found.blocks.values()} == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("wrapper", [name for name in WRAPPERS if name != "layers compiled"])
def test_unknown_architectures_keep_the_names_inside(wrapper: str) -> None:
    model = WRAPPERS[wrapper](nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    assert list(discover(model).blocks) == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_a_part_that_is_called_module_is_no_wrapper() -> None:
    model = tree({"module": nn.Linear(3, 4), "other": nn.Linear(4, 2)})
    assert list(discover(model).blocks) == ["module.weight", "module.bias", "other.weight", "other.bias"]
