"""The ES module is put together from its files, and the page that has it alone."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from hessianlens import explorer
from hessianlens.errors import InputError
from hessianlens.explorer.minifier import minify, tokens
from hessianlens.explorer.module import PUBLIC, assembled, ordered, plain_source, read_source
from hessianlens.explorer.standalone import content_policy, mounting_script

MOST_BYTES = 102_000
"""Of the module, minified; its numerical part is about a fifth of that."""


def test_the_module_is_whole():
    source = explorer.module_source()
    assert not re.search(r"\bimport ?[{*\"]", source)
    assert len(re.findall(r"\bexport\b", source)) == 1
    assert "</script" not in source
    exported = re.search(r"export\{(.*)\};$", source, re.MULTILINE)[1].split(",")
    assert set(exported) == set(PUBLIC)
    assert len(source.encode()) < MOST_BYTES


def test_files_stand_behind_what_they_import():
    files = [
        read_source("scenes/a.js", 'import { b } from "../b.js";\nexport const mount = b;\n'),
        read_source("b.js", "const own = 2;\nexport const b = 1 + own;\n"),
    ]
    inner = "function numbers() {\nconst own = 2;\nconst b = 1 + own;\nreturn { b };\n}\nconst { b } = numbers();\n"
    assert assembled(files) == f"{inner}const mount = b;\nexport {{ numbers, mount }};\n"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.js": 'import * as b from "./b.js";\n'}, "expected named imports"),
        ({"a.js": "export default 1;\n"}, "expected named imports"),
        ({"a.js": 'import { b } from "./b.js";\n'}, "imports b.js, which is no file"),
        ({"a.js": 'import { b } from "./b.js";\n', "b.js": 'import { a } from "./a.js";\n'}, "imports itself"),
        ({"a.js": 'import { b } from "./b.js";\n', "b.js": "const b = 1;\n"}, "imports b, which b.js does not export"),
        ({"a.js": "export const c = 1;\n", "b.js": "export const c = 2;\n"}, "c: at the top of two files"),
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


MINIFIED = {
    "const a = 1;\nconst b = 2;\n": "const a=1,b=2;",
    "for (const a of b) c(a);\nconst d = 1;\n": "for(const a of b)c(a);const d=1;",
    "const f = (x) => { const y = x; return y; };\nconst g = 1;": "const f=x=>{const y=x;return y},g=1;",
    "if (a) { b(); }\nelse { c(); }": "if(a){b()}\nelse{c()}",
    "while (a());\n": "while(a());",
    "() => { for (;;); };": "()=>{for(;;);};",
    "f((x, y) => x, [1, , 2], [3,],);": "f((x,y)=>x,[1,,2],[3]);",
    "a - -b + +c ** d / /e/.f;": "a- -b+ +c**d/ /e/.f;",
    "a ?? b?.c ?? (d ? 0.5 : 10.25e-3);": "a??b?.c??(d?.5:10.25e-3);",
    "return a;\n": "return a;",
    "a\nb\n(c)": "a\nb(c)",
    "return\n[1]": "return\n[1]",
    "const t = `a  ${ b ? `  ${ {c: 1} }` : /[/`]/ }  // d\n`; // e": "const t=`a  ${b?`  ${{c:1}}`:/[/`]/}  // d\n`;",
    'class A { #a = 1; b() { this.#a; } }\nconst b = "//  ";': 'class A{#a=1;b(){this.#a}}\nconst b="//  ";',
    "/** a */ async (x) => await x; // b\n/* c\n */ d": "async x=>await x;d",
    "const [a, b] = [1, 2];\nconst { c } = d;\nlet e;\n": "const[a,b]=[1,2],{c}=d;let e;",
}


@pytest.mark.every_case
@pytest.mark.parametrize("script", MINIFIED)
def test_a_script_in_fewer_characters(script):
    assert minify(script) == MINIFIED[script]
    assert minify(minify(script)) == minify(script)


def test_the_minified_module_has_the_same_names_and_texts_in_the_same_order():
    def rest(script: str) -> list[str]:
        needless = {",", ";", "(", ")", "const"}
        return [t.text.removeprefix("0") or "0" for t in tokens(script) if t.text not in needless]

    plain = plain_source()
    assert rest(minify(plain)) == rest(plain)


def test_a_template_that_does_not_end_is_refused():
    with pytest.raises(ValueError, match="got a template that does not end"):
        minify("const a = `b ${c} d;")
