"""A run in a process of its own, for tests that end it: ``python -m tests.hessianlab.runner.child STORE JOBS``."""

import sys

from hessianlab.runner import Plan, run
from hessianlab.store import open_store
from tests.hessianlab.runner.toys import SPECTRUM, ToyConfig

CONFIG = ToyConfig(sizes=(40, 80), repeats=10, seconds=0.15)

if __name__ == "__main__":
    with open_store(sys.argv[1]) as store:
        run([Plan(SPECTRUM, CONFIG)], store, jobs=int(sys.argv[2]))
