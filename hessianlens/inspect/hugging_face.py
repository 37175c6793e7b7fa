"""Hugging Face models from a configuration, a folder or the hub; transformers is an optional extra."""

from __future__ import annotations

import logging as standard_logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch
from torch import nn

from hessianlens.errors import InputError, expect
from hessianlens.inspect.model_names import HEADS, Specification, check_known, check_options, check_there, stated_config
from hessianlens.inspect.resources import ensure_model_fits
from hessianlens.state_guard import Restore, StateChange, restores_state

_ARCHITECTURES = {
    "ForCausalLM": "causal-lm",
    "LMHeadModel": "causal-lm",
    "ForMaskedLM": "masked-lm",
    "ForPreTraining": "masked-lm",
    "ForConditionalGeneration": "seq2seq-lm",
    "MTModel": "seq2seq-lm",
    "ForSequenceClassification": "sequence-classification",
    "ForImageClassification": "image-classification",
    "Model": "encoder",
}
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
_BY_TYPE = ("image-classification", "masked-lm", "causal-lm", "sequence-classification")
"""Tried in this order where a configuration names no architecture: BERT has heads of every kind, GPT-2 has not."""
_DECODED = ("seq2seq-lm", "sequence-classification")
"""Heads of models that have an encoder and a decoder."""


_HINT = (
    "it is no folder, the hub cannot be reached, and the cache of Hugging Face on this machine does not hold it; "
    "name the folder of a saved model, or config:TYPE, e.g. config:gpt2, for random weights."
)

_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
_MOST_LAYERS = 10_000
"""Configurations list their layers: with very many of them not even the configuration fits in memory."""


def transformers_package() -> Any:
    """The package transformers; `InputError` says how to get it."""
    try:
        import transformers
    except ImportError as error:
        raise InputError(
            "model: Hugging Face models need the package transformers, which is not installed; "
            "install it with: pip install 'hessianlens[hf]'."
        ) from error
    return transformers


@restores_state
def config_model(
    specification: Specification, head: str, seed: int, dtype: torch.dtype = torch.float64
) -> tuple[nn.Module, str]:
    """A model with random weights from a configuration: a type such as ``gpt2``, or a file; and its head."""
    transformers = transformers_package()
    with _QuietTransformers(transformers), _explained(f"config {specification.name!r}"):
        config = _configuration(transformers, specification)
        found = _head(transformers, config, head)
        _give_start_token(config)
        factory = getattr(transformers, HEADS[found])
        _ensure_fits(transformers, specification, config, factory, dtype)
        # Initialisation draws from the global generator; it is put back as it was.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return factory.from_config(config), found


@restores_state
def saved_model(name: str, head: str) -> tuple[nn.Module, str]:
    """A saved model, from a folder or by its name on the hub; and its head."""
    transformers = transformers_package()
    check_there(Specification("saved", name))
    alone = local_only(name)
    hint = _HINT if alone and not Path(name).is_dir() else ""
    with _QuietTransformers(transformers), _explained(repr(name), hint):
        config = transformers.AutoConfig.from_pretrained(name, local_files_only=alone)
        found = _head(transformers, config, head)
        return getattr(transformers, HEADS[found]).from_pretrained(name, local_files_only=alone), found


def tokenizer_of(source: str | None, model: str) -> Any:
    """The tokenizer saved beside a model."""
    if source is None:
        raise InputError(f"data: text needs a tokenizer, but {model} has random weights and none; give token ids.")
    transformers = transformers_package()
    remedy = "save one beside the model, or give token ids (.npy, .pt, .jsonl with input_ids)"
    # Without its files transformers may make an empty tokenizer of the model's type, to which every word is unknown.
    there = not Path(source).is_dir() or any(file.name in _TOKENIZERS for file in Path(source).iterdir())
    expect(there, f"data: text needs a tokenizer, and there is none in {source!r}; {remedy}.")
    with _QuietTransformers(transformers):
        try:
            return transformers.AutoTokenizer.from_pretrained(source, local_files_only=local_only(source))
        except Exception as error:  # a tokenizer may be unreadable in as many ways as there are kinds of it
            said = f"that of {source!r} could not be read ({_line(error)})"
            raise InputError(f"data: text needs a tokenizer, and {said}; {remedy}.") from error


def _ensure_fits(
    transformers: Any, specification: Specification, config: Any, factory: Any, dtype: torch.dtype
) -> None:
    """Refuse weights that would not fit, counted with fewer layers where the configuration can be made with fewer."""
    layers = getattr(config, "num_hidden_layers", None)
    key = config.attribute_map.get("num_hidden_layers", "num_hidden_layers")

    def build(count: int) -> nn.Module:
        with_layers = {n: v for n, v in specification.options.items() if n != "num_hidden_layers"} | {key: count}
        return factory.from_config(_configuration(transformers, replace(specification, options=with_layers)))

    if not isinstance(layers, int) or Path(specification.name).suffix == ".json":
        # A file may list what every layer is, and fits its own number of layers only.
        ensure_model_fits(specification.name, lambda _: factory.from_config(config), 1, dtype)
    else:
        ensure_model_fits(specification.name, build, max(layers, 1), dtype)


def _configuration(transformers: Any, specification: Specification) -> Any:
    name, stated = specification.name, {}
    if Path(name).suffix == ".json":
        stated = stated_config(Path(name))
        name = str(stated.pop("model_type", ""))
    known = transformers.models.auto.CONFIG_MAPPING
    check_known(f"transformers knows no type of model {name!r}", name, known.keys())
    default = known[name]()
    check_options(
        type(default).__name__, specification.options, {*default.to_dict(), *default.attribute_map, "num_labels"}
    )
    for option in _LAYERS:
        count = {**stated, **specification.options}.get(option, 0)
        expect(
            not isinstance(count, int) or count <= _MOST_LAYERS,
            f"model: got {option}={count}, expected at most {_MOST_LAYERS:,} layers.",
        )
    # Made with its options, not changed afterwards: sizes that follow from others are computed when it is made.
    return transformers.AutoConfig.for_model(name, **{**stated, **specification.options})


def _give_start_token(config: Any) -> None:
    """Types such as T5 leave the token in front of the labels to the saved model; there it is the padding."""
    if getattr(config, "is_encoder_decoder", False) and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = config.pad_token_id


def _head(transformers: Any, config: Any, asked: str) -> str:
    decoded = getattr(config, "is_encoder_decoder", False)
    if asked != "auto":
        expect(
            not decoded or asked in _DECODED,
            f"head: got {asked!r}, but {config.model_type} has an encoder and a decoder, which predicts labels; "
            f"expected {' or '.join(_DECODED)}.",
        )
        return asked
    for architecture in config.architectures or ():
        found = next((head for suffix, head in _ARCHITECTURES.items() if architecture.endswith(suffix)), None)
        if found is None:
            raise InputError(
                f"model: {architecture} predicts something this command has no loss for; "
                f"choose a head with --head {' | '.join(HEADS)}."
            )
        expect(
            found in _DECODED or not decoded,
            f"model: {architecture} has an encoder and a decoder and no head, so that nothing goes into the decoder; "
            f"choose one with --head {' | '.join(_DECODED)}.",
        )
        return found
    for head in _DECODED if decoded else _BY_TYPE:
        if type(config) in getattr(transformers, HEADS[head])._model_mapping:
            return head
    return "encoder"


class _QuietTransformers(StateChange[None]):
    """Without bars and remarks of transformers and of the hub, whose settings are put back."""

    def __init__(self, transformers: Any) -> None:
        self.logging, self.hub = transformers.utils.logging, standard_logging.getLogger("huggingface_hub")

    def record(self) -> Restore:
        """How much is said."""
        level, hub_level = self.logging.get_verbosity(), self.hub.level
        bars = self.logging.is_progress_bar_enabled()

        def restore() -> None:
            self.logging.set_verbosity(level)
            self.hub.setLevel(hub_level)
            if bars:
                self.logging.enable_progress_bar()

        return restore

    def change(self) -> None:
        """Nothing but errors."""
        self.logging.set_verbosity_error()
        self.hub.setLevel(standard_logging.ERROR)
        self.logging.disable_progress_bar()


@contextmanager
def _explained(what: str, hint: str = "") -> Iterator[None]:
    """Whatever transformers cannot make of a model becomes one line: what it says, or what is known better."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # transformers raises what it likes, from OSError to its own validation errors
        missing = hint and isinstance(error, OSError)
        raise InputError(f"model: {what} could not be loaded: {hint if missing else _line(error)}") from error


def _line(error: Exception) -> str:
    """What an error says; torch's advice to trust the file is not passed on."""
    if "weights_only" in str(error) or "Weights only load failed" in str(error):
        return (
            "its weights are a pickle with more than tensors in it, and reading it could run arbitrary code; if you "
            "trust it, load it in Python and save it as safetensors (model.save_pretrained)."
        )
    return " ".join(str(error).split())[:300] or type(error).__name__


_SECONDS = 4.0
"""Within these the hub, or the proxy in front of it, takes a connection; transformers itself tries for a minute."""

_TRUE = ("1", "on", "yes", "true")


def local_only(name: str) -> bool:
    """Whether a model is to be looked for on this machine alone: it is a folder, or the hub cannot be reached."""
    return Path(name).is_dir() or os.environ.get("HF_HUB_OFFLINE", "").lower() in _TRUE or not _answers(_address())


def _address() -> tuple[str, int]:
    """Of the hub, or of the proxy that stands in front of it."""
    hub = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    proxies = getproxies()
    proxy = proxies.get(hub.scheme) or proxies.get("all")
    place = urlsplit(proxy if "//" in proxy else f"//{proxy}") if proxy else hub
    return place.hostname or "huggingface.co", place.port or (80 if place.scheme == "http" else 443)


def _answers(address: tuple[str, int]) -> bool:
    """In a thread: to look up a name may take far longer than to learn that there is no network."""
    found = threading.Event()

    def connect() -> None:
        try:
            socket.create_connection(address, timeout=_SECONDS).close()
            found.set()
        except OSError:
            pass

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(_SECONDS)
    return found.is_set()
