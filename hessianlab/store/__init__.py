"""The store: every finished cell in one SQLite file, found again only by the code that measured it."""

from hessianlens.lab.store.code import Code, code_of
from hessianlens.lab.store.encoding import check_storable
from hessianlens.lab.store.keys import cell_key, question_key
from hessianlens.lab.store.leases import Leases, taking_part
from hessianlens.lab.store.lookup import results
from hessianlens.lab.store.other_code import Leftover, leftovers, prune
from hessianlens.lab.store.place import StoreLost
from hessianlens.lab.store.runs import (
    Run,
    cell_provenances,
    fail_cell,
    finish_run,
    get_run,
    last_complete_runs,
    list_runs,
    load_run,
    start_run,
)
from hessianlens.lab.store.store import Store, open_store

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
