"""The store: every finished cell in one SQLite file, found again only by the code that measured it."""

from hessianlab.store.code import Code, code_of
from hessianlab.store.database import StoreLost
from hessianlab.store.encoding import cell_key, check_storable, question_key
from hessianlab.store.leases import Leases, taking_part
from hessianlab.store.runs import (
    Leftover,
    Run,
    cell_provenances,
    fail_cell,
    finish_run,
    get_run,
    last_complete_runs,
    leftovers,
    list_runs,
    load_run,
    prune,
    results,
    start_run,
)
from hessianlab.store.store import Store, open_store

__all__ = [
    "Code",
    "Leases",
    "Leftover",
    "Run",
    "Store",
    "StoreLost",
    "cell_key",
    "cell_provenances",
    "check_storable",
    "code_of",
    "fail_cell",
    "finish_run",
    "get_run",
    "last_complete_runs",
    "leftovers",
    "list_runs",
    "load_run",
    "open_store",
    "prune",
    "question_key",
    "results",
    "start_run",
    "taking_part",
]
