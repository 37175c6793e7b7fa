"""The runner: experiments in parallel, on this machine or a cluster, resumed wherever they stopped."""

from hessianlens.lab.runner.local import cores
from hessianlens.lab.runner.plan import Plan, forecast, tasks_to_do
from hessianlens.lab.runner.progress import Progress, Tally, start_progress
from hessianlens.lab.runner.running import CellsFailed, Failure, run
from hessianlens.lab.runner.settings import configure
from hessianlens.lab.runner.workers import BACKENDS, check_workers

__all__ = [
    "BACKENDS",
    "CellsFailed",
    "Failure",
    "Plan",
    "Progress",
    "Tally",
    "check_workers",
    "configure",
    "cores",
    "forecast",
    "run",
    "start_progress",
    "tasks_to_do",
]
