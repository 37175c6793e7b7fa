"""Monitors in the loops of others: Hugging Face's Trainer, killed and resumed; Lightning's; saved checkpoints."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from hessianlens.cli import app
from hessianlens.monitor import History, Monitor

SCRIPT = Path(__file__).with_name("watched_run.py")


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", str(SCRIPT), str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    killed = run(folder, "8")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert [record.step for record in History.read(folder / "run.jsonl")] == [1, 3, 5, 7]
    again = run(folder)
    assert again.returncode == 0, again.stderr
    return folder


@pytest.mark.long
def test_a_run_of_the_trainer_is_watched_killed_resumed_and_shown(resumed: Path) -> None:
    history = History.read(resumed / "run.jsonl")
    # Saved at step 6: what was measured behind it belongs to a run that is not this one.
    assert [record.step for record in history] == [1, 3, 5, 7, 9, 11]
    heads = {f"layer0.attn.head{head}" for head in (0, 1)}
    assert set(history.names()) == {"model", "layer0.attn.q", "layer0.attn.v", "layer0.attn", *heads}
    assert all({"sharpness", "edge"} <= set(record.numbers["model"]) for record in history)
    assert all(set(record.given) >= {"lr"} for record in history) and "loss" in history[-1].given
    losses = [reading.value for reading in history["probe_loss"][1]]
    assert losses[-1] < losses[0]
    page = (resumed / "run.html").read_text()
    assert "A small GPT-2" in page and page.count("<svg") >= 8


@pytest.mark.long
def test_saved_checkpoints_of_it_are_watched_and_not_measured_twice(resumed: Path) -> None:
    names = [str(path) for path in resumed.glob("checkpoint-*")]
    assert len(names) == 4
    batch = resumed / "batch.npy"
    import numpy as np

    np.save(batch, np.arange(24).reshape(2, 12) % 15)
    store, html, csv = (resumed / name for name in ("saved.jsonl", "saved.html", "saved.csv"))
    options = ["--data", str(batch), "--blocks", "layer0.attn.q", "--out", str(store), "--json"]
    more = ["--out", str(html), "--out", str(csv), "--quantities", "top,entropy,edge"]
    first = CliRunner().invoke(app, ["watch", *names[:3], *options, *more])
    assert first.exit_code == 0, first.output
    known = {record["step"]: record for record in json.loads(first.stdout)["records"]}
    second = CliRunner().invoke(app, ["watch", *names, *options, *more])
    records = json.loads(second.stdout)["records"]
    assert [record["step"] for record in records] == [3, 6, 9, 12]
    before = [
        record for record in records if record["step"] in known and record["step"] < min({3, 6, 9, 12} - set(known))
    ]
    assert all(known[record["step"]] == record for record in before)  # the times as well: they were not measured again
    assert all({"model", "layer0.attn.q", "layer0.attn"} <= set(record["numbers"]) for record in records)
    assert all(record["given"]["lr"] > 0 for record in records)
    live = {record.step: record.numbers["model"]["edge"].value for record in History.read(resumed / "run.jsonl")}
    for record in records[:-1]:  # from the optimiser that the Trainer saved
        assert record["numbers"]["model"]["sharpness"] and not record["notes"]
        if record["step"] in live:
            assert record["numbers"]["model"]["edge"] == pytest.approx(live[record["step"]])
    assert "learning rate is zero" in records[-1]["notes"][0]  # the schedule has come to its end
    assert "<svg" in html.read_text() and len(csv.read_text().splitlines()) == 5


def test_bad_checkpoints(tmp_path: Path) -> None:
    def ends(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["watch", *arguments])
        assert result.exit_code == 2
        return " ".join(result.output.split())

    assert "there is no such folder" in ends(str(tmp_path / "none"))
    empty = tmp_path / "checkpoint-3"
    empty.mkdir()
    assert "holds no config.json" in ends(str(empty))
    (empty / "config.json").write_text("{}")
    nameless, same = tmp_path / "last", tmp_path / "copy-3"
    for folder in (nameless, same):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
    assert "expected its step" in ends(str(nameless))
    assert "both of step 3" in ends(str(empty), str(same))
    assert "quantities: got 'hessian'" in ends(str(empty), "--quantities", "hessian")
    assert "out: cannot write" in ends(str(empty), "--out", str(tmp_path / "no" / "page.html"))


@pytest.mark.filterwarnings("ignore")
def test_lightning(tmp_path: Path) -> None:
    from pytorch_lightning import LightningModule, Trainer
    from pytorch_lightning.loggers.logger import DummyLogger

    class Small(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            return nn.functional.cross_entropy(self.inner(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class Board(DummyLogger):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.calls: list[tuple[int, dict[str, float]]] = []

        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            self.calls.append((step or 0, metrics))

    board = Board()

    def fit(watched: bool) -> tuple[dict[str, torch.Tensor], Monitor | None]:
        torch.manual_seed(0)
        module = Small()
        batch = (torch.randn(4, 3), torch.tensor([0, 1, 1, 0]))
        data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*batch), batch_size=1)
        monitor = None
        if watched:
            monitor = Monitor(module.inner, "*", data=batch, loss="cross_entropy", every=1, overhead=None)
        trainer = Trainer(
            max_epochs=1,
            accumulate_grad_batches=2,
            logger=board if watched else False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            accelerator="cpu",
            default_root_dir=str(tmp_path),
        )
        if monitor is not None:
            assert monitor.attach(trainer) is monitor
        trainer.fit(module, data)
        return module.state_dict(), monitor

    (alone, _), (beside, monitor) = fit(False), fit(True)
    assert monitor is not None and [record.step for record in monitor.history] == [1, 2]
    assert monitor.history[0].numbers["model"]["edge"].value == pytest.approx(20)
    assert monitor.history[0].given["loss"] > 0
    assert all(torch.equal(alone[name], beside[name]) for name in alone)
    ours = [(step, metrics) for step, metrics in board.calls if "hessianlens/top" in metrics]
    assert [step for step, _ in ours] == [1, 2]
    assert ours[1][1]["hessianlens/top"] == monitor.history[1].numbers["model"]["top"].value


@pytest.mark.filterwarnings("ignore")
def test_the_log_of_the_trainer_shows_what_was_measured(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    reported: list[dict[str, Any]] = []

    class Reporter(TrainerCallback):  # type: ignore[misc]
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            reported.append(dict(logs))

    model = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_positions=6, n_embd=8, n_layer=1, n_head=2))
    ids = torch.arange(24).reshape(4, 6) % 9
    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=4, logging_steps=1, report_to="none", use_cpu=True, disable_tqdm=True
    )
    data = [{"input_ids": row, "labels": row} for row in ids]
    trainer = Trainer(model=model, args=arguments, train_dataset=data, callbacks=[Reporter()])
    monitor = Monitor(model, data={"input_ids": ids, "labels": ids}, every=2, overhead=None).attach(trainer)
    trainer.train()
    ours = [entry for entry in trainer.state.log_history if "hessianlens/top" in entry]
    assert [entry["step"] for entry in ours] == [record.step for record in monitor.history] == [1, 3]
    assert ours[0]["hessianlens/top"] == monitor.history[0].numbers["model"]["top"].value
    assert sum("hessianlens/top" in logs for logs in reported) == 2
    assert "hessianlens/layer0.attn/largest_logit" in ours[0] and not any(".head" in name for name in ours[0])
    assert sum("loss" in entry for entry in trainer.state.log_history) == 4  # none of its own is lost
