"""Commands of the laboratory: found where `hessianlab` is installed beside the library, which never imports it."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType

import hessianlens

LABORATORY = "hessianlab"


def import_laboratory(folder: Path = Path(hessianlens.__file__).parents[1]) -> ModuleType | None:
    """Import, and so register, the commands of the laboratory; None where it is not installed.

    Args:
        folder: Where to look for it. The one that holds this very library is no longer on the path of modules if it
            is the current folder: see `hessianlens.safe_path`.
    """
    if LABORATORY not in sys.modules:
        spec = PathFinder.find_spec(LABORATORY, [str(folder)])
        if spec is None or spec.loader is None:
            return None
        sys.modules[LABORATORY] = package = module_from_spec(spec)
        spec.loader.exec_module(package)
    return import_module(f"{LABORATORY}.cli")
