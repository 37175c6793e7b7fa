"""Every text class of transformers that can be built small: right to 1e-8, or refused with a reason that is true."""

from __future__ import annotations

import random
import re

import pytest

from tests.families.registry import CASES, MODEL_TYPES, cases_of
from tests.families.walk import Walked, walked

SAMPLE = sorted({"mixtral", "xglm", *random.Random(0).sample(MODEL_TYPES, 10)})
"""Types that are looked at every time; the two by name were once refused in float64 for no fault of theirs."""

NOT_BUILT = (
    r"requires the \w+ library",
    r"visual_feats|bbox|inputs_embeds and shared_kv_states",  # it needs inputs that are no text
    r"exactly one of input_features|is invalid for input",  # the same
    r"tie_weights_keys|its configuration asks|has no attribute|TypeError|expanded size",  # relations of sizes
    r"not finite",
)
"""Why a class may not be built: what it needs besides text, or relations between sizes that the rules do not know."""

REFUSED = {
    "canine": "the model itself gives nan",  # in float64 the numbers of its mask overflow in a step in half precision
    "hrm_text": "hides part of its derivative",  # all cycles but the last run under no_grad
    # reversible layers, whose own backward runs in training mode alone
    "reformer": "a backward of its own raised|hides part of its derivative",
    "yoso": "hides part of its derivative",  # a backward of its own that is not the derivative of its forward
    "prophetnet": "'s own is .* expected",  # it predicts several tokens ahead, and its own loss counts them all
    "fsmt": "'s own is .* expected",  # its own loss feeds the decoder with the encoder's tokens, not with the labels
}
"""Types that are refused, and why; looked up in the source of transformers."""


def _expect_right(found: Walked) -> None:
    if found.not_built:
        assert any(re.search(pattern, found.not_built) for pattern in NOT_BUILT), f"{found.name}: {found.not_built}"
        return
    if found.refused and found.family in REFUSED:
        assert re.search(REFUSED[found.family], found.refused), f"{found.name} is refused: {found.refused}"
        return
    assert not found.refused, f"{found.name} is refused: {found.refused}"
    assert not found.wrong, f"{found.name}: {'; '.join(found.wrong)}"
    assert found.compared > len(found.routes) > 0, f"{found.name}: only {found.compared} comparisons"


@pytest.mark.expensive
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", SAMPLE)
def test_a_sample_of_types_is_right(model_type: str) -> None:
    _expect_right(walked(cases_of(model_type)[0], brief=True))


@pytest.mark.expensive
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", REFUSED)
def test_a_type_that_is_refused(model_type: str) -> None:
    found = [walked(case, brief=True) for case in cases_of(model_type)]
    assert any(re.search(REFUSED[model_type], one.refused) for one in found)
    for one in found:
        _expect_right(one)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", MODEL_TYPES[::48])
def test_every_class_of_a_type_is_right(model_type: str) -> None:
    """The first class in depth; those that share its body by some blocks of the last layer.

    Of every 48th type; `python -m tests.families` walks all of them, in half an hour.
    """
    for number, case in enumerate(cases_of(model_type)):
        _expect_right(walked(case, brief=number > 0))


def test_the_walk_covers_the_auto_mappings() -> None:
    assert len(MODEL_TYPES) > 200 and len(CASES) > 500
    assert {case.task for case in CASES} == {"causal", "seq2seq", "masked", "sequence", "token", "question", "choice"}
