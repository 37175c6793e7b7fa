"""Modules that users write, each with one thing that is easily overlooked: no answer that is called exact is wrong."""

from __future__ import annotations

import pytest

from tests.hostile.cases import CASES
from tests.hostile.questions import Examiner


@pytest.mark.every_case
@pytest.mark.parametrize("name", CASES)
def test_no_answer_is_wrong(name: str) -> None:
    found = Examiner(CASES[name]()).everything()
    assert not found.wrong, f"{name}: {len(found.wrong)} of {found.asked} answers are wrong:\n{found}"
