"""Exact norms in a file: found again, never mixed up with those of other weights, data or losses, never lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import hessianlens as hl
from hessianlens.network import exact_norms
from hessianlens.problems import Problem
from tests.curvature.networks import pairs, toy, toy_problem

NAMES = ["layer0.mlp.in", "layer0.mlp.out", "layer0.attn.v"]


def refuse_to_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_norms.ExactNorms, "_solve", lambda self, block, answer: pytest.fail("worked"))


def test_what_is_known_is_not_worked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "norms.jsonl"
    first = hl.block_norms(toy_problem(2), NAMES, method="exact", resume=file)
    assert len(file.read_text().splitlines()) == 1 + len(NAMES)
    refuse_to_work(monkeypatch)
    again = hl.block_norms(toy_problem(2), NAMES, method="exact", resume=file)
    assert dict(again) == dict(first) and again.why == first.why
    assert all(norm.exact for norm in again.values())


def test_an_interruption_loses_one_block_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, seen = tmp_path / "norms.jsonl", []
    solve = exact_norms.SavedNorms.add

    def interrupted(self, block, norms, why):
        solve(self, block, norms, why)
        seen.append(block)
        if len(seen) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(exact_norms.SavedNorms, "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            hl.block_norms(toy_problem(2), NAMES, method="exact", resume=file)
    # ... and a process that was killed while it wrote leaves half a line
    with file.open("a") as half:
        half.write('{"block": "layer0.attn.v", "nor')
    norms = hl.block_norms(toy_problem(2), NAMES, method="exact", resume=file)
    assert dict(norms) == dict(hl.block_norms(toy_problem(2), NAMES, method="exact"))
    refuse_to_work(monkeypatch)
    assert dict(hl.block_norms(toy_problem(2), NAMES, method="exact", resume=file)) == dict(norms)


def test_parts_are_added(tmp_path: Path) -> None:
    file = tmp_path / "norms.jsonl"
    for part in ("full", "ggn"):
        hl.block_norms(toy_problem(2), NAMES[0], (part,), method="exact", resume=file)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [list(line["norms"]) for line in lines[1:]] == [["full"], ["ggn"]]
    both = hl.block_norms(toy_problem(2), NAMES[0], ("full", "ggn"), method="exact", resume=file)
    assert len(both) == 2


def _other_loss(outputs, batch):
    return torch.nn.functional.cross_entropy(outputs.flatten(0, 1), batch[1].flatten()) * 2


OTHERS = {
    "weights": lambda: toy_problem(2, d_mlp=4),
    "data": lambda: toy_problem(3),
    "loss": lambda: toy_problem(2, loss=_other_loss),
    "dtype": lambda: hl.problem(toy(), pairs(2), "cross_entropy", dtype=torch.float32),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_file_of_another_problem_is_refused(name: str, tmp_path: Path) -> None:
    file = tmp_path / "norms.jsonl"
    hl.block_norms(toy_problem(2), NAMES[0], method="exact", resume=file)
    before = file.read_text()
    with pytest.raises(hl.InputError, match=r"resume: .*norms.jsonl belongs to other weights, data or another loss"):
        hl.block_norms(OTHERS[name](), NAMES[0], method="exact", resume=file)
    assert file.read_text() == before


def test_data_that_changes_no_loss_is_other_data_all_the_same(tmp_path: Path) -> None:
    def problem(shift: int) -> Problem:
        ((tokens, targets),) = pairs(2)
        return hl.problem(toy(), [(tokens, (targets + shift) % 2)], lambda outputs, batch: outputs.square().mean())

    file = tmp_path / "norms.jsonl"
    hl.block_norms(problem(0), NAMES[0], method="exact", resume=file)
    with pytest.raises(hl.InputError, match="belongs to other weights, data or another loss"):
        hl.block_norms(problem(1), NAMES[0], method="exact", resume=file)


def test_what_is_no_such_file(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("dear diary\n")
    with pytest.raises(hl.InputError, match=r"resume: .*notes.txt is not a file of exact norms"):
        hl.block_norms(toy_problem(2), NAMES[0], resume=text)
    assert text.read_text() == "dear diary\n"
    for place in (tmp_path, tmp_path / "nowhere" / "norms.jsonl"):
        with pytest.raises(hl.InputError, match=r"resume: .* cannot be written"):
            hl.block_norms(toy_problem(2), NAMES[0], resume=place)
    with pytest.raises(hl.InputError, match=r"resume: got 3, expected the name of a file"):
        hl.block_norms(toy_problem(2), NAMES[0], resume=3)


def test_a_file_goes_on_however_the_data_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As memory allows: the same sequences in one batch or in several."""
    file, (inputs, targets) = tmp_path / "norms.jsonl", pairs(4)[0]
    model = toy()
    whole = hl.problem(model, (inputs, targets), "cross_entropy")
    halves = [(inputs[:2], targets[:2]), (inputs[2:], targets[2:])]
    first = hl.block_norms(whole, NAMES[0], method="exact", resume=file)
    refuse_to_work(monkeypatch)
    again = hl.block_norms(hl.problem(model, halves, "cross_entropy"), NAMES[0], method="exact", resume=file)
    assert dict(again) == dict(first)
    measured = hl.measure(whole, NAMES[0], method="exact", resume=file, progress=False)
    assert dict(measured.norms) == dict(first)
