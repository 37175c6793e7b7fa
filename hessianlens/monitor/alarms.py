"""Alarms along a run: which attention head is in trouble, since which step, and usual remedy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from hessianlens.monitor.records import HEAD_QUANTITIES, Record
from hessianlens.network.head_health import ALARM_RULES, AlarmRule, HeadAlarm

GROWTH_RECORDS = 4
"""Records in a row over which logits have to grow."""
GROWTH_FACTOR = 2.0
"""By so much they grow over these records, at least."""
GROWTH_ACCELERATION = 1.25
"""The last rise over the first, at least: logits that grow linearly raise no alarm."""
GROWTH_FROM = 20.0
"""Logits below this are not yet worth an alarm."""
_QUANTITY = {attribute: quantity for quantity, attribute in HEAD_QUANTITIES.items()}
GROWTH = AlarmRule(
    "growing logits",
    "largest_logit",
    GROWTH_FROM,
    True,
    "they double within a few measurements: lower the learning rate of queries and keys, or normalise them (QK-norm)",
)


def head_alarms(records: Sequence[Record]) -> list[HeadAlarm]:
    """Alarms of the last record that has heads, each with the step since which it has held without a break.

    Args:
        records: Of a run, in order of their steps.

    >>> from hessianlens.monitor.records import Reading
    >>> def record(step, logit):
    ...     return Record(step, {"layer0.attn.head1": {"largest_logit": Reading.of(logit)}})
    >>> head_alarms([record(10, 5.0), record(20, 60.0), record(30, 90.0)])
    [large logits: layer0.attn.head1 since step 20 (largest logit 90, threshold 50); normalise queries and keys ...]
    """
    series = _series(records)
    found = [
        alarm
        for rule in ALARM_RULES
        for head, numbers in series.items()
        if (alarm := _lasting(rule, head, numbers.get(_QUANTITY[rule.quantity], []))) is not None
    ]
    large = {alarm.head for alarm in found if alarm.rule.kind == ALARM_RULES[0].kind}
    growing = [
        _growing(head, numbers.get("largest_logit", [])) for head, numbers in series.items() if head not in large
    ]
    return [*found, *(alarm for alarm in growing if alarm is not None)]


def new_alarms(records: Sequence[Record]) -> list[HeadAlarm]:
    """Those that began with the last record, sinks excepted: trained language models have them, and work."""
    if not records:
        return []
    return [a for a in head_alarms(records) if a.since == records[-1].step and a.rule.quantity != "sink"]


Points = list[tuple[int, float]]


def _series(records: Sequence[Record]) -> dict[str, dict[str, Points]]:
    """Values by step, of the heads that the last record with heads has."""
    having = [record for record in records if any(_is_head(numbers) for numbers in record.numbers.values())]
    if not having:
        return {}
    heads = [owner for owner, numbers in having[-1].numbers.items() if _is_head(numbers)]
    found: dict[str, dict[str, Points]] = {head: {} for head in heads}
    for record in having:
        for head in heads:
            for quantity, reading in record.numbers.get(head, {}).items():
                found[head].setdefault(quantity, []).append((record.step, reading.value))
    return found


def _is_head(numbers: Mapping[str, object]) -> bool:
    return "largest_logit" in numbers


def _lasting(rule: AlarmRule, head: str, points: Points) -> HeadAlarm | None:
    """The alarm of the last point, since the first of those before it that raise it too."""
    since = None
    for step, value in reversed(points):
        if not rule.holds(value):
            break
        since = step
    return None if since is None else HeadAlarm(rule, head, points[-1][1], since)


def _growing(head: str, points: Points) -> HeadAlarm | None:
    """Logits that grow in every one of the last records, faster than linearly, and by a factor."""
    last = points[-GROWTH_RECORDS:]
    if len(last) < GROWTH_RECORDS or last[0][1] <= 0:
        return None
    values = [value for _, value in last]
    rises = [b - a for a, b in pairwise(values)]
    grows = values[-1] > GROWTH_FROM and values[-1] >= GROWTH_FACTOR * values[0] and min(rises) > 0
    if not grows or not math.isfinite(values[-1]) or rises[-1] < GROWTH_ACCELERATION * rises[0]:
        return None
    return HeadAlarm(GROWTH, head, values[-1], last[-1][0])
