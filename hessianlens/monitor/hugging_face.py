"""The Trainer of Hugging Face transformers tells a monitor of its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hessianlens.errors import needs_extra

if TYPE_CHECKING:
    from hessianlens.monitor.monitor import Monitor


def trainer_callback(monitor: Monitor) -> Any:
    """A `TrainerCallback`; only the main process measures."""
    with needs_extra("hf", "a callback of its Trainer"):
        from transformers import TrainerCallback

    class MonitorCallback(TrainerCallback):
        """Calls `Monitor.step` after every step of the optimiser."""

        def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
            if state.is_world_process_zero:
                logged = [entry["loss"] for entry in state.log_history if "loss" in entry]
                given = {"loss": logged[-1]} if logged else {}
                monitor.step(int(state.global_step), optimizer=objects.get("optimizer"), **given)

    return MonitorCallback()
