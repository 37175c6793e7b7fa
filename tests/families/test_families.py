"""Every text class of transformers that can be built small: right to 1e-8, or refused with a reason."""

from __future__ import annotations

import random

import pytest
import transformers

from tests.families.registry import CASES, MODEL_TYPES, Built, NotBuilt, build, cases_of
from tests.families.walk import Walked, walked

SAMPLE = sorted(random.Random(0).sample(MODEL_TYPES, 14))
"""Types that are looked at every time."""


def _expect_right(found: Walked) -> None:
    assert not found.wrong, f"{found.name}: {'; '.join(found.wrong)}"
    assert found.not_built or found.refused or found.compared >= 5, f"{found.name}: only {found.compared} comparisons"
    assert not found.refused, f"{found.name} is refused: {found.refused}"


@pytest.mark.parametrize("model_type", SAMPLE)
@pytest.mark.filterwarnings("ignore")
def test_a_sample_of_types_is_right(model_type: str) -> None:
    found = walked(cases_of(model_type)[0], brief=True)
    if found.not_built:
        pytest.skip(found.not_built)
    _expect_right(found)
