"""Every scene in a real browser: its numbers are those of its Python lines, and everything that moves can be moved."""

from __future__ import annotations

import contextlib
import io
import math
import re
import time
from pathlib import Path

import pytest

pytest.importorskip("selenium")
from selenium.webdriver.common.keys import Keys

import hessianlab
from hessianlab.claims.catalogue import claim_topics
from hessianlens import explorer
from hessianlens.display import PALETTE
from hessianlens.explorer.standalone import style

pytestmark = pytest.mark.browser

REPORT = Path(hessianlab.__file__).parent / "report"

SETTINGS = {
    "row": [
        "",
        "printed:2~seen:2",
        "kind:sigmoid~t:0.5",
        "kind:row_sum~scores:3,-2,1~seen:3",
        "kind:relu_normalised~seen:3",
    ],
    "tokens": ["", "query:1~sharp:4", "X:0.3,-1,1.2,0.5,-0.2,1.1,1.5,1.5,0.8,-0.9"],
    "curvature": ["", "along:V~step:-1.2", "along:steep", "along:most~step:1", "along:least~reach:4~step:3"],
    "factors": ["", "sigma:0.1", "sigma:0.05~kind:tanh"],
    "activation": [
        "",
        "a0:0.25",
        "a0:1~sigma:0.5",
        *(f"kind:{name}" for name in ("softmax", "sigmoid", "exp", "tanh", "linear", "relu_normalised")),
        "kind:expm1",
        "kind:expm1~sigma:0.01",
    ],
    "matrices": ["", "design:one", "kind:linear~dk:3", "kind:linear~design:one", "wrong:0~dk:1"],
    "depth": ["", "layers:1~kind:softmax", "layers:3", "norm:1", "skip:1~norm:1~kind:softmax"],
    "rates": ["", "same:0~rateQ:2000~steps:40", "kind:tanh~sigma:0.5~rateV:1", "kind:sigmoid~adam:0.02"],
}
"""States of every scene, as they stand in the address."""

CASES = [(name, state) for name, states in SETTINGS.items() for state in states]

CONTROLS = """
const scene = document.querySelector("[data-scene]");
return Array.from(scene.querySelectorAll("input, .handle, .line[tabindex], .formulas li, .controls button"), (e, k) => {
  e.dataset.control = k;
  const kind = e.matches("input") ? e.type : e.matches("button") ? "button" : e.matches(".handle") ? "handle" : "lit";
  return [k, kind, e.getAttribute("aria-label") || e.name || e.textContent];
});
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A page for every scene alone, and one with all of them."""
    folder = tmp_path_factory.mktemp("scenes")
    for name in explorer.SCENES:
        (folder / f"{name}.html").write_text(explorer.page([name]), encoding="utf-8")
    (folder / "all.html").write_text(explorer.page(), encoding="utf-8")
    return lambda name: folder / f"{name}.html"


def opened(page, file, name, state="", **size):
    return page.open(file(name), fragment=f"?{name}={state}" if state else "", **size)


def settled(page) -> str:
    """Everything that a scene shows, once what was asked for is drawn."""
    page.driver.execute_async_script(
        "const [done] = arguments; requestAnimationFrame(() => requestAnimationFrame(() => done()))"
    )
    return page.run("return document.querySelector('.scene').innerHTML")


def numbers_of(text: str) -> list[tuple[str, float]]:
    lines = (line.rsplit(" ", 1) for line in text.strip().splitlines())
    return [(name, float(value)) for name, value in lines]


@pytest.mark.parametrize(("name", "state"), CASES)
def test_the_python_lines_give_the_numbers_on_screen(page, file, name, state):
    opened(page, file, name, state).run("document.querySelector('button.code').click()")
    lines, prints = (page.run(f"return document.querySelector('.{part}').textContent") for part in ("lines", "prints"))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(lines, f"the Python lines of {name}", "exec"), {})
    expected, shown = numbers_of(printed.getvalue()), numbers_of(prints)
    assert [key for key, _ in shown] == [key for key, _ in expected]
    largest = max(abs(value) for _, value in expected)
    for (key, value), (_, wanted) in zip(shown, expected, strict=True):
        assert value == pytest.approx(wanted, rel=1e-7, abs=1e-12 * largest), key


def test_the_counter_shows_the_ratio(page, file):
    opened(page, file, "activation", "kind:softmax").run("document.querySelector('button.code').click()")
    ratio = dict(numbers_of(page.run("return document.querySelector('.prints').textContent")))["value / query"]
    assert page.run("return document.querySelector('.counter').firstChild.textContent") == f"{ratio:.3g}"
    assert f"{ratio:.3g} times as large" in page.run("return document.querySelector('.says').textContent")


@pytest.mark.expensive
@pytest.mark.parametrize("name", explorer.SCENES)
@pytest.mark.parametrize("width", [1440, 390])
def test_every_control_is_moved_by_keyboard_and_pointer(page, file, name, width):
    opened(page, file, name, width=width)
    for number, kind, label in page.run(CONTROLS):
        for move in (_by_keyboard, _by_mouse, _by_touch):
            opened(page, file, name, width=width)
            page.run(CONTROLS)
            before = settled(page)
            if not move(page, number, kind):
                continue
            assert settled(page) != before, (label, move.__name__)
    assert page.console_errors() == []
    assert page.outside_requests() == []


def _found(page, number):
    return page.driver.find_element("css selector", f"[data-control='{number}']")


def _checked(page, number) -> bool:
    return bool(
        page.run(f"return document.querySelector(\"[data-control='{number}']\").matches('[type=radio]:checked')")
    )


def _by_keyboard(page, number, kind) -> bool:
    if _checked(page, number):
        return False
    keys = {
        "range": (Keys.ARROW_LEFT, Keys.ARROW_RIGHT),
        "radio": (Keys.SPACE,),
        "checkbox": (Keys.SPACE,),
        "button": (Keys.ENTER,),
        "handle": (Keys.ARROW_UP,) * 3,
        "lit": (),
    }
    page.run(f"document.querySelector(\"[data-control='{number}']\").focus()")
    wanted = keys[kind]
    before = settled(page) if kind == "range" else ""
    for key in wanted:
        page.driver.switch_to.active_element.send_keys(key)
        if kind == "range" and settled(page) != before:
            break
    return True


def _place(page, number) -> tuple[float, float, float]:
    return page.run(
        f"const e = document.querySelector(\"[data-control='{number}']\");"
        "const part = e.matches('.line') ? 'text' : e.matches('.handle') ? '.hit' : null;"
        "const seen = part ? e.querySelector(part) : e;"
        "seen.scrollIntoView({ block: 'center' });"
        "const r = seen.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2, r.width]"
    )


def _path(page, number, kind) -> list[tuple[float, float]]:
    x, y, width = _place(page, number)
    if kind == "range":
        return [(x, y), (x + width * 0.2, y), (x - width * 0.45, y)]
    return [(x, y), (x + 14, y - 8), (x + 30, y - 26)] if kind == "handle" else [(x, y)]


def _by_mouse(page, number, kind) -> bool:
    if _checked(page, number):
        return False
    path = _path(page, number, kind)
    send = page.driver.execute_cdp_cmd
    for step, (x, y) in enumerate(path):
        send(
            "Input.dispatchMouseEvent",
            {"type": "mouseMoved", "x": x, "y": y, "button": "left", "buttons": int(step > 0)},
        )
        if step == 0:
            send(
                "Input.dispatchMouseEvent", {"type": "mousePressed", "x": x, "y": y, "button": "left", "clickCount": 1}
            )
    send("Input.dispatchMouseEvent", {"type": "mouseReleased", "x": x, "y": y, "button": "left", "clickCount": 1})
    return True


def _by_touch(page, number, kind) -> bool:
    if _checked(page, number):
        return False
    send = page.driver.execute_cdp_cmd
    send("Emulation.setTouchEmulationEnabled", {"enabled": True})
    for step, (x, y) in enumerate(_path(page, number, kind)):
        send(
            "Input.dispatchTouchEvent",
            {"type": "touchMove" if step else "touchStart", "touchPoints": [{"x": x, "y": y}]},
        )
    send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    send("Emulation.setTouchEmulationEnabled", {"enabled": False})
    return True


@pytest.mark.parametrize(("name", "state"), [(name, states[-1]) for name, states in SETTINGS.items()])
def test_reload_restores_the_state_and_start_again_clears_it(page, file, name, state):
    opened(page, file, name, f"{state}~two:1")
    before = settled(page)
    page.driver.refresh()
    assert settled(page) == before
    assert f"{name}={state}" in page.run("return location.search")
    page.run("document.querySelector('button.reset').click()")
    assert settled(page) != before
    page.driver.find_element("css selector", "input[type=range]").send_keys(Keys.ARROW_LEFT * 3)
    moved = settled(page)
    time.sleep(0.4)  # the address is written when nothing has moved for a while
    page.driver.refresh()
    assert settled(page) == moved != before


HOSTILE = [
    "sigma:NaN",
    "kind:constructor",
    "kind:%3Cimg src=x onerror=alert(1)%3E",
    "a0:1e999",
    "a0:-5",
    "sigma",
    "__proto__:1",
    "a0:",
]


HOSTILE_ELSEWHERE = [
    ("tokens", "X:1,2~query:7~sharp:0"),
    ("row", "scores:1e400,2~seen:2.5~printed:-3"),
    ("row", "scores:1~seen:9~kind:toString"),
    ("curvature", "reach:-5~step:9e99~along:0"),
    ("factors", "sigma:-1~lit:__proto__"),
    ("matrices", "dk:2.5~design:constructor"),
    ("depth", "layers:9~norm:yes"),
    ("rates", "kind:constructor~steps:1.5~rateV:0"),
]


@pytest.mark.every_case
@pytest.mark.parametrize(("name", "state"), HOSTILE_ELSEWHERE)
def test_a_broken_address_leaves_a_scene_that_works(page, file, name, state):
    opened(page, file, name, state)
    says = page.run("return document.querySelector('.says').textContent")
    assert len(says) > 40 and "NaN" not in says and "undefined" not in says
    assert page.console_errors() == []


@pytest.mark.parametrize("state", HOSTILE)
def test_nothing_in_the_address_breaks_a_scene_or_runs(page, file, state):
    opened(page, file, "activation", state)
    assert page.run("return document.querySelector('.says').textContent").startswith("a(0) = 0: a score of zero")
    assert page.console_errors() == []


def test_two_designs_stand_side_by_side_under_one_control(page, file):
    opened(page, file, "activation", "kind:softmax~two:1~kind2:tanh")
    first, second = page.run("return Array.from(document.querySelectorAll('.says'), (e) => e.textContent)")
    assert first.startswith("softmax has a(0) = 0.2") and second.startswith("tanh has a(0) = 0")
    left, right = page.run("return Array.from(document.querySelectorAll('figure'), (e) => e.getBoundingClientRect().x)")
    assert right > left + 300
    page.open(file("activation"), fragment="?activation=two:1", width=390)
    tops = page.run("return Array.from(document.querySelectorAll('figure'), (e) => e.getBoundingClientRect().y)")
    assert tops[1] > tops[0] + 300


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1440, 768, 390])
def test_every_width_fits_with_readable_text_and_room_for_a_finger(page, file, width, dark):
    page.open(file("all"), width=width, dark=dark)
    assert page.overflow() <= 0
    assert page.smallest_figure_text() >= 12
    small = page.run(
        "return Array.from(document.querySelectorAll('.scene :is(button, input, .hit)'))"
        ".filter((e) => e.checkVisibility() && !e.matches('.toggle input'))"
        ".map((e) => [e.outerHTML.slice(0, 80), e.getBoundingClientRect().height]).filter(([, h]) => h < 32)"
    )
    assert small == []
    outside = page.run(
        "return Array.from(document.querySelectorAll('.scene svg text'))"
        ".map((e) => [e.textContent, e.getBoundingClientRect()])"
        ".filter(([, r]) => r.right > innerWidth || r.left < 0).map(([text]) => text)"
    )
    assert outside == []
    assert page.console_errors() == []


def test_words_are_explained_by_touch_and_keyboard(page, file):
    opened(page, file, "curvature")
    assert page.run("return document.querySelectorAll('.term button').length") == 2
    page.run("document.querySelector('.term button').focus()")
    page.driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert page.run("return document.querySelector('.meaning').matches(':popover-open')")
    page.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert not page.run("return document.querySelector('.meaning').matches(':popover-open')")


def test_a_meaning_stands_by_its_word_until_one_looks_elsewhere(page, file):
    opened(page, file, "curvature")
    is_open = "return document.querySelector('.meaning').matches(':popover-open')"
    word = page.driver.find_element("css selector", ".term button")
    for leave in ("scrollBy(0, -60)", "document.querySelector('button.code').focus()"):
        page.run("scrollTo(0, document.body.scrollHeight)")
        word.click()
        assert page.run(is_open)
        button, meaning = page.run(
            "return ['.term button', '.meaning'].map((one) => document.querySelector(one).getBoundingClientRect())"
        )
        assert min(abs(meaning["top"] - button["bottom"]), abs(button["top"] - meaning["bottom"])) < 8
        assert meaning["left"] >= 0 and abs(meaning["left"] - button["left"]) < 400
        page.run(leave)
        settled(page)
        assert not page.run(is_open), leave


def test_no_rule_of_the_pages_around_reaches_into_a_scene(page, file):
    sheets = [(REPORT / name).read_text(encoding="utf-8") for name in ("reading.css.jinja", "story.css.jinja")]
    page.open(file("all"), fragment="?row=printed:2~seen:2")
    reached = page.run(
        "const rules = arguments[0].flatMap((text) => { const sheet = new CSSStyleSheet(); sheet.replaceSync(text);"
        " const all = (list) => Array.from(list).flatMap("
        "  (r) => r.selectorText ? [r.selectorText] : all(r.cssRules ?? []));"
        " return all(sheet.cssRules); }).flatMap((s) => s.split(/,\\s*/)).filter((s) => s.includes('.'));"
        "const parts = Array.from(document.querySelectorAll('.scene *'));"
        "return [rules.length, rules.filter((s) => parts.some((e) => e.matches(s)))]",
        sheets,
    )
    assert reached[0] > 30 and reached[1] == []


def test_a_mark_of_a_slider_stands_where_its_knob_would_stop(page, file):
    opened(page, file, "rates", "same:0")
    page.run("document.querySelector('button.code').click()")
    prints = dict(numbers_of(page.run("return document.querySelector('.prints').textContent")))
    shares = page.run(
        "return Array.from(document.querySelectorAll('.marks'), (marks) => {"
        " const box = (e) => e.getBoundingClientRect();"
        " const track = marks.parentNode.querySelector('input');"
        " const [tip, way] = [box(marks.querySelector('text')), box(track)];"
        " return [track.name, (tip.x + tip.width / 2 - way.x - 8) / (way.width - 16)]; })"
    )
    assert [key for key, _ in shares] == ["rateV", "rateQ"]
    for key, share in shares:
        limit = prints[f"2 / λ of W_{key[-1]}"]
        assert share == pytest.approx((math.log10(limit) + 2) / 8, abs=0.01)


def test_the_race_says_what_it_shows(page, file):
    says = "return document.querySelector('.says').textContent"
    opened(page, file, "rates", "same:0~steps:200")
    assert "Two equal step sizes" in page.run(says) and "plain SGD" not in page.run(says)
    names, axis = page.run(
        "const y = (e) => e.getBoundingClientRect().bottom;"
        "const names = Array.from(document.querySelectorAll('.scene figure svg text'))"
        ".filter((e) => ['SGD', 'momentum', 'Adam'].includes(e.textContent));"
        "return [names.map(y), y(document.querySelector('.handle .knob'))]"
    )
    assert len(names) == 3 and max(names) <= axis
    opened(page, file, "rates", "kind:tanh~rateV:1000000~sigma:1~steps:200")
    assert "SGD diverged" in page.run(says) and "10220" not in page.run(says)


def test_a_printed_row_is_pressed_only_while_it_is_the_row(page, file):
    opened(page, file, "row", "printed:2~seen:2")
    pressed = "return document.querySelectorAll('.presets [aria-pressed=true]').length"
    assert page.run(pressed) == 1
    page.driver.find_element("css selector", "input[name=t]").send_keys(Keys.ARROW_RIGHT)
    settled(page)
    assert page.run(pressed) == 0


def test_a_picture_states_its_finding_and_sliders_their_values(page, file):
    page.open(file("all"))
    for label, says in page.run(
        "return Array.from(document.querySelectorAll('figure'))"
        ".map((f) => [f.querySelector('svg').getAttribute('aria-label'), f.querySelector('.says').textContent])"
    ):
        assert len(label) > 60 and re.sub(r"\W", "", says)[:10] == re.sub(r"\W", "", label)[:10]
    told = page.run(
        "return Array.from(document.querySelectorAll('.scene :is([type=range], [role=slider])'))"
        ".map((e) => e.getAttribute('aria-valuetext'))"
    )
    assert len(told) > 25 and all(told)


def test_claims_are_links_to_the_lab_book(page, file):
    page.open(file("all"))
    links = page.run("return Array.from(document.querySelectorAll('.claims a'), (a) => a.getAttribute('href'))")
    known = set(claim_topics())
    assert links and {re.fullmatch(r"labbook\.html#claim-(\w+)", link)[1] for link in links} <= known


def test_playing_runs_the_race_and_reduced_motion_jumps(page, file):
    opened(page, file, "rates")
    page.driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-reduced-motion", "value": "reduce"}]}
    )
    page.run("document.querySelector('button.play').click()")
    settled(page)
    assert page.run("return document.querySelector('[name=steps]').value") == "200"
    opened(page, file, "rates")
    page.run("document.querySelector('button.play').click()")
    time.sleep(1)
    assert 1 < int(page.run("return document.querySelector('[name=steps]').value")) < 200


def test_the_colours_are_those_of_the_figures():
    sheet = style()
    for own, name in (("q", "blue"), ("k", "green"), ("v", "red"), ("a", "purple"), ("ink", "ink"), ("muted", "muted")):
        assert f"--{own}: light-dark({', '.join(PALETTE[name])})" in sheet


@pytest.mark.parametrize(
    "state", ["", "X:0.3,-1,0.5,-0.8,0.4,-0.9,-1.2,-0.2,0.8,-0.9", "X:2.2,2.2,2.2,-2.2,-2.2,2,-2.2,-2.2,0,0"]
)
def test_names_of_words_do_not_cover_each_other(page, file, state):
    opened(page, file, "tokens", state, width=390)
    boxes = page.run(
        "const names = document.querySelectorAll('.handle .word');"
        "return Array.from(names, (e) => [e.textContent, e.getBoundingClientRect()])"
    )
    assert [re.fullmatch(r"\w+\d+ %", name) is not None for name, _ in boxes] == [True] * 5
    for k, (one, a) in enumerate(boxes):
        assert a["left"] >= 0 and a["right"] <= 390
        for other, b in boxes[:k]:
            apart = (
                a["left"] >= b["right"]
                or b["left"] >= a["right"]
                or a["top"] >= b["bottom"] - 4
                or b["top"] >= a["bottom"] - 4
            )
            assert apart, (one, other)
