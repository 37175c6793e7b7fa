"""The API reference: one page per public name, with its docstring and the examples of the gallery that use it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import hessianlens as hl

SUBJECTS = {
    "Attention layers": "MultiHeadAttention SelfAttention SingleMatrixAttention attention_hessian scaled_dot_product_attention",
    "Losses": "CrossEntropyLoss SquareLoss",
    "Models and blocks": "Block Problem problem",
    "Hessian, GGN and functional part of a model's blocks": "functional ggn hessian block_norms block_pair_norms",
    "Spectra and estimates": "density diagonal eigenvalues frobenius heterogeneity inertia trace",
    "Models in training": "Monitor attention_health directional measure optimizer_update",
    "Pages and errors": "InputError explore",
}
"""Top-level names by subject; a name that is in none of them is an error."""


def write(folder: Path) -> None:
    """Write `api.rst` and a page per name."""
    modules = {name: value for name in sorted(hl.__all__) if isinstance(value := getattr(hl, name), ModuleType)}
    grouped = {name for names in SUBJECTS.values() for name in names.split()}
    missing = {*hl.__all__} - grouped - {*modules}
    if missing or grouped - {*hl.__all__}:
        raise ValueError(f"docs/generate/names.py: no subject for {missing}, or gone: {grouped - {*hl.__all__}}")
    pages: list[str] = []
    lines = [
        "Python API",
        "==========",
        "",
        "The names of ``import hessianlens as hl``, then the modules below it.",
        "",
    ]
    for subject, names in SUBJECTS.items():
        lines += _section(subject, [f"hessianlens.{name}" for name in names.split()], pages, folder)
    top = {id(getattr(hl, name)) for name in grouped}
    for name, module in modules.items():
        found = [f"hessianlens.{name}.{inner}" for inner, value in _public(module) if id(value) not in top]
        lines += _section(f"hl.{name}", found, pages, folder, _summary(module))
    lines += [".. toctree::", "   :hidden:", "", *(f"   {page}" for page in pages), ""]
    (folder / "api.rst").write_text("\n".join(lines), encoding="utf-8")


def _public(module: ModuleType) -> Iterator[tuple[str, object]]:
    """Functions and classes of a module that are documented: those it lists, or those it defines."""
    listed = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    for name in sorted(listed):
        value = getattr(module, name)
        if (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__.startswith(module.__name__):
            yield name, value


def _section(title: str, names: list[str], pages: list[str], folder: Path, about: str = "") -> list[str]:
    lines = [title, "-" * len(title), "", about, "", ".. list-table::", "   :widths: 30 70", ""]
    for name in names:
        value = _value(name)
        kind = "class" if inspect.isclass(value) else "function"
        (folder / f"{name}.rst").write_text(_page(name, kind), encoding="utf-8")
        pages.append(name)
        short = name.replace("hessianlens", "hl", 1)
        lines += [f"   * - :doc:`{short} <{name}>`", f"     - {_summary(value)}"]
    return [*lines, ""] if names else [title, "-" * len(title), "", about, ""]


def _page(name: str, kind: str) -> str:
    title = name.replace("hessianlens", "hl", 1)
    options = ["   :members:", "   :inherited-members: Module, Exception, PyTorchLinearOperator, str, tuple"]
    module, _, inner = name.rpartition(".")
    return "\n".join(
        [
            title,
            "=" * len(title),
            "",
            f".. currentmodule:: {module}",
            "",
            f".. auto{kind}:: {inner}",
            *(options if kind == "class" else []),
            "",
            f".. minigallery:: {name}",
            "   :add-heading: Examples using this",
            "",
        ]
    )


def _value(name: str) -> object:
    value: object = hl
    for part in name.split(".")[1:]:
        value = getattr(value, part)
    return value


def _summary(value: object) -> str:
    """First sentence of a docstring, on one line."""
    paragraph = (inspect.getdoc(value) or "").split("\n\n")[0]
    return " ".join(paragraph.split())
