"""The ES module of the explorer, put together from the files in ``js/``.

Every file stands behind those it imports from; no two of them have the same name at their top. The numerical files
together become a function, ``numbers``, whose text the Web Worker runs too. Comments and indentation stay in the files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

from hessianlens.explorer.minifier import minify

SOURCES = Path(__file__).with_name("js")
NUMBERS = "numbers.js"
"""What the other files import from as if it were a file: the function ``numbers`` made of the numerical ones."""

PUBLIC = ("numbers", "mount", "mountAll", "scenes", "compute", "Background", "layerExample", "notebook")
"""What the module exports; ``numbers()`` has the numerical functions."""

_HEADER = (
    "// hessianlens: the exact Hessian of attention layers. The sources, with the equations: hessianlens/explorer/js\n"
)
_IMPORT = re.compile(r"^import \{([^}]*)\} from \"([^\"]+)\";\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=((?:async )?function\*?|const|class) (\w+))", re.MULTILINE)
_TOP = re.compile(r"^(?:(?:async )?function\*?|const|let|class) (\w+)", re.MULTILINE)


@dataclass(frozen=True)
class SourceFile:
    """A file of the module.

    Attributes:
        path: Where it is, relative to ``js/``.
        imports: The names it imports, by the file they come from, in the same way.
        exports: Names it exports.
        body: Its text without imports and without the word export.
    """

    path: str
    imports: Mapping[str, tuple[str, ...]]
    exports: tuple[str, ...]
    body: str

    @property
    def names(self) -> list[str]:
        """Names that are declared outside of any function."""
        return _TOP.findall(self.body)


def read_source(path: str, text: str) -> SourceFile:
    """A file taken apart.

    >>> file = read_source("a/b.js", 'import { c } from "../c.js";' + chr(10) + "export const d = c;")
    >>> file.imports, file.exports, file.body
    ({'c.js': ('c',)}, ('d',), 'const d = c;')
    """
    folder = PurePosixPath(path).parent
    imports = {_resolved(folder, found): tuple(re.findall(r"\w+", names)) for names, found in _IMPORT.findall(text)}
    body = _EXPORT.sub("", _IMPORT.sub("", text))
    left = re.search(r"^(import|export)\b.*", body, re.MULTILINE)
    if left:
        raise ValueError(f"{path}: got {left[0]!r}; expected named imports and exported functions, constants, classes.")
    return SourceFile(path, imports, tuple(name for _, name in _EXPORT.findall(text)), body)


def _resolved(folder: PurePosixPath, target: str) -> str:
    parts: list[str] = []
    for part in (folder / target).parts:
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def ordered(files: Sequence[SourceFile]) -> list[SourceFile]:
    """Files in an order in which each follows what it imports.

    >>> a, b = SourceFile("a", {"b": ()}, (), ""), SourceFile("b", {}, (), "")
    >>> [file.path for file in ordered([a, b])]
    ['b', 'a']
    """
    named = {file.path: file for file in files}
    placed: dict[str, SourceFile] = {}

    def place(path: str, above: tuple[str, ...]) -> None:
        if path in above:
            raise ValueError(f"{path}: imports itself through {' -> '.join(above)}.")
        if path in placed or path == NUMBERS:
            return
        if path not in named:
            raise ValueError(f"{above[-1]}: imports {path}, which is no file of the module.")
        for wanted, names in named[path].imports.items():
            place(wanted, (*above, path))
            left = set(names).difference(named[wanted].exports) if wanted != NUMBERS else set()
            if left:
                raise ValueError(f"{path}: imports {', '.join(sorted(left))}, which {wanted} does not export.")
        placed[path] = named[path]

    for file in files:
        place(file.path, ())
    return list(placed.values())


def assembled(files: Sequence[SourceFile]) -> str:
    """One ES module of all files, which exports those of `PUBLIC` that they have."""
    names = [name for file in files for name in file.names]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"{', '.join(sorted(twice))}: at the top of two files; expected one name for one thing.")
    behind = {file.path for file in files if NUMBERS in file.imports or "/" in file.path}
    numerical = ordered([file for file in files if file.path not in behind])
    drawing = [file for file in ordered(files) if file.path in behind]
    numbers = [name for file in numerical for name in file.exports]
    wanted = {name for file in drawing for imported in file.imports.values() for name in imported}
    used = ", ".join(name for name in numbers if name in wanted)
    inner = "".join(file.body for file in numerical)
    head = f"function numbers() {{\n{inner}return {{ {', '.join(numbers)} }};\n}}\nconst {{ {used} }} = numbers();\n"
    rest = "".join(file.body for file in drawing)
    public = [name for name in PUBLIC if name in ("numbers", *names)]
    return f"{head}{rest}export {{ {', '.join(public)} }};\n"


@cache
def module_source() -> str:
    """The text of the whole module: numbers and scenes, without imports, minified.

    >>> "export{" in module_source(), "import{" in module_source()
    (True, False)
    """
    return f"{_HEADER}{minify(plain_source())}\n"


@cache
def plain_source() -> str:
    """The same before it is minified."""
    paths = sorted(SOURCES.rglob("*.js"))
    return assembled(
        [read_source(path.relative_to(SOURCES).as_posix(), path.read_text(encoding="utf-8")) for path in paths]
    )
