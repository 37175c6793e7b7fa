"""The file of golden numbers: one line per case, thirteen digits per number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.golden.cases import CASES

GOLDEN = Path(__file__).with_name("golden.json")


def read() -> dict[str, Any]:
    """The records by case; none if there is no file."""
    found: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {}
    return found


def write(records: dict[str, Any]) -> None:
    """Write the records, in the order of the cases."""
    short = {name: json.dumps(_short(records[name]), separators=(",", ":")) for name in CASES if name in records}
    lines = [f"{json.dumps(name)}: {record}" for name, record in short.items()]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _short(tree: Any) -> Any:
    if isinstance(tree, float):
        return float(f"{tree:.13g}")
    if isinstance(tree, dict):
        return {name: _short(branch) for name, branch in tree.items()}
    return [_short(branch) for branch in tree] if isinstance(tree, list) else tree
