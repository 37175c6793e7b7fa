"""Whatever can be looked at can be looked at in every way."""

from __future__ import annotations

import math
import subprocess
import sys
from xml.etree import ElementTree

import pytest

import hessianlens as hl
from hessianlens.display import Displayable, DisplayableRows
from tests.display.registry import EVIL, SHOWN, norms, pair_norms, problem
from tests.fuzz.recipes import public_names

mpl = pytest.importorskip("matplotlib")
mpl.use("agg")


@pytest.mark.parametrize("name", SHOWN)
def test_shows_itself(name: str) -> None:
    thing = SHOWN[name]()
    assert isinstance(thing, Displayable)
    assert " object at 0x" not in repr(thing) and "tensor(" not in repr(thing)
    page = thing._repr_html_()
    tree = ElementTree.fromstring(page)
    assert tree.tag == "div" and tree.get("class") == "hessianlens"
    assert "prefers-color-scheme: dark" in page and "http" not in page.replace("http://www.w3.org", "")
    assert "<b>" not in page
    words = [element for element in tree.iter() if element.tag == "text"]
    assert all(element.text for element in words)


@pytest.mark.parametrize("name", SHOWN)
def test_rows_are_the_frame(name: str) -> None:
    pytest.importorskip("pandas")
    thing = SHOWN[name]()
    rows = thing.rows() if isinstance(thing, DisplayableRows) else thing._records()
    frame = thing.to_frame()
    assert len(frame) == len(rows) > 0
    assert list(frame.columns) == list(dict.fromkeys(key for row in rows for key in row))
    for row, kept in zip(rows, frame.to_dict("records"), strict=True):
        for key, value in row.items():
            missing = value is None or (isinstance(value, float) and math.isnan(value))
            assert kept[key] == value or (missing and kept[key] != kept[key]) or (value is None and kept[key] is None)


@pytest.mark.parametrize("name", SHOWN)
def test_plots_on_axes_given_or_new(name: str) -> None:
    import matplotlib.pyplot as plt
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    thing = SHOWN[name]()
    given = Figure().add_subplot()
    try:
        assert thing.plot(given) is given and given.has_data()
        given.figure.canvas.draw()
        assert isinstance(thing.plot(), Axes)
    finally:
        plt.close("all")


def test_every_kind_of_result_is_in_the_registry() -> None:
    shown = {type(make()) for make in SHOWN.values()}
    kinds = {kind for _, kind in public_names() if isinstance(kind, type)}
    alike = (hl.attention.RotaryAttention, hl.operators.ArrangedGrid)  # displayed as their bases are
    wanted = [kind for kind in kinds if issubclass(kind, Displayable) and kind not in alike]
    assert len(wanted) > 12
    assert [kind.__name__ for kind in wanted if not any(issubclass(other, kind) for other in shown)] == []


def test_layers_draw_their_attention() -> None:
    from matplotlib.figure import Figure

    layer, state = SHOWN["layer"](), SHOWN["head state"]()
    ax = layer.plot(Figure().add_subplot(), X=state.tokens)
    (image,) = ax.images
    assert abs(image.get_array() - state.weights[0].numpy()).max() < 1e-12


def test_parts_of_a_block() -> None:
    found = norms()
    assert dict(found["q"]) == {"full": found["q", "full"], "ggn": found["q", "ggn"]}
    assert found["q"]["outer"] == found["q", "ggn"]


def test_keys_that_are_not_there_say_what_was_meant() -> None:
    names = hl.network.BlockNorms({("layer0.attn.q", "full"): hl.spectra.Estimate.exactly(1.0)})
    with pytest.raises(KeyError, match=r"did you mean layer0\.attn\.q"):
        names["layer0.atn.q", "full"]
    with pytest.raises(KeyError, match=r"did you mean layer0\.attn\.q"):
        names["layer0.attn"]
    with pytest.raises(KeyError, match="'functional' was not measured"):
        names["layer0.attn.q", "functional"]
    with pytest.raises(KeyError, match=r"expected one of q"):
        pair_norms()["q", "nonsense"]
    with pytest.raises(hl.InputError, match=r"did you mean layer0\.attn\.q"):
        problem().select("layer0.atn.q")
    with pytest.raises(KeyError, match="full, ggn"):
        norms()[EVIL]["nothing"]


def test_nothing_is_computed_for_a_look() -> None:
    """A matrix-free operator is shown without a single product."""

    class Refusing(hl.operators.Operator):
        import torch

        dtype, device, product_cost = torch.float64, torch.device("cpu"), "too much"

        def _matmat(self, X):
            raise AssertionError("a product was made")

        def _adjoint(self):
            return self

    op = Refusing([(3, 3)], [(3, 3)])
    assert "<svg" not in op._repr_html_()
    with pytest.raises(AssertionError, match="a product was made"):
        op.plot()


@pytest.mark.long
def test_importing_draws_nothing() -> None:
    use = "import sys, hessianlens as hl; hl.network.BlockNorms, hl.measure"
    code = f"{use}; print({{'matplotlib', 'pandas'}} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_without_pandas_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(hl.InputError, match=r"to_frame\(\) needs pandas.*hessianlens\[frames\]"):
        norms().to_frame()
