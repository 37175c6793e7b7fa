import pytest

from benchmarks import explorer
from benchmarks.harness import Options
from benchmarks.results import Result
from tests.browser import CHROMIUM, DRIVER


@pytest.mark.browser
@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no Chromium")
def test_browser_and_library_are_timed_on_the_same_question():
    steps = []
    options = Options(quick=True, threads=1)
    found = explorer.measure("explorer_small", options, steps.append, explorer.Size(3, 2, 1, 2))
    assert len(steps) == explorer.steps(options)
    assert Result.from_json(found.to_json()).setting["weights"] == 8
    assert set(found.details["drawing_ms"]) == set(explorer.SCENES)
    assert "the goal is 1 ms" in found.notes[0]


def test_norms_that_differ_are_refused():
    ours = {"full": {"Q": {"Q": 1.0}}}
    explorer.check(ours, {"full": {"Q": {"Q": 1.0 + 1e-12}}})
    with pytest.raises(AssertionError, match=r"full Q Q: 1\.0 in the browser, 1\.1 in Python"):
        explorer.check(ours, {"full": {"Q": {"Q": 1.1}}})
