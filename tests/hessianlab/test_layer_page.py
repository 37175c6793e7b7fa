"""The page of a layer: facts against the library and autograd, sentences against facts, the page as a file."""

import dataclasses
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

import hessianlens as hl
from hessianlab.layer_page import STEPS, LayerConfig, measure_layer, render
from hessianlab.layer_page import page as page_module
from hessianlab.layer_page.figures import draw
from hessianlab.layer_page.python_code import snippets
from hessianlab.layer_page.query_key import ranks
from hessianlab.layer_page.sentences import findings
from hessianlab.layer_page.setting import build
from hessianlab.layer_page.witnesses import agreement
from hessianlab.pages import FILE_NAME, check_directory, write_page
from hessianlab.plots.style import PALETTE
from hessianlab.results import result as provenance_of
from hessianlens.errors import InputError
from hessianlens.parts import LAYER_PARTS

CONFIG = LayerConfig(seed=3, length=7, d_model=5, d_k=3)
VOID = {"meta", "br", "hr", "img", "input", "link"}


@pytest.fixture(scope="module")
def measured():
    announced = []
    return measure_layer(CONFIG, announced.append), announced


@pytest.fixture(scope="module")
def facts(measured):
    return measured[0]


@pytest.fixture(scope="module")
def page(facts):
    return render(facts)


@pytest.fixture(scope="module")
def hessian():
    return build(CONFIG).hessian


# --- facts ------------------------------------------------------------------------------------------------------------


def test_every_step_is_announced_in_order(measured):
    facts, announced = measured
    assert announced == list(STEPS) == [step.title for step in facts.steps]


def test_witnesses_agree_to_rounding(facts):
    assert [a.part for a in facts.agreements] == ["outer", "functional", "full"]
    assert all(0 <= a.worst < 1e-13 and a.verdict == "agree" for a in facts.agreements)
    assert facts.witnesses_agree


def test_a_wrong_closed_form_is_noticed(facts, monkeypatch):
    right = hl.AttentionHessian._functional_terms

    def wrong(self, row, column):
        terms = right(self, row, column)
        return terms if terms is None else [dataclasses.replace(t, coefficient=1.001 * t.coefficient) for t in terms]

    monkeypatch.setitem(hl.theory.hessian._BLOCK_TERMS, "functional", wrong)
    setting = build(CONFIG)
    found = dataclasses.replace(facts, agreements=tuple(agreement(setting, part) for part in LAYER_PARTS))
    assert {a.part: a.verdict for a in found.agreements} == {"outer": "agree", "functional": "differ", "full": "agree"}
    assert not found.witnesses_agree
    assert "do not agree on functional" in findings(found)["witnesses"]


@pytest.mark.parametrize("part", ["outer", "functional", "full"])
def test_block_norms_are_those_of_the_dense_blocks(facts, part):
    ends = np.cumsum([0, 15, 15, 25])
    at = {name: slice(ends[k], ends[k + 1]) for k, name in enumerate("QKV")}
    for block in facts.blocks:
        dense = np.linalg.norm(facts.matrices[part][at[block.row], at[block.column]])
        assert getattr(block, part) == pytest.approx(dense, rel=1e-10, abs=1e-14)


def test_curvatures_are_consistent(facts):
    for fact in facts.curvatures:
        assert fact.smallest <= fact.trace / fact.size <= fact.largest
        assert fact.negative == 0 or fact.smallest < 0
        if fact.part == "outer":
            assert fact.negative == 0 and fact.negative_share == 0
    whole = {c.part: c for c in facts.curvatures if c.name == "all"}
    values = np.linalg.eigvalsh(facts.matrices["full"])
    assert whole["full"].negative == (values < -1e-12).sum()
    assert whole["full"].negative_share == pytest.approx(-values[values < 0].sum() / np.abs(values).sum())
    assert whole["full"].trace == pytest.approx(whole["outer"].trace + whole["functional"].trace)


def test_growth_is_measured_where_it_says_and_agrees(facts):
    growth = facts.growth
    largest_score = build(CONFIG).hessian.heads[0].scores.abs().max()
    assert growth.fit_high**2 * largest_score == pytest.approx(growth.largest_score)
    assert {c.activation for c in growth.curves} == {"softmax", "linear", "sigmoid", "relu_normalised"}
    for curve in growth.curves:
        assert curve.verdict == "agree"
        assert curve.predicted == hl.predicted_growth(curve.activation, curve.part, curve.row, curve.column)
        assert len(curve.norms) == len(growth.sigmas)


def test_the_asked_activation_is_among_the_growth_curves():
    measured = measure_layer(LayerConfig(length=4, d_model=3, d_k=2, activation="tanh"))
    assert "tanh" in {c.activation for c in measured.growth.curves}
    assert all(s.entropy is None for s in measured.sharpness)
    assert all(r.exact is None for r in measured.ranks)
    assert "no entropy" in findings(measured)["sharpness"]
    assert "growth-tanh" in draw(measured)


def test_pairs_and_ranks(facts, hessian):
    dense = np.linalg.eigvalsh(hessian.t_functional[:].to_dense().numpy())
    assert facts.pairs.dense == pytest.approx(dense, abs=1e-14)
    assert facts.pairs.closed == pytest.approx(dense, abs=1e-14)
    assert 2 * facts.pairs.negative == facts.pairs.nonzero == 2 * facts.pairs.rank * CONFIG.d_k
    assert {r.length for r in facts.ranks} == {7, 3}
    for rank in facts.ranks:
        assert rank.measured == rank.exact == hl.t_outer_rank(rank.length, CONFIG.d_model, rank.d_k)
        assert rank.bound == hl.t_outer_rank_bound(CONFIG.d_model, rank.d_k) >= rank.measured


def test_query_key_blocks_fade_as_attention_sharpens(facts):
    first, last = facts.sharpness[0], facts.sharpness[-1]
    assert first.entropy == pytest.approx(np.log(CONFIG.length), rel=0.05)
    assert last.entropy < 1e-3 * first.entropy
    assert last.outer_qq < 1e-3 * first.outer_qq and last.second_moment < 0.1 * first.second_moment
    assert last.outer_vv > first.outer_vv
    (layer_itself,) = [s for s in facts.sharpness if s.scale == pytest.approx(1)]
    norms = {(b.row, b.column): b for b in facts.blocks}
    assert layer_itself.functional_qq == pytest.approx(norms["Q", "Q"].functional)


def test_one_hot_attention_is_not_mistaken_for_a_wrong_formula():
    setting = build(LayerConfig(length=2, d_model=4, d_k=2, temperature=1e-3, seed=1))
    found = [agreement(setting, part) for part in LAYER_PARTS]
    assert all(a.agree for a in found)
    assert any(a.worst > 1e-6 and a.verdict == "agree up to rounding" for a in found)
    assert all(r.measured <= r.bound for r in ranks(setting))


def test_measuring_leaves_the_number_of_threads_as_it_was(facts, monkeypatch):
    before, during = torch.get_num_threads(), []
    monkeypatch.setattr(torch, "set_num_threads", during.append)
    with pytest.raises(ZeroDivisionError):
        measure_layer(CONFIG, lambda title: 1 / 0)
    assert during == [1, before]
    assert facts.provenance.threads == 1


def test_facts_are_ready_for_json(facts):
    plain = facts.to_dict()
    assert "matrices" not in plain
    assert plain["config"]["length"] == CONFIG.length
    assert plain["growth"]["curves"][0]["verdict"] == "agree"


def test_the_algebra_is_what_the_library_prints(facts, hessian):
    for expression, printed in facts.algebra.items():
        assert printed == str(eval(expression.removeprefix("print(").removesuffix(")"), {"H": hessian}))


def test_provenance_names_no_foreign_commit(tmp_path, facts):
    assert provenance_of._commit(tmp_path) is None
    assert facts.provenance.version == hl.__version__
    assert facts.provenance.libraries["torch"].startswith(torch.__version__.split("+")[0])


# --- what cannot be asked ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"length": 1}, "length: got 1"),
        ({"d_model": 0}, "d_model: got 0"),
        ({"d_k": -2}, "d_k: got -2"),
        ({"batch": 0}, "batch: got 0"),
        ({"seed": -1}, "seed: got -1"),
        ({"temperature": 0.0}, "temperature: got 0"),
        ({"temperature": float("nan")}, "temperature: got nan"),
        ({"activation": "softplus"}, "'softmax', 'linear'"),
        ({"d_model": 64}, "expected at most 3072"),
        ({"length": 1000}, "choose smaller sizes"),
    ],
)
def test_bad_configs_say_what_to_change(wrong, said):
    with pytest.raises(InputError, match=re.escape(said)):
        LayerConfig(**wrong)


def test_overflow_and_all_zero_attention_are_named():
    with pytest.raises(InputError, match="attention weights: not finite"):
        measure_layer(LayerConfig(length=4, d_model=3, d_k=2, activation="exp", temperature=1e-3))
    with pytest.raises(InputError, match="is zero on these tokens"):
        measure_layer(LayerConfig(length=2, d_model=2, d_k=1, seed=4, causal=True, activation="relu_normalised"))


def test_attention_that_overflows_when_sharpened_has_no_numbers_there():
    first, *_, last = measure_layer(LayerConfig(length=4, d_model=3, d_k=2, activation="exp")).sharpness
    assert first.outer_qq > 0 and first.second_moment > 0
    assert last.outer_qq is last.functional_qq is last.outer_vv is last.second_moment is last.third_moment is None


# --- sentences --------------------------------------------------------------------------------------------------------


def test_sentences_follow_the_numbers(facts):
    said = findings(facts)
    tested = sum(c.slope is not None for c in facts.growth.curves)
    assert f"All {tested} fitted exponents agree" in said["growth"]
    assert f"holds in all {len(facts.ranks)}" in said["ranks"]
    first = dataclasses.replace(facts.growth.curves[0], slope=4.2, verdict="differ")
    gone = dataclasses.replace(facts.growth.curves[1], slope=None, verdict="vanishes")
    curves = (first, gone, *facts.growth.curves[2:])
    fewer = (dataclasses.replace(facts.ranks[0], measured=0), *facts.ranks[1:])
    other = dataclasses.replace(facts, growth=dataclasses.replace(facts.growth, curves=curves), ranks=fewer)
    said = findings(other)
    assert f"{tested - 2} of {tested - 1} fitted exponents agree" in said["growth"]
    assert "Not as predicted: softmax outer QQ." in said["growth"]
    assert "not measurable: softmax outer VV." in said["growth"]
    assert f"holds in {len(fewer) - 1} of {len(fewer)}" in said["ranks"]
    assert "In 1 the measured rank is lower" in said["ranks"]


# --- page -------------------------------------------------------------------------------------------------------------


class Outline(HTMLParser):
    """Tags that do not match, references, and ids of a page."""

    def __init__(self, html):
        super().__init__()
        self.open, self.wrong, self.references, self.ids = [], [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        given = dict(attrs)
        self.references += [given[key] for key in ("src", "href", "xlink:href", "srcset", "action") if key in given]
        self.ids += [given["id"]] if "id" in given else []

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def test_page_is_well_formed_and_self_contained(page):
    outline = Outline(page)
    assert not outline.wrong and not outline.open
    assert all(reference.startswith(("#", "data:image/png;base64,")) for reference in outline.references)
    assert len(set(outline.ids)) == len(outline.ids)
    assert {reference[1:] for reference in outline.references if reference.startswith("#")} <= set(outline.ids)
    assert "http://" not in page and "https://" not in page
    assert "default-src 'none'" in page and "<script" not in page and "@import" not in page


def figure_names(page):
    return re.findall(r'id="([\w-]+)-figure_1"', page)


def test_page_shows_all_sections_and_figures(page):
    for title in ("What was asked", "Three witnesses", "The matrix", "Sharp attention", "The printed algebra"):
        assert title in page
    assert page.count('<svg role="img"') == len(figure_names(page)) == 12
    assert page.count("data:image/png") >= 3
    assert "prefers-color-scheme: dark" in page and 'name="viewport"' in page


def test_figures_take_their_colours_from_the_page(page):
    drawings = "".join(re.findall(r"<svg.*?</svg>", page, flags=re.S))
    for name, (light, _) in PALETTE.items():
        assert light not in drawings, name
    assert "var(--ink)" in drawings and "var(--blue)" in drawings


def test_page_numbers_come_from_the_facts(facts, page, monkeypatch):
    monkeypatch.setattr(page_module, "draw", lambda facts: dict.fromkeys(figure_names(page), ""))
    changed = render(dataclasses.replace(facts, loss=123.4, config=dataclasses.replace(facts.config, seed=77)))
    assert ">123.4<" in changed and ">123.4<" not in page
    assert "--seed 77" in changed and "--seed 77" not in page


def test_python_on_the_page_gives_the_numbers_of_the_page(facts, page):
    programs = snippets(facts)
    shared = {}
    exec(programs["layer"], shared)
    assert float(shared["value"]) == facts.loss

    def run(name):
        assert f"{programs[name].splitlines()[0]}".split('"')[0] in page
        local = dict(shared)
        exec(programs[name], local)
        return local

    assert max(run("witnesses")["difference"].values()) < 1e-13
    assert np.array_equal(run("maps")["matrices"]["full"].numpy(), facts.matrices["full"])
    blocks, measured = run("blocks"), {(b.row, b.column): b for b in facts.blocks}
    assert float(blocks["norms"]["functional"]["Q", "K"]) == measured["Q", "K"].functional
    assert float(blocks["eigenvalues"][0]) == pytest.approx(
        next(c.smallest for c in facts.curvatures if (c.name, c.part) == ("Q", "full"))
    )
    assert run("growth")["measured"] == pytest.approx(facts.growth.curves[0].slope, abs=1e-9)
    pairs = run("pairs")
    assert pairs["pairs"].tolist() == list(facts.pairs.closed)
    assert pairs["rank"](3, 4) == next(r.measured for r in facts.ranks if (r.length, r.d_k) == (3, 4))
    at_ten = next(s for s in facts.sharpness if s.scale == pytest.approx(10))
    assert float(run("sharpness")["at_ten"]["M3"]) == pytest.approx(at_ten.third_moment)


# --- file -------------------------------------------------------------------------------------------------------------


def test_page_is_written_whole_with_its_directory(tmp_path):
    target = write_page(tmp_path / "new" / "place", "<p>é</p>")
    assert target.name == FILE_NAME and target.read_text(encoding="utf-8") == "<p>é</p>"
    assert [path.name for path in target.parent.iterdir()] == [FILE_NAME]


@pytest.mark.parametrize("moment", ["pathlib.Path.write_bytes", "hessianlens.files.os.replace"])
def test_interrupted_write_leaves_what_was_there(tmp_path, monkeypatch, moment):
    write_page(tmp_path, "before")

    def interrupted(place, *arguments):
        if moment.endswith("write_bytes"):
            place.write_text("half")
        raise KeyboardInterrupt

    monkeypatch.setattr(moment, interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_page(tmp_path, "after")
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]
    assert (tmp_path / FILE_NAME).read_text() == "before"


def test_unwritable_places_are_named_before_and_after(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.touch()
    for place in (file, file / "below"):
        with pytest.raises(InputError, match="is a file; give a directory"):
            check_directory(place)
        with pytest.raises(InputError, match="out: cannot write"):
            write_page(place, "")
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(InputError, match="no permission"):
        check_directory(tmp_path / "new")
