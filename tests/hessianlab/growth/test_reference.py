"""Published curves: found, read, matched, compared; unsound points are flagged and bad files refused."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from hessianlab.growth.comparison import ComparedPoint, compare, series_ratio
from hessianlab.growth.measure import GrowthConfig
from hessianlab.growth.reference import VARIABLE, find_reference, read_reference
from hessianlab.growth.series import GrowthSeries, SeriesKey
from hessianlens.errors import InputError
from tests.hessianlab.growth.synthetic import synthetic

HEADER = (
    "model,norm,num_layers,scale,residual_scaling,linear_attention,loss,layer,block,part,"
    "sigma,mean,sem,n,n_zero,n_nonfinite"
)
CONFIG = GrowthConfig(points=4, repeats=3)
SIGMAS = CONFIG.sigmas()[0]
KEY = SeriesKey(0, 1, 0, "query", "outer")


def write(folder: Path, lines: list[str]) -> Path:
    path = folder / "growth.csv"
    path.write_text("\n".join([HEADER, *lines]) + "\n")
    return path


def line(sigma: float, mean: float, sem: float = 0.1, zeros: int = 0, broken: int = 0, part: str = "outer") -> str:
    return f"transformer,none,1,log,1.0,False,ce,0,q,{part},{sigma:.9g},{mean!r},{sem!r},20,{zeros},{broken}"


def test_z_is_in_joint_standard_errors(tmp_path: Path) -> None:
    result = synthetic(CONFIG, lambda sigma, repeat: sigma * (1 + 0.1 * (repeat - 1)))
    own = 0.1 / math.sqrt(3)
    reference = read_reference(write(tmp_path, [line(s, s * 1.2, s * 0.05) for s in SIGMAS]))
    (found,) = compare(result, reference)
    np.testing.assert_allclose([p.z for p in found.points], -0.2 / math.hypot(own, 0.05), rtol=1e-6)
    assert found.ratio == pytest.approx(1 / 1.2)
    assert found.median_z == pytest.approx(0.2 / math.hypot(own, 0.05))
    assert (found.share_within(2), found.share_within(3)) == (0.0, 1.0)
    # A repeat is off by the same factor at every sigma: the mean over sigma knows no more than one point does.
    assert found.ratio_error == pytest.approx(found.ratio * math.hypot(own, 0.05 / 1.2))


@pytest.mark.parametrize("common", [0.0, 0.2])
def test_the_error_of_a_ratio_is_that_of_repeated_experiments(common: float) -> None:
    """Two experiments of 20 repeats on the same law, off by 0.3 a point and by `common` a repeat at every sigma."""
    source, repeats, sigma = np.random.default_rng(0), 20, np.array(SIGMAS)

    def experiment() -> np.ndarray:
        shared, own = source.standard_normal((repeats, 1)), source.standard_normal((repeats, len(sigma)))
        return np.exp(common * shared + 0.3 * own) * sigma**6

    off = []
    for _ in range(300):
        ours, theirs = (GrowthSeries(KEY, sigma, experiment(), True) for _ in range(2))
        means = zip(sigma, ours.mean, theirs.mean, ours.stderr, theirs.stderr, strict=True)
        ratio, error = series_ratio(ours, [ComparedPoint(*map(float, values), 0.0, "") for values in means])
        off.append(math.log(ratio) / (error / ratio))
    assert float(np.std(off)) == pytest.approx(1, abs=0.15)
    assert abs(float(np.mean(off))) < 0.2


def test_curves_on_a_noise_floor_and_broken_points_do_not_count(tmp_path: Path) -> None:
    """Below sigma = 1 the published norms stop falling; one point has a repeat that overflowed, one is partly zero."""
    result = synthetic(CONFIG, lambda sigma, repeat: sigma**6 * (1 + 0.01 * repeat))
    means = [1e-4, 1e-4, SIGMAS[2] ** 6, SIGMAS[3] ** 6]
    lines = [line(s, m, m / 20) for s, m in zip(SIGMAS, means, strict=True)]
    lines[3] = line(SIGMAS[3], math.inf, math.nan, broken=2)
    (found,) = compare(result, read_reference(write(tmp_path, lines)))
    assert [p.flag for p in found.points] == ["noise floor", "noise floor", "", "not finite"]
    assert len(found.sound) == 1
    lines[2] = line(SIGMAS[2], SIGMAS[2] ** 6, zeros=3)
    (found,) = compare(result, read_reference(write(tmp_path, lines)))
    assert found.points[2].flag == "partly zero"


def test_a_large_published_mean_above_sound_ones_is_no_floor(tmp_path: Path) -> None:
    """It counts as a difference."""
    result = synthetic(CONFIG, lambda sigma, repeat: sigma**6 * (1 + 0.01 * repeat))
    lines = [line(s, s**6 * (50 if s == SIGMAS[3] else 1), s**6 / 20) for s in SIGMAS]
    (found,) = compare(result, read_reference(write(tmp_path, lines)))
    assert [p.flag for p in found.points] == [""] * 4 and abs(found.points[3].z) > 100


def test_two_curves_that_vanish_agree(tmp_path: Path) -> None:
    result = synthetic(CONFIG, lambda s, r: 0.0, series=((0, "value", "functional"),))
    lines = [line(s, 0.0, 0.0, zeros=20, part="func").replace(",q,", ",v,") for s in SIGMAS]
    (found,) = compare(result, read_reference(write(tmp_path, lines)))
    assert (found.median_z, found.ratio, found.share_within(2)) == (0.0, 1.0, 1.0)


def test_other_sizes_are_not_compared(tmp_path: Path) -> None:
    reference = read_reference(write(tmp_path, [line(s, s) for s in SIGMAS]))
    assert compare(synthetic(GrowthConfig(points=4, repeats=3, d_model=64), lambda s, r: s), reference) == []
    assert compare(synthetic(GrowthConfig(points=4, repeats=3, norm="pre"), lambda s, r: s), reference) == []


def test_where_it_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    inner = tmp_path / "project"
    (inner / "reference").mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert find_reference() is None
    (tmp_path / "shared" / "reference").mkdir(parents=True)
    beside = write(tmp_path / "shared" / "reference", [])
    assert find_reference() == beside
    inside = write(inner / "reference", [])
    assert find_reference() == inside
    named = write(tmp_path, [])
    monkeypatch.setenv(VARIABLE, str(named))
    assert find_reference() == named
    assert find_reference(inside) == inside
    monkeypatch.setenv(VARIABLE, str(tmp_path / "missing.csv"))
    with pytest.raises(InputError, match=rf"{VARIABLE}.*is no file"):
        find_reference()


def test_bad_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="no column model"):
        read_reference(path)
    with pytest.raises(InputError, match=r"line 2: the field sigma is .*, which is no number"):
        read_reference(write(tmp_path, [line(0.1, 1.0).replace("0.1,", "x,", 1)]))
    with pytest.raises(InputError, match="cannot be read"):
        read_reference(tmp_path / "missing.csv")


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (",0.25,", ",,", "line 2: the field mean is empty"),
        (",0.25,0.1,20,0,0", ",0.25", "line 2: the field sem is empty"),
        ("transformer,", ",", "line 2: the field model is empty"),
        (",q,", ", ,", "line 2: the field block is empty"),
        (",20,", ",20.5,", "line 2: the field n is '20.5', which is no whole number"),
        (",False,", ",maybe,", "line 2: the field linear_attention is 'maybe', neither True nor False nor nan"),
    ],
)
def test_fields_that_are_empty_or_odd(tmp_path: Path, before: str, after: str, message: str) -> None:
    whole = line(0.1, 0.25)
    assert before in whole
    with pytest.raises(InputError, match=message):
        read_reference(write(tmp_path, [whole.replace(before, after)]))


def test_a_network_without_attention_may_leave_its_fields_empty(tmp_path: Path) -> None:
    """As they are where a table was written without a word for what is missing."""
    words = line(0.1, 0.25).replace("transformer", "mlp")
    (empty,) = read_reference(write(tmp_path, [words.replace(",1.0,False,", ",,,")]))
    (named,) = read_reference(write(tmp_path, [words.replace(",1.0,False,", ",nan,nan,")]))
    assert empty == named and empty.residual_scale is None and empty.linear_attention is None
