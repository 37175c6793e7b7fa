"""A real run to be watched: a small GPT-2 from a configuration, text made on the spot, Hugging Face's Trainer.

    python watched_run.py FOLDER [KILL_AT]

trains for twelve steps, saves a checkpoint every third, and is killed without warning after step KILL_AT. The same
command without it goes on from the last checkpoint; the monitor's store is FOLDER/run.jsonl, its page FOLDER/run.html.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

STEPS, LENGTH = 12, 12
WORDS = ["the", "sea", "was", "calm", "and", "a", "ship", "went", "on", "while", "one", "small", "bird", "sat", "still"]


def sentences(count: int, seed: int) -> list[dict[str, list[int]]]:
    """Random walks over the words: a word is mostly followed by the next one."""
    draw, found = random.Random(seed), []
    for _ in range(count):
        at, ids = draw.randrange(len(WORDS)), []
        for _ in range(LENGTH):
            ids.append(at)
            at = (at + 1) % len(WORDS) if draw.random() < 0.9 else draw.randrange(len(WORDS))
        found.append({"input_ids": ids, "labels": ids})
    return found


def main(folder: Path, kill_at: int | None) -> None:
    """Train, watched, from the last checkpoint if there is one."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    import hessianlens as hl

    class Killer(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(WORDS), n_positions=LENGTH, n_embd=8, n_layer=1, n_head=2))
    probe = torch.tensor([sentence["input_ids"] for sentence in sentences(4, seed=1)])
    monitor = hl.Monitor(
        model,
        ["layer0.attn.q", "layer0.attn.v"],
        data={"input_ids": probe, "labels": probe},
        every=2,
        overhead=None,
        log=folder / "run.jsonl",
    )
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=8,
        learning_rate=5e-3,
        save_steps=3,
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    callbacks = [monitor.trainer_callback(), Killer()]
    trainer = Trainer(model=model, args=arguments, train_dataset=sentences(96, seed=0), callbacks=callbacks)
    trainer.train(resume_from_checkpoint=bool(list(folder.glob("checkpoint-*"))))
    monitor.page(folder / "run.html", "A small GPT-2")
    print(monitor)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
