"""The ES module of the explorer, put together from the files in ``js/``.

Every file becomes a function that returns what it exports, called once, each behind the files that it imports from.
What a file does not export stays its own. The numerical files together become a function of their own, ``numbers``,
whose text the Web Worker runs too. Comments and blank lines stay in the files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

SOURCES = Path(__file__).with_name("js")
NUMBERS = "numbers.js"
"""What the other files import from as if it were a file: the function ``numbers`` made of the numerical ones."""

_HEADER = (
    "// hessianlens: the exact Hessian of attention layers. The sources, with the equations: hessianlens/explorer/js\n"
)
_IMPORT = re.compile(r"^import \{([^}]*)\} from \"([^\"]+)\";\n", re.MULTILINE)
_COMMENT = re.compile(r"^ *(?:/\*\*.*?\*/|//[^\n]*)\n", re.MULTILINE | re.DOTALL)
_EXPORT = re.compile(r"^export (?=((?:async )?function\*?|const|class) (\w+))", re.MULTILINE)


@dataclass(frozen=True)
class SourceFile:
    """A file of the module.

    Attributes:
        path: Where it is, relative to ``js/``.
        imports: The names it imports, by the file they come from, in the same way.
        exports: Names it exports.
        body: Its text without imports, without the word export, and without lines of comments.
    """

    path: str
    imports: Mapping[str, tuple[str, ...]]
    exports: tuple[str, ...]
    body: str

    def definition(self) -> str:
        """``const {exports} = (() => {...})();``."""
        names = ", ".join(self.exports)
        return f"const {{ {names} }} = (() => {{\n{self.body}return {{ {names} }};\n}})();\n"


def read_source(path: str, text: str) -> SourceFile:
    """A file taken apart.

    >>> file = read_source("a/b.js", 'import { c } from "../c.js";' + chr(10) + "export const d = c;")
    >>> file.imports, file.exports, file.body
    ({'c.js': ('c',)}, ('d',), 'const d = c;')
    """
    folder = PurePosixPath(path).parent
    imports = {_resolved(folder, found): tuple(re.findall(r"\w+", names)) for names, found in _IMPORT.findall(text)}
    body = re.sub(r"\n{2,}", "\n", _COMMENT.sub("", _EXPORT.sub("", _IMPORT.sub("", text))))
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
    """One ES module of all files, which exports whatever any of them does."""
    names = [name for file in files for name in file.exports]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"{', '.join(sorted(twice))}: exported by two files; expected one name for one thing.")
    behind = {file.path for file in files if NUMBERS in file.imports or "/" in file.path}
    numerical = ordered([file for file in files if file.path not in behind])
    drawing = [file for file in ordered(files) if file.path in behind]
    numbers = ", ".join(name for file in numerical for name in file.exports)
    inner = "".join(file.definition() for file in numerical)
    head = f"function numbers() {{\n{inner}return {{ {numbers} }};\n}}\nconst {{ {numbers} }} = numbers();\n"
    rest = "".join(file.definition() for file in drawing)
    return f"{_HEADER}{head}{rest}export {{ {', '.join(names)} }};\n"


@cache
def module_source() -> str:
    """The text of the whole module: numbers and scenes, without imports.

    >>> "export {" in module_source(), "import {" in module_source()
    (True, False)
    """
    paths = sorted(SOURCES.rglob("*.js"))
    return assembled(
        [read_source(path.relative_to(SOURCES).as_posix(), path.read_text(encoding="utf-8")) for path in paths]
    )
