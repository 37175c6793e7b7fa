"""Numbers as people read them, and sentences that several benchmarks share."""

from __future__ import annotations

from benchmarks.results import Result, Spread, Timing


def duration(seconds: float) -> str:
    """Seconds in a readable unit.

    >>> duration(0.00123)
    '1.23 ms'
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size or unit == "us":
            return f"{seconds / size:.3g} {unit}"
    raise AssertionError


def times(ratio: float) -> str:
    """A ratio with as many digits as mean something.

    >>> times(0.305), times(4.5678), times(23.4)
    ('0.30x', '4.6x', '23x')
    """
    return f"{ratio:.2f}x" if ratio < 1 else f"{ratio:.1f}x" if ratio < 10 else f"{ratio:.0f}x"


def with_spread(ratio: Spread) -> str:
    """A ratio with its quartiles over the rounds."""
    return f"{times(ratio.median)} ({times(ratio.low)} to {times(ratio.high)})"


def operations(number: float) -> str:
    """Counted operations in billions or millions.

    >>> operations(17.2e9), operations(3.4e7)
    ('17.2 G', '34 M')
    """
    return f"{number / 1e9:.3g} G" if number >= 1e9 else f"{number / 1e6:.3g} M"


def verdict(result: Result, timing: Timing) -> str:
    """Whether a target is met against one peer, as a sentence."""
    assert result.target is not None
    state = "met" if timing.ratio.median >= result.target else "NOT met"
    return f"Target {result.target:g}x against {timing.name}: {with_spread(timing.ratio)}, {state}."


def verdicts(result: Result) -> list[str]:
    """The target against the peer it was set for, and against the fastest one."""
    named, fastest = result.timing(result.against), result.fastest_peer
    said = [verdict(result, named)]
    if fastest.name != named.name:
        said.append(verdict(result, fastest).replace(" against ", " against the fastest peer, ", 1))
    return said
