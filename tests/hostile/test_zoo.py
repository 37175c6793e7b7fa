"""Random modules: whatever is answered about their blocks is right, or refused with a reason that is true."""

from __future__ import annotations

import pytest

from tests.hostile.examination import examine

SHORT, LONG, CHUNK = 200, 200, 50
"""Modules of the two tiers, and of one test; `python -m tests.hostile FIRST LAST` examines any others."""


def _expect_nothing_wrong(seeds: range) -> None:
    failed = {seed: found for seed in seeds if (found := examine(seed)).wrong}
    told = [f"python -m tests.hostile {seed}    # {found.wrong[0]}" for seed, found in failed.items()]
    assert not failed, f"{len(failed)} of {len(seeds)} modules have wrong answers:\n" + "\n".join(told)


@pytest.mark.every_case
@pytest.mark.parametrize("start", range(0, SHORT, CHUNK))
def test_random_modules(start: int) -> None:
    _expect_nothing_wrong(range(start, start + CHUNK))


@pytest.mark.long
@pytest.mark.parametrize("start", range(SHORT, SHORT + LONG, CHUNK))
def test_many_random_modules(start: int) -> None:
    _expect_nothing_wrong(range(start, start + CHUNK))
