"""Walk all text classes of transformers, and write down by which route each kind of block is found.

    python -m tests.families --write docs/reference/families.json [--types gpt2 llama ...]

Beside the JSON a table with one row per model type is written, as Markdown. Both are written after every type, and
types that the file has already are left out: a walk that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import re
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import transformers

from tests.families.registry import MODEL_TYPES, cases_of
from tests.families.walk import FACTORS, walked

COLUMNS = {
    "last attention": rf"(?:attn|cross)\.[qkvo]$|{FACTORS}",
    "MLP": r"mlp\.(in|out)$",
    "norm": r"norm\w*$",
    "embedding": r"embed$",
    "unembedding": r"unembed$",
}
"""Columns of the table, and the names of the blocks of each."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.families", description=__doc__)
    parser.add_argument("--write", type=Path, required=True, help="JSON file; the table is written beside it as .md")
    parser.add_argument("--types", nargs="*", default=MODEL_TYPES, help="model types; default: all")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = json.loads(asked.write.read_text())["classes"] if asked.write.exists() else []
    known = {row["family"] for row in rows}
    for number, model_type in enumerate(asked.types):
        if model_type not in known:
            rows += [walked(case, brief=place > 0).row() for place, case in enumerate(cases_of(model_type))]
            write(asked.write, sorted(rows, key=lambda row: MODEL_TYPES.index(row["family"])))
        print(f"{number + 1} of {len(asked.types)}: {model_type}", flush=True)


def write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """The rows as JSON, and the table of types beside them."""
    kept = {"transformers": transformers.__version__, "classes": list(rows)}
    path.write_text(json.dumps(kept, indent=1) + "\n")
    path.with_suffix(".md").write_text(table(kept))


def table(walk: dict[str, Any]) -> str:
    """One row per model type: its classes, and the routes of each kind of block."""
    rows: list[dict[str, Any]] = walk["classes"]
    types = list(dict.fromkeys(row["family"] for row in rows))
    built = [row for row in rows if not row["not_built"]]
    refused = [row for row in built if row["refused"]]
    lines = [
        *("---", "myst:", "  html_meta:"),
        "    keywords: supported, models, families, architectures, gpt, llama, qwen, bert, gemma, hugging, face",
        *("---", ""),
        "# Model types of transformers",
        "",
        f"Every text class of the auto-mappings of transformers {walk['transformers']}, built small and compared with",
        "a plain double backward in float64, to a relative error of 1e-8 beside twice its own asymmetry. Models that",
        "take images or sound too are run with text alone.",
        f"{sum(row['compared'] for row in rows):,} comparisons, {sum(len(row['wrong']) for row in rows)} wrong. "
        "Blocks that are not named here are computed by HVPs.",
        "`python -m tests.families --write docs/reference/families.json` tests all classes and writes this table.",
        "",
        f"{len(types)} model types, {len(rows)} classes: {len(built) - len(refused)} compared, {len(refused)} refused, "
        f"{len(rows) - len(built)} not built.",
        "",
        "How each diagonal block is computed: `closed form` of the last attention layer, `linear map`, or",
        "`HVPs`, one Hessian-vector product per column. Attention and MLP are those of the last layer.",
        "",
        f"| model type | classes | {' | '.join(COLUMNS)} |",
        f"| --- | --- |{' --- |' * len(COLUMNS)}",
    ]
    return "\n".join([*lines, *(_line(name, [row for row in rows if row["family"] == name]) for name in types), ""])


def _line(model_type: str, rows: Sequence[dict[str, Any]]) -> str:
    walked_rows = [row for row in rows if row["routes"]]
    if not walked_rows:
        reason = next(row["refused"] or row["not_built"] for row in rows)
        kind = "refused" if any(row["refused"] for row in rows) else "not built"
        return f"| {model_type} | {len(rows)} | {kind}: {_short(reason)} |{' |' * (len(COLUMNS) - 1)}"
    cells = [_ways(walked_rows[0]["routes"], pattern) for pattern in COLUMNS.values()]
    if not any(cells):
        ways = ", ".join(dict.fromkeys(route["way"] for route in walked_rows[0]["routes"]))
        cells[0] = f"blocks under the parameters' own names: {ways}"
    return f"| {model_type} | {len(rows)} | {' | '.join(cells)} |"


def _ways(routes: Iterable[dict[str, str]], pattern: str) -> str:
    """The ways of the last layer's blocks of a kind; the attention to an encoder is the last of its layer."""
    found = [route for route in routes if re.search(rf"(^|\.)(?:{pattern})", route["block"])]
    found = [route for route in found if "cross." in route["block"]] or found
    layers = [_layer(route["block"]) for route in found]
    last = next((layer for layer in reversed(layers) if layer is not None), None)
    ways = [route["way"] for route, own in zip(found, layers, strict=True) if own in (None, last)]
    return ", ".join(dict.fromkeys(ways))


def _layer(name: str) -> tuple[str, str] | None:
    """Where a block's layer stands, and its number, under our names and the model's own; None for one of no layer."""
    match = re.match(r"(.*?)layers?\.?(\d+)\.", name)
    return None if match is None else (match[1].removeprefix("model."), match[2])


def _short(reason: str) -> str:
    words = reason.replace("|", "/")
    return words if len(words) <= 120 else f"{words[:120].rpartition(' ')[0]} ..."


if __name__ == "__main__":
    main()
