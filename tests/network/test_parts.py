"""One vocabulary of parts: "outer" and "ggn" are the same matrix in every call."""

from __future__ import annotations

import pytest

import hessianlens as hl
from hessianlens.inspect.settings import Settings
from hessianlens.parts import LAYER_PARTS, PART_NAMES, PARTS, check_parts, part_name
from tests.curvature.registry import problem_of
from tests.variants import randn, self_attention

BLOCKS = ["layer0.attn.q", "layer0.mlp.in"]


def test_names() -> None:
    assert {part_name(name) for name in PART_NAMES} == {part_name(name) for name in LAYER_PARTS} == set(PARTS)
    assert check_parts(["outer", "ggn", "functional"]) == ("ggn", "functional")
    for wrong in ("inner", None, 3, ["full"]):
        with pytest.raises(hl.InputError, match=r"part: got .*, expected one of 'full', 'ggn', 'functional', 'outer'"):
            part_name(wrong)


@pytest.mark.parametrize("asked", [("outer",), ("ggn",), ("outer", "ggn")], ids=str)
def test_norms_of_blocks(asked: tuple[str, ...]) -> None:
    norms = hl.block_norms(problem_of("toy"), BLOCKS, asked, probes=3)
    assert list(norms) == [(block, "ggn") for block in BLOCKS]
    for block in BLOCKS:
        assert norms[block, "outer"] is norms[block, "ggn"] and (block, "outer") in norms
        assert norms.get((block, "full")) is None and (block, "inner") not in norms


@pytest.mark.parametrize("asked", ["outer", "ggn"])
def test_norms_of_pairs_and_measurements(asked: str) -> None:
    pairs = hl.block_pair_norms(problem_of("toy"), BLOCKS, asked, probes=3)
    assert pairs.part == "ggn" and pairs == hl.block_pair_norms(problem_of("toy"), BLOCKS, "ggn", probes=3)
    measured = hl.measure(problem_of("toy"), BLOCKS, parts=(asked, "functional"), budget=None, probes=2, progress=False)
    assert measured.norms[BLOCKS[0], "outer"].exact and measured.table.rows[1].ratio is not None
    assert Settings("toy", parts=("full", asked)).parts == ("full", "ggn")


def test_grids_of_a_layer() -> None:
    layer = self_attention(2, 0, width=3, output=None)
    H = hl.attention_hessian(layer, randn(4, 3), hl.SquareLoss(randn(4, 3, seed=1)))
    assert H.part("ggn") is H.part("outer") is H.outer and H.part("t_outer") is H.t_outer
    assert hl.layer.predicted_growth("softmax", "ggn", "Q", "Q") == hl.layer.predicted_growth(
        "softmax", "outer", "Q", "Q"
    )
