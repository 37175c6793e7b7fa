"""One measurement in a process of its own: what was forecast, and the most memory that the process then held."""

from __future__ import annotations

import ctypes
import json
import re
import sys
from pathlib import Path
from typing import Any

import torch

import hessianlens as hl
from hessianlens.network.forecasting import forecast


def _tokens(vocabulary: int, sequences: int, length: int) -> dict[str, Any]:
    ids = torch.randint(vocabulary, (sequences, length), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "labels": ids}


def _hugging_face(kind: str, factory: str, **options: Any) -> torch.nn.Module:
    import transformers

    return getattr(transformers, factory).from_config(transformers.AutoConfig.for_model(kind, **options))


def _small(**options: Any) -> dict[str, Any]:
    return {"hidden_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 512, **options}


def posed(name: str) -> tuple[Any, list[str]]:
    """A problem of a kind, and patterns of blocks."""
    double = torch.float64
    if name == "GPT-2, whole vocabulary":
        model = _hugging_face("gpt2", "AutoModelForCausalLM", n_layer=2, n_embd=128, n_head=4)
        return hl.problem(model, _tokens(50257, 3, 32), dtype=double), ["embed", "layer0.mlp.in"]
    if name == "GPT-2, whole vocabulary, cut":
        model = _hugging_face("gpt2", "AutoModelForCausalLM", n_layer=2, n_embd=128, n_head=4)
        return hl.problem(model, _tokens(50257, 4, 32), dtype=double, micro_batch=2), ["embed"]
    if name == "LLaMA":
        model = _hugging_face("llama", "AutoModelForCausalLM", **_small(vocab_size=32000, num_key_value_heads=2))
        return hl.problem(model, _tokens(32000, 6, 32), dtype=double), ["layer0.attn.q", "layer0.mlp.out"]
    if name == "BERT":
        model = _hugging_face("bert", "AutoModelForMaskedLM", **_small())
        return hl.problem(model, _tokens(30522, 8, 32), dtype=torch.float32), ["embed"]
    if name == "ViT":
        model = _hugging_face("vit", "AutoModelForImageClassification", **_small(num_labels=10))
        pixels = torch.randn(8, 3, 224, 224, generator=torch.Generator().manual_seed(0))
        data = {"pixel_values": pixels, "labels": torch.zeros(8, dtype=torch.int64)}
        return hl.problem(model, data, dtype=double), ["layer0.norm1", "layer0.mlp.in"]
    assert name == "toy, long and wide"
    toy = hl.models.Transformer(layers=2, d_model=128, heads=4, vocab=100, context=256, norm="pre", dtype=double)
    ids = torch.randint(100, (4, 256), generator=torch.Generator().manual_seed(0))
    return hl.problem(toy, (ids, ids), "cross_entropy"), ["layer0.attn.q"]


def status(name: str) -> int:
    """Bytes of this program by Linux: ``VmHWM``, the most that it held, or ``VmRSS``, what it holds now.

    (The system's ``ru_maxrss`` may be that of the process that started it.)
    """
    found = re.search(rf"^{name}:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return 1024 * int(found.group(1))


def main(name: str) -> None:
    """Forecast, measure, and say both."""
    torch.set_num_threads(1)
    problem, patterns = posed(name)
    made = forecast(problem, problem.select(patterns), probes=2)
    ctypes.CDLL(None).malloc_trim(0)  # what was freed is not held
    held = status("VmRSS")
    hl.block_norms(problem, patterns, probes=2, method="probes")
    print(json.dumps({"forecast": made.peak_bytes, "extra": made.total_bytes, "held": held, "peak": status("VmHWM")}))


if __name__ == "__main__":
    main(sys.argv[1])
