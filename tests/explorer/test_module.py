"""The ES module is put together from its files, and the page that has it alone."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from hessianlens import explorer
from hessianlens.errors import InputError
from hessianlens.explorer.module import assembled, ordered, read_source
from hessianlens.explorer.standalone import content_policy, mounting_script


def test_the_module_is_whole():
    source = explorer.module_source()
    assert not re.search(r"^import\b", source, re.MULTILINE)
    assert len(re.findall(r"^export\b", source, re.MULTILINE)) == 1
    assert "</script" not in source
    exported = re.search(r"^export \{ (.*) \};$", source, re.MULTILINE)[1].split(", ")
    assert {"hessian", "blockNorms", "symmetricEigen", "compute", "mount", "mountAll"} <= set(exported)


def test_files_keep_what_they_do_not_export():
    files = [
        read_source("a.js", "const own = 1;\nexport const a = own;\n"),
        read_source("b.js", 'import { a } from "./a.js";\nconst own = 2;\nexport const b = a + own;\n'),
    ]
    assert assembled(files).count("const own") == 2


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.js": 'import * as b from "./b.js";\n'}, "expected named imports"),
        ({"a.js": "export default 1;\n"}, "expected named imports"),
        ({"a.js": 'import { b } from "./b.js";\n'}, "imports b.js, which is no file"),
        ({"a.js": 'import { b } from "./b.js";\n', "b.js": 'import { a } from "./a.js";\n'}, "imports itself"),
        ({"a.js": 'import { b } from "./b.js";\n', "b.js": "const b = 1;\n"}, "imports b, which b.js does not export"),
        ({"a.js": "export const c = 1;\n", "b.js": "export const c = 2;\n"}, "c: exported by two files"),
    ],
)
def test_what_cannot_be_put_together_is_refused(files, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        assembled(ordered([read_source(path, text) for path, text in files.items()]))


def test_the_page_allows_its_own_script_and_nothing_else():
    page = explorer.page(["row", "depth"])
    script = re.search(r'<script type="module">(.*)</script>', page, re.DOTALL)[1]
    assert script == mounting_script()
    assert content_policy(script).replace("'", "&#x27;") in page
    rest = page.replace(script, "")
    assert re.findall(r'data-scene="(\w+)"', rest) == ["row", "depth"]
    assert not re.search(r"(?:src|href)=", rest)
    with pytest.raises(InputError, match="scene: got 'rows'"):
        explorer.page(["rows"])


def test_torch_is_not_needed():
    code = "import sys, hessianlens.explorer as e; e.page(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
