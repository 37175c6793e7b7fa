"""Two tiers of tests: the short one before every commit, and all of them.

Of a test with many cases the short tier takes some, evenly spread, the first and the last among them; the others are
marked `long`, as tests are that take long by themselves. A test marked `expensive`, whose cases take a second or more,
keeps its first and its last; one marked `every_case` keeps all.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

SHORT_CASES = 3
"""Cases of a test that the short tier takes."""
EXPENSIVE_CASES = 2
"""Of a test whose cases take a second or more."""


def spread(count: int, most: int) -> set[int]:
    """Some of so many numbers, evenly spread, the first and the last among them.

    >>> sorted(spread(100, 5)), sorted(spread(3, 5))
    ([0, 24, 49, 74, 99], [0, 1, 2])
    """
    return set(range(count)) if count <= most else {k * (count - 1) // (most - 1) for k in range(most)}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Mark the cases that the short tier leaves out."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("every_case") is None and item.get_closest_marker("long") is None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for same in cases.values():
        expensive = same[0].get_closest_marker("expensive") is not None
        chosen = spread(len(same), EXPENSIVE_CASES if expensive else SHORT_CASES)
        for number, item in enumerate(same):
            if number not in chosen:
                item.add_marker("long")
