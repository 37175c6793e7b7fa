"""Lightning's Trainer tells a monitor of its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hessianlens.errors import check_that, needs_extra

if TYPE_CHECKING:
    from hessianlens.monitor.monitor import Monitor


def lightning_callback(monitor: Monitor) -> Any:
    """A callback of `lightning.pytorch` or `pytorch_lightning`, whichever is there; only the main process measures."""

    class MonitorCallback(_base()):  # type: ignore[misc]
        """Calls `Monitor.step` after every batch that ended in a step of the optimiser."""

        _last = 0

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            check_that(hasattr(trainer, "global_step"), "trainer", trainer, "Lightning's Trainer")
            self._last = int(trainer.global_step)

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            step = int(trainer.global_step)
            if step == self._last or not trainer.is_global_zero:  # gradients are accumulated
                return
            self._last = step
            optimizer = trainer.optimizers[0] if len(trainer.optimizers) == 1 else None
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            given = {} if loss is None else {"loss": loss}
            monitor.step(step, optimizer=optimizer, **given)

    return MonitorCallback()


def _base() -> type:
    try:
        from lightning.pytorch.callbacks import Callback
    except ModuleNotFoundError:
        with needs_extra("watch", "a callback of Lightning"):
            from pytorch_lightning.callbacks import Callback
    return Callback
