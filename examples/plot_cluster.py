"""
A Dask run and a Slurm recipe
=============================

Experiments are lists of independent cells, so they run on a laptop, on Dask or under Slurm with the same numbers, bit
by bit, on machines of one kind, and resume after any interruption.
"""

# %%
# A small experiment on this machine. Every finished cell is in the store before the next one is counted.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

from hessianlab.experiments.registry import EXPERIMENTS
from hessianlab.runner import configure, run
from hessianlab.store import open_store

plans = configure([EXPERIMENTS["rank_fraction"]], "quick", ["d_model=6", "d_ks=1,2,3,4,5", "lengths=8", "repeats=2"])
file = Path(tempfile.mkdtemp()) / "cells.sqlite"
with open_store(file) as store:
    (result,) = run(plans, store, jobs=1)
    (again,) = run(
        plans, store, on_progress=lambda progress: print(progress.kept, "of", progress.planned, "cells kept")
    )

# %%
# **Dask.** Start a scheduler and workers, then name the scheduler; ``pip install 'hessianlens[cluster]'``:
#
# .. code-block:: sh
#
#    dask scheduler                                                  # on one machine
#    dask worker tcp://10.0.0.1:8786 --nthreads 1 --nworkers 16      # on each of the others
#    hessianlens reproduce --preset paper --backend dask --address tcp://10.0.0.1:8786
#
# **Slurm.** One job starts the scheduler, one worker per task, and the run. After a time limit the same job
# continues:
#
# .. code-block:: sh
#
#    #!/bin/bash
#    #SBATCH --ntasks=64 --cpus-per-task=1 --mem-per-cpu=2G --time=04:00:00
#    source .venv/bin/activate
#    rm -f scheduler.json
#    dask scheduler --scheduler-file scheduler.json &
#    srun dask worker --scheduler-file scheduler.json --nthreads 1 &
#    until [ -s scheduler.json ]; do sleep 1; done
#    address=$(python -c 'import json; print(json.load(open("scheduler.json"))["address"])')
#    hessianlens reproduce --preset paper --backend dask --address "$address" --store "$SCRATCH/cells.sqlite"

# %%
# What the experiment measured: the rank of the query-key part as a share of its size.

experiment = EXPERIMENTS["rank_fraction"]
print(experiment.question)
numbers = [(row["d_k"], row["rank"] / row["parameters"]) for row in result.rows()]
figure, ax = plt.subplots(figsize=(6, 3), layout="constrained")
ax.plot(*zip(*numbers, strict=True), "o")
ax.set(xlabel="width of queries and keys", ylabel="rank / parameters", ylim=(0, 1), xticks=range(1, 6))
plt.show()

# %%
# Stores, exit codes and tables: :doc:`/laboratory/running`. Data shared by several ranks under ``torchrun``:
# :doc:`/how-to/distributed`.
