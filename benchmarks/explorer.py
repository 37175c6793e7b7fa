"""The closed form in the browser: one Hessian with its block norms in JavaScript, against the library in Python.

Chromium computes a block of repetitions in every round, and so does Python; a repetition is what a moved slider asks
for. Afterwards the scenes of the page are drawn, each several times, by moving its first slider or choice.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

import hessianlens as hl
from benchmarks import provenance
from benchmarks.harness import QUICK_ROUNDS, Competitor, Options, Tick, disturbance, summarise
from benchmarks.results import OURS, PEER, Result
from hessianlens.explorer import SCENES, module_source, page
from hessianlens.parts import LAYER_PARTS

BROWSER, PYTHON = "JavaScript in Chromium", "hessianlens in Python"
AGREE = 1e-10
"""Largest relative difference of a block norm."""

_PAGE = '<!doctype html><meta charset="utf-8"><script type="module">{}window.lens = numbers();</script>'
_PREPARE = """
const of = (rows) => lens.matrix(rows);
const { X, targets, weights } = arguments[0];
window.question = () => {
  const H = lens.hessian(layer, tokens, { targets: goal });
  return Object.fromEntries(lens.PARTS.map((part) => [part, lens.blockNorms(H, part)]));
};
const layer = { weights: Object.fromEntries(Object.entries(weights).map(([name, W]) => [name, of(W)])) };
const [tokens, goal] = [of(X), of(targets)];
"""
_TIME = """
const began = performance.now();
for (let k = 0; k < arguments[0]; k++) question();
return (performance.now() - began) / arguments[0] / 1000;
"""
_DRAW = """
const [name, times] = arguments;
const element = document.createElement("div");
document.body.append(element);
const scene = mount(element, { scene: name, address: false });
const controls = Array.from(element.querySelectorAll("input[type=range]"));
return (async () => {
  const found = [];
  for (let k = 0; k < times; k++) {
    const slider = controls[k % controls.length];
    slider.value = Number(slider.min) + (Number(slider.max) - Number(slider.min)) * ((k * 0.37) % 1);
    slider.dispatchEvent(new Event("input"));
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    found.push(scene.ms());
  }
  scene.remove();
  element.remove();
  return found;
})();
"""


@dataclass(frozen=True)
class Size:
    """A layer of one head with d_V = d.

    Attributes:
        length: Tokens.
        d: Their width.
        d_k: Width of queries and keys.
        repetitions: Hessians in a round.
    """

    length: int
    d: int
    d_k: int
    repetitions: int

    @property
    def weights(self) -> int:
        return 2 * self.d * self.d_k + self.d**2


SIZES = {"explorer_small": Size(5, 2, 2, 200), "explorer_medium": Size(12, 8, 8, 10)}
GOALS = {"explorer_small": "1 ms", "explorer_medium": "150 ms"}
ROUNDS, DRAWINGS = 15, 30


class Layer:
    """A random layer, its tokens and targets, for both sides."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self.layer = hl.SelfAttention.random(size.d, size.d_k, seed=0, dtype=torch.float64)
        shape = (2, size.length, size.d)
        self.X, self.targets = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def given(self) -> dict[str, Any]:
        weights = {name: w.tolist() for name, w in self.layer.parameters.items()}
        return {"X": self.X.tolist(), "targets": self.targets.tolist(), "weights": weights}

    def norms(self) -> dict[str, dict[str, dict[str, float]]]:
        H = hl.attention_hessian(self.layer, self.X, hl.SquareLoss(self.targets))
        found = {part: H.part(part).norms() for part in LAYER_PARTS}
        names = list(self.layer.parameters)
        return {part: {r: {c: float(norms[r, c]) for c in names} for r in names} for part, norms in found.items()}


def chromium() -> Any:
    """Chromium without a window."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))


def in_browser(browser: Any, layer: Layer) -> Callable[[int], float]:
    """Seconds of one Hessian in the page, over some repetitions."""
    opened(browser, _PAGE.format(module_source()))
    browser.execute_script(_PREPARE, layer.given())
    return partial(browser.execute_script, _TIME)


def in_python(layer: Layer) -> Callable[[int], float]:
    """The same in this process."""

    def run(repetitions: int) -> float:
        began = perf_counter()
        for _ in range(repetitions):
            layer.norms()
        return (perf_counter() - began) / repetitions

    return run


def opened(browser: Any, html: str) -> None:
    """Show a page."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(html, encoding="utf-8")
        browser.get(file.as_uri())


def check(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Both have the same norms of all blocks."""
    for part, rows in theirs.items():
        for row, columns in rows.items():
            for column, expected in columns.items():
                found = ours[part][row][column]
                if not abs(found - expected) <= AGREE * expected:
                    raise AssertionError(f"{part} {row} {column}: {found} in the browser, {expected} in Python")


def measure(name: str, options: Options, tick: Tick, size: Size | None = None) -> Result:
    """Rounds of both sides, then drawings."""
    chosen, rounds = size or SIZES[name], QUICK_ROUNDS if options.quick else ROUNDS
    torch.set_num_threads(options.threads)
    layer, browser = Layer(chosen), chromium()
    competitors = (Competitor(BROWSER, partial(in_browser, browser), OURS), Competitor(PYTHON, in_python, PEER))
    repetitions = {BROWSER: chosen.repetitions, PYTHON: max(chosen.repetitions // 10, 1)}
    try:
        runs: dict[str, Any] = {c.name: c.prepare(layer) for c in competitors}
        first = {name: run(1) for name, run in runs.items()}
        check(browser.execute_script("return question()"), layer.norms())
        tick("first calls")
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for k in range(rounds):
            for each, run in runs.items():
                seconds[each].append(run(repetitions[each]))
            tick(f"round {k + 1} of {rounds}")
        drawn = drawings(browser, 3 if options.quick else DRAWINGS) if name == "explorer_small" else {}
    finally:
        browser.quit()
    found = Result(
        name=name,
        title=title(chosen),
        setting={"dtype": "float64", "L": chosen.length, "d": chosen.d, "d_K": chosen.d_k, "weights": chosen.weights},
        target=1.0,
        against=PYTHON,
        rounds=rounds,
        timings=summarise(competitors, seconds, first),
        details={"drawing_ms": drawn, "module_bytes": len(module_source().encode())},
        provenance=provenance.collect(),
    )
    return replace(found, notes=tuple(notes(found)))


def drawings(browser: Any, times: int) -> dict[str, float]:
    """Median milliseconds of a whole drawing after a slider has moved, numbers included, by scene."""
    script = page([]).split('<script type="module">')[1].split("</script>")[0]
    opened(browser, _PAGE.format(f"{script}window.mount = mount;"))
    return {name: median(browser.execute_script(_DRAW, name, times)) for name in SCENES}


def notes(found: Result) -> list[str]:
    """Sentences about the numbers."""
    ours = found.timing(BROWSER).seconds
    text = f"One Hessian with the norms of its blocks takes {1e3 * ours.median:.2f} ms ({1e3 * ours.low:.2f} - "
    lines = [f"{text}{1e3 * ours.high:.2f}) in the browser, on the wall; the goal is {GOALS.get(found.name, 'none')}."]
    drawn: dict[str, float] = found.details["drawing_ms"]
    if drawn:
        each = ", ".join(f"{name} {ms:.1f}" for name, ms in drawn.items())
        lines.append(f"A drawing after a moved slider, in ms: {each}.")
    kilobytes = found.details["module_bytes"] / 1000
    return [*lines, f"The module is {kilobytes:.1f} kB.", *disturbance(found.timings)]


def title(size: Size) -> str:
    """The question, with its size."""
    return f"The Hessian of {size.weights} weights with all block norms, in the browser"


def steps(options: Options) -> int:
    """How often a run ticks."""
    return 1 + (QUICK_ROUNDS if options.quick else ROUNDS)


def run(name: str, options: Options, tick: Tick) -> Result:
    """Measure and write the result."""
    found = measure(name, options, tick)
    found.save()
    return found
