"""Names: those known without torch stand for what has them, modules, functions and classes never share one.

Also here: a function that may fail to give something returns a `Refusal`, not a string.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import hessianlab
import hessianlens as hl
from hessianlab.claims.catalogue import all_claims, claim_topics
from hessianlab.experiments.registry import EXPERIMENTS
from hessianlens.inspect.model_names import TOY_CHECKS, check_toy
from hessianlens.models.arguments import MLP_ACTIVATION_NAMES
from hessianlens.models.block import MLP_ACTIVATIONS
from hessianlens.notation import ACTIVATION_NAMES
from hessianlens.parts import NORM_METHODS, method_name


def test_activations() -> None:
    assert tuple(hl.attention.activations.ACTIVATIONS) == ACTIVATION_NAMES
    assert tuple(MLP_ACTIVATIONS) == MLP_ACTIVATION_NAMES


def test_claims() -> None:
    assert list(claim_topics().items()) == [(claim.id, claim.topic) for claim in all_claims()]


def test_presets_are_the_same_of_every_experiment() -> None:
    assert {tuple(experiment.presets) for experiment in EXPERIMENTS.values()} == {("quick", "paper")}


def test_a_toy_has_the_options_of_the_model() -> None:
    assert {*TOY_CHECKS, "dtype"} == {*inspect.signature(hl.models.Transformer).parameters, "digits"}


BAD: list[dict[str, Any]] = [
    *({name: 0} for name in ("layers", "d_model", "heads", "d_mlp", "vocab", "context", "d_head", "temperature")),
    *({name: 1.5} for name in ("layers", "d_model", "heads", "d_mlp", "vocab", "context", "d_head", "seed")),
    *({name: -1} for name in ("seed", "init_scale", "embedding_std")),
    *({name: "x"} for name in ("residual_scale", "temperature", "attention", "norm", "query_key", "mlp_activation")),
    {"d_model": 8, "heads": 3},
    {"heads": 3},
    {"layers": True},
    {"temperature": float("inf")},
]

GOOD: list[dict[str, Any]] = [
    {},
    {"d_model": 8, "heads": 3, "d_head": 2},
    {"norm": "post", "query_key": "single", "attention": "row_sum", "mlp_activation": "silu"},
    {"embedding_std": 0, "init_scale": 0.0, "residual_scale": -1.0, "mlp": False, "causal": False},
    {"vocab": 12, "context": 18, "seed": 2**63 - 1, "d_mlp": 1},
]


@pytest.mark.parametrize("options", BAD, ids=str)
def test_a_toy_is_refused_where_the_model_is(options: dict[str, Any]) -> None:
    with pytest.raises(hl.InputError) as of_the_model:
        hl.models.Transformer(**options)
    with pytest.raises(hl.InputError) as of_the_toy:
        check_toy(options)
    given = str(of_the_model.value).split(", expected")[0]
    assert str(of_the_toy.value).split(", expected")[0].endswith(given.removeprefix("activation: "))


@pytest.mark.parametrize("options", GOOD, ids=str)
def test_a_toy_is_taken_where_the_model_is(options: dict[str, Any]) -> None:
    check_toy(options)
    hl.models.Transformer(**options)


@pytest.mark.parametrize("name", ["causal", "mlp", "attention_bias"])
def test_a_toys_flags_are_true_or_false(name: str) -> None:
    with pytest.raises(hl.InputError, match=f"{name}: got 'no', expected true or false"):
        check_toy({name: "no"})


PACKAGES = (Path(hl.__file__).parent, Path(hessianlab.__file__).parent)


def packages(root: Path) -> Iterator[Path]:
    return (file.parent for file in sorted(root.rglob("__init__.py")))


def defined(file: Path) -> set[str]:
    """Functions and classes of a module."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, kinds)}


def given(folder: Path, name: str) -> set[str]:
    """What a package has from its modules, the modules themselves apart."""
    found = set()
    for file in folder.glob("__init__.py*"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom) and node.module not in (None, name):
                found |= {alias.asname or alias.name for alias in node.names}
    return found


def shared_names(root: Path) -> list[str]:
    """Modules named like a function or class that is in them, beside them or in their package's namespace."""
    found = []
    for folder in packages(root):
        name = ".".join(folder.relative_to(root.parent).parts)
        taken = given(folder, name).union(*map(defined, folder.glob("*.py")))
        modules = {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
        found += [f"{name}.{shared}" for shared in sorted(taken & modules)]
        found += [name] if folder.name in given(folder, name) | defined(folder / "__init__.py") else []
    return found


def test_no_module_shares_its_name_with_a_function() -> None:
    assert [name for package in PACKAGES for name in shared_names(package)] == []


@pytest.mark.parametrize(
    ("files", "shared"),
    [
        ({"trace.py": "def trace(): ..."}, ["made_up.trace"]),
        ({"trace.py": "", "other.py": "class trace: ..."}, ["made_up.trace"]),
        ({"app.py": "app = 1", "__init__.py": "from made_up.app import app"}, ["made_up.app"]),
        ({"app.py": "", "traces.py": "", "__init__.pyi": "from .traces import app"}, ["made_up.app"]),
        ({"trace/__init__.py": "def trace(): ..."}, ["made_up.trace"]),
        ({"traces.py": "def trace(): ...", "__init__.py": "from made_up import traces"}, []),
    ],
)
def test_shared_names_are_found(tmp_path: Path, files: dict[str, str], shared: list[str]) -> None:
    for name, text in {"__init__.py": "", **files}.items():
        (tmp_path / "made_up" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "made_up" / name).write_text(text)
    assert shared_names(tmp_path / "made_up") == shared


def modules_of(*roots: Path) -> Iterator[tuple[str, ast.Module]]:
    """Every module of some packages, with its name."""
    for root in roots:
        for file in sorted(root.rglob("*.py")):
            name = ".".join(file.relative_to(root.parent).with_suffix("").parts)
            yield name, ast.parse(file.read_text(encoding="utf-8"))


def repeated_classes(*roots: Path) -> dict[str, list[str]]:
    """Modules by the name of a class that several of them define; classes inside of functions are not counted."""
    found: dict[str, list[str]] = {}
    for module, tree in modules_of(*roots):
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(module)
    return {name: modules for name, modules in found.items() if len(modules) > 1}


def union_members(annotation: ast.expr) -> set[str]:
    """``{"A", "B"}`` of ``A | B``."""
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        return union_members(annotation.left) | union_members(annotation.right)
    return {ast.unparse(annotation)}


TEXT = {"str", "list[str]", "None"}


def things_or_strings(*roots: Path) -> list[str]:
    """Functions that return something or a string, also inside a container; text and nothing else is allowed."""
    found = []
    for module, tree in modules_of(*roots):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
                unions = [union_members(part) for part in ast.walk(node.returns) if isinstance(part, ast.BinOp)]
                if any("str" in members and members - TEXT for members in unions):
                    found.append(f"{module}.{node.name}")
    return found


def test_no_class_name_occurs_twice() -> None:
    assert repeated_classes(*PACKAGES) == {}


def test_no_function_returns_a_thing_or_a_string() -> None:
    assert things_or_strings(*PACKAGES) == []


def test_repeated_classes_and_strings_for_refusals_are_found(tmp_path: Path) -> None:
    package = tmp_path / "made_up"
    package.mkdir()
    (package / "one.py").write_text(
        "class Plan: ...\nclass Cost: ...\ndef plan() -> Plan | str: ...\ndef name() -> str | None: ...\n"
    )
    (package / "two.py").write_text(
        "class Plan: ...\nclass Own:\n    def both(self) -> tuple[int, Plan | None | str]: ...\n"
        "def device(given: Plan | str) -> Plan: ...\ndef local() -> int:\n    class Cost: ...\n"
    )
    assert repeated_classes(package) == {"Plan": ["made_up.one", "made_up.two"]}
    assert things_or_strings(package) == ["made_up.one.plan", "made_up.two.both"]


def test_few_public_names() -> None:
    names = [name for name in hl.__all__ if not isinstance(getattr(hl, name), ModuleType)]
    assert len(names) == 29, names


@pytest.mark.every_case
@pytest.mark.parametrize(("old", "new"), hl._EARLIER.items())
def test_old_names_still_work(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"hessianlens.{old} is now hessianlens.{new}"):
        assert getattr(hl, old) is attrgetter(new)(hl)


@pytest.mark.every_case
@pytest.mark.parametrize(("old", "new"), hl.monitor._EARLIER.items())
def test_old_names_of_the_monitor_still_work(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"hessianlens.monitor.{old} is now hessianlens.monitor.{new}"):
        assert getattr(hl.monitor, old) is getattr(hl.monitor, new)


def test_an_earlier_method_still_works_and_says_what_it_is_now() -> None:
    with pytest.warns(DeprecationWarning, match="method='products' is now method='hvp'"):
        assert method_name("products", NORM_METHODS) == "probes"
