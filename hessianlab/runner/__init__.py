"""The runner: experiments in parallel, on this machine or a cluster, resumed wherever they stopped."""

from hessianlab.runner.local import cores
from hessianlab.runner.plan import Plan, Progress, Tally, forecast, start_progress, tasks_to_do
from hessianlab.runner.running import CellsFailed, Failure, run
from hessianlab.runner.settings import configure
from hessianlab.runner.workers import BACKENDS, check_workers

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
