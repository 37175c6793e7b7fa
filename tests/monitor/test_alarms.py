"""Alarms along runs: when they begin, when they end, and that growth is told from drift."""

from __future__ import annotations

from collections.abc import Sequence

import hessianlens as hl
from hessianlens.monitor.alarms import head_alarms, new_alarms
from hessianlens.monitor.records import Reading, Record

HEAD = "layer1.attn.head0"


def run(logits: Sequence[float], **others: Sequence[float]) -> list[Record]:
    series = {"largest_logit": logits, **others}
    return [
        Record(10 * k, {"model": {}, HEAD: {name: Reading.of(float(v[k])) for name, v in series.items()}})
        for k in range(len(logits))
    ]


def kinds(records: Sequence[Record]) -> list[tuple[str, int | None]]:
    return [(alarm.rule.kind, alarm.since) for alarm in head_alarms(records)]


def test_since_when() -> None:
    assert kinds(run([3, 60, 20, 70, 80])) == [("large logits", 30)]
    assert kinds(run([60, 70, 80, 20])) == []
    assert kinds(run([3, 3, 3], head_entropy_share=[0.5, 0.04, 0.01])) == [("entropy collapse", 10)]


def test_growth_is_faster_than_linear() -> None:
    assert kinds(run([4, 7, 12, 21, 36])) == [("growing logits", 40)]
    assert kinds(run([10, 14, 18, 22])) == []
    assert kinds(run([1, 2, 4, 8])) == []
    assert kinds(run([4, 12, 11, 21])) == []


def test_large_logits_say_enough() -> None:
    assert kinds(run([9, 20, 41, 90])) == [("large logits", 30)]


def test_new_alarms_are_told_once_and_sinks_not_at_all() -> None:
    records = run([3, 60, 61], sink=[0.1, 0.1, 0.9])
    assert [a.rule.kind for a in new_alarms(records[:2])] == ["large logits"]
    assert new_alarms(records) == [] and ("attention sink", 20) in kinds(records)


def test_a_monitor_has_heads_and_alarms() -> None:
    import torch

    model, task = hl.models.Transformer(heads=2, d_model=8, d_mlp=16), hl.tasks.Addition(digits=1)
    problem = hl.problem(model, task.batch(4, seed=0), task.cross_entropy)
    monitor = hl.Monitor(problem, overhead=None, every=1, quantities=("heads",))
    monitor.step()
    assert monitor.alarms == [] and "2 attention heads" in repr(monitor)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("W_Q", "W_K")):
                parameter *= 300
    record = monitor.step()
    assert record is not None and any("large logits" in note for note in record.notes)
    assert {alarm.rule.kind for alarm in monitor.alarms} >= {"large logits"}
    assert {alarm.since for alarm in monitor.alarms} == {2}
    steps, readings = monitor.history["layer0.attn.head1", "largest_logit"]
    assert steps == [1, 2] and readings[1].value > 50 > readings[0].value
