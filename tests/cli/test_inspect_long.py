"""`hessianlens inspect` of long sequences: what they take is said, or refused, before any of them runs."""

from __future__ import annotations

import json
import re

import pytest

from tests.cli.test_inspect import call

LONG = "config:gpt2?n_layer=1&n_embd=8&n_head=2&vocab_size=5&n_positions=40000"
BLOCK = ["--blocks", "layer0.attn.q", "--length", 32768]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward pass takes half an hour, and must not be begun."""
    monkeypatch.setattr("hessianlens.inspect.preparation.pass_seconds", lambda problem: 1800.0)
    monkeypatch.setattr("hessianlens.inspect.preparation.make_problem", lambda *_, **__: pytest.fail("it was run"))


REFUSED = {
    r"probes: got 300, which are 64 HVPs, about \S+ h; expected at most 168.0 h \(a week\); --budget 5m gives an "
    r"answer in time, fewer --blocks or --probes, or a shorter --length, take less.": ["--probes", 300],
    r"budget: got 5m, expected more than the checks before the first number take: 6 forward passes over 8 sequences "
    r"of 32,768 tokens, about 3.0 h; a shorter --length or fewer --sequences take less.": ["--budget", "5m"],
    r"max_memory: one sequence at a time needs .* got 1MB; .*shorter sequences with --length": ["--max-memory", "1MB"],
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_long_sequences_cannot_do_is_refused_before_they_run(said: str, slow: None) -> None:
    answer = call(LONG, *BLOCK, *REFUSED[said])
    assert answer.exit_code == 2 and not answer.stdout
    assert re.match(f"hessianlens: {said}", answer.stderr), answer.stderr


def test_a_forecast_of_long_sequences_runs_none_of_them(slow: None) -> None:
    answer = call(LONG, *BLOCK, "--dry-run", "--json", "--probes", 2)
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)
    assert found["loss_value"] is None and found["forecast"]["products"] == 2
    assert found["forecast"]["seconds"] == 6 * 1800 + 2 * 6 * 1800


@pytest.mark.long
@pytest.mark.parametrize(("seconds", "announced"), [(10.0, True), (0.1, False)])
def test_checks_that_take_long_are_announced(seconds: float, announced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hessianlens.inspect.preparation.pass_seconds", lambda problem: seconds)
    answer = call(LONG, "--blocks", "layer0.attn.v", "--length", 600, "--sequences", 1, "--probes", 1, "--json")
    assert answer.exit_code == 0, answer.output
    said = "hessianlens: checks before the first number: 6 forward passes over 1 sequence of 600 tokens, about 60 s; "
    assert answer.stderr.startswith(said) is announced
