"""Large layers: the Web Worker, which drops what is overtaken, and the widget, with and without the kernel."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import hessianlens as hl
from hessianlens.attention.activations import ElementwiseFunction, Sigmoid, SoftCapped
from hessianlens.errors import InputError
from hessianlens.explorer.module import module_source
from hessianlens.explorer.standalone import content_policy, style
from hessianlens.explorer.widget import BROWSER_MAX_WEIGHTS, LayerQuestion, head_as_numbers, widget_source
from hessianlens.parts import LAYER_PARTS

DOUBLE = torch.float64


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def opened(page, tmp_path: Path, script: str, *, body: str = "") -> Any:
    """A page with a script of its own, under the policy of the explorer's page."""
    policy = content_policy(script).replace("'", "&#x27;")
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}"><style>{style()}</style>'
    )
    file = tmp_path / "page.html"
    file.write_text(f'<!doctype html>{head}{body}<script type="module">{script}</script>')
    return page.open(file)


# --- the worker ------------------------------------------------------------------------------------------------------

LARGE = """
const draw = lens.normals(1);
const [Q, K, V] = Array.from({ length: 3 }, () => lens.randomMatrix(9, 9, draw));
const layer = { weights: { Q, K, V } };
const [X, targets] = [lens.randomMatrix(4, 9, draw), lens.randomMatrix(4, 9, draw)];
const state = { sigma: 1, temperature: 1, wrong: 1 };
"""
ANSWERS = (
    LARGE
    + """
const work = new explorer.Background();
const ask = (topic, wrong) => work.ask(topic, "measured", layer, X, targets, { ...state, wrong });
const [first, overtaken, last] = await Promise.all([0.5, 0.7, 1].map((wrong) => ask("a", wrong)));
const other = await ask("b", 1);
const nosuch = { ...layer, activation: "nosuch" };
const refused = await work.ask("a", "hessian", nosuch, X, { targets }).catch((error) => error.message);
work.close();
const direct = JSON.stringify(lens.measured(layer, X, targets, state));
const count = lens.parameterCount(layer);
const whole = await explorer.compute("c", count, "measured", layer, X, targets, state);
const same = [last, other, whole].map((one) => JSON.stringify(one) === direct);
return { first: first ?? null, overtaken: overtaken ?? null, same, refused };
"""
)


@pytest.mark.browser
def test_the_worker_answers_and_drops_what_is_overtaken(page, tmp_path):
    opened(page, tmp_path, f"{module_source()}window.lens = numbers(); window.explorer = {{ Background, compute }};")
    found = page.run(f"return (async () => {{ {ANSWERS} }})();")
    refused = found.pop("refused")
    assert found == {"first": None, "overtaken": None, "same": [True, True, True]}
    assert refused.startswith("activation: got nosuch; expected one of softmax,")
    assert page.console_errors() == []


# --- the widget ------------------------------------------------------------------------------------------------------

LAYERS = {
    "two matrices": hl.SelfAttention.random(3, 2, seed=1, dtype=DOUBLE, causal=True, activation="tanh"),
    "one matrix": hl.SingleMatrixAttention(normal(3, 3), normal(3, 2, seed=2), temperature=0.5),
    "two heads": hl.MultiHeadAttention(
        [
            hl.SelfAttention.random(3, 2, seed=1, dtype=DOUBLE, activation=Sigmoid(-0.3)),
            hl.SelfAttention.random(3, 1, seed=2, dtype=DOUBLE, activation=SoftCapped(2.0)),
        ]
    ),
    "large": hl.SelfAttention.random(9, 9, seed=1, dtype=DOUBLE),
}
STATE = {"sigma": 0.3, "temperature": 2.0, "wrong": 0.4}
MEASURED = """
const example = layerExample(arguments[0]);
return lens.measured(example.layer, example.X, example.targets, arguments[1]);
"""
MODEL = """
window.modelOf = (given, answer) => {
  const [values, heard] = [{ given, question: {}, answer: {} }, []];
  return {
    asked: [], get: (name) => values[name], on: (_, f) => heard.push(f),
    set(name, value) { values[name] = value; },
    save_changes() { this.asked.push(values.question); },
    reply() {
      values.answer = { ...answer, id: values.question.id };
      heard.forEach((f) => f());
    },
  };
};
"""


@pytest.mark.browser
@pytest.mark.every_case
@pytest.mark.parametrize("name", LAYERS)
def test_browser_and_kernel_give_the_same_numbers(page, tmp_path, name):
    layer = LAYERS[name]
    question = LayerQuestion(layer, normal(4, layer.heads[0].d_model if name == "two heads" else layer.d_model, seed=3))
    expected, given = question.answer(**STATE), question.given()
    assert not given["kernel"]
    opened(page, tmp_path, f"{module_source()}window.lens = numbers(); window.layerExample = layerExample;")
    found = page.run(MEASURED, given, STATE)
    for part in LAYER_PARTS:
        one, other = (torch.tensor(numbers["norms"][part], dtype=DOUBLE) for numbers in (found, expected))
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-13 * float(other.max()))
    assert torch.allclose(*(torch.tensor(n["values"], dtype=DOUBLE) for n in (found, expected)), atol=1e-12)
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-12)


def widget_page(page, tmp_path: Path) -> Any:
    script = f"{widget_source().replace('export default', 'window.widget =')}{MODEL}"
    return opened(page, tmp_path, script, body='<div id="cell" style="width:700px"></div>')


SHOW = """
window.model = modelOf(arguments[0], arguments[1]);
window.end = widget.render({ model, el: document.querySelector("#cell") });
"""
SAYS = 'return document.querySelector("#cell .says").textContent'
MOVE = """
const slider = document.querySelector('#cell input[name="sigma"]');
for (const value of [-0.5, -0.6, -0.7]) { slider.value = value; slider.dispatchEvent(new Event("input")); }
"""
DRAWN = "return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


@pytest.mark.browser
def test_the_widget_computes_a_small_layer_by_itself(page, tmp_path):
    widget_page(page, tmp_path).run(SHOW, LayerQuestion(LAYERS["two matrices"], normal(4, 3)).given(), {})
    before = page.run(SAYS)
    assert re.match(r"The block of W\w is the largest, .* of 21 eigenvalues are negative\.", before)
    page.run(MOVE)
    page.run(DRAWN)
    assert page.run(SAYS) != before
    assert page.run("return model.asked") == []
    page.run("end()")
    assert page.run('return document.querySelector("#cell").children.length') == 0
    assert page.console_errors() == [] and page.outside_requests() == []


@pytest.mark.browser
def test_the_widget_asks_the_kernel_about_other_layers(page, tmp_path):
    layer = hl.SelfAttention.random(3, 2, seed=1, dtype=DOUBLE, activation=ElementwiseFunction(torch.sin, "sine"))
    question = LayerQuestion(layer, normal(4, 3))
    given = question.given()
    assert given["kernel"] and "heads" not in given
    widget_page(page, tmp_path).run(SHOW, given, question.answer())
    assert page.run(SAYS) == "Computing ..."
    page.run(MOVE)
    page.run(DRAWN)
    assert page.run("return model.asked") == [{"sigma": 1, "temperature": 1, "wrong": 1, "id": 1}]
    page.run(f"model.reply(); {DRAWN}")
    assert page.run(SAYS) == "Computing ..."
    page.run(f"model.reply(); {DRAWN}")
    assert page.run(SAYS).startswith("The block of W")
    latest = page.run("return model.asked")[1:]
    assert [one["sigma"] for one in latest] == [pytest.approx(10**-0.7, rel=1e-3)]
    assert page.console_errors() == []


def test_the_kernel_answers():
    question = LayerQuestion(LAYERS["two matrices"], normal(4, 3), normal(4, 3, seed=5))
    widget = hl.explore(question.layer, question.X, question.targets)
    widget.question = {**STATE, "id": 7}
    assert widget.answer == {**json.loads(json.dumps(question.answer(**STATE))), "id": 7}
    widget.question = {"sigma": "x", "id": 8}
    assert "could not convert" in widget.answer["error"] and widget.answer["id"] == 8


def test_numbers_of_the_kernel_are_those_of_the_hessian():
    layer, X, targets = LAYERS["two heads"], normal(4, 3), normal(4, 3, seed=5)
    H = hl.attention_hessian(layer, X, hl.SquareLoss(targets))
    found = LayerQuestion(layer, X, targets).answer()
    assert found["norms"]["full"][0][3] == pytest.approx(float(H.full[("Q", 0), ("Q", 1)].frobenius_norm()))
    assert found["loss"] == pytest.approx(float(hl.SquareLoss(targets).value(layer(X)[None])))


def test_what_the_browser_cannot_compute_is_left_to_python():
    one = hl.SelfAttention.random(3, 2, dtype=DOUBLE)
    assert head_as_numbers(hl.SelfAttention.random(3, 2, bias=torch.zeros(4, 4))) is None
    assert LayerQuestion(one, normal(2, 4, 3)).given()["kernel"]
    large = hl.SelfAttention.random(16, 16, dtype=DOUBLE)
    assert sum(w.numel() for w in large.parameters.values()) > BROWSER_MAX_WEIGHTS
    assert LayerQuestion(large, normal(4, 16)).given()["kernel"]
    assert len(LayerQuestion(large, normal(4, 16)).answer()["values"]) == 768


def test_bad_input_is_refused():
    layer = LAYERS["two matrices"]
    with pytest.raises(InputError, match="layer: got Linear"):
        hl.explore(torch.nn.Linear(2, 2), normal(4, 3))
    with pytest.raises(InputError, match=r"targets: got \(4, 2\); expected the shape of the layer's output, \(4, 3\)"):
        hl.explore(layer, normal(4, 3), normal(4, 2))
    with pytest.raises(InputError, match="X: got tokens of width 2"):
        hl.explore(layer, normal(4, 2))


def test_without_the_extra_the_message_says_how_to_get_it():
    code = (
        "import sys, torch; sys.modules['anywidget'] = None; import hessianlens as hl\n"
        "try: hl.explore(hl.SelfAttention.random(2, 2), torch.zeros(2, 2))\n"
        "except hl.InputError as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert said.startswith("hl.explore() needs anywidget, which is not installed; install it with")
    assert said.endswith("pip install 'hessianlens[explore]'.\n")
