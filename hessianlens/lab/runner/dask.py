"""A Dask cluster.

Orders go to Dask's own client rather than through joblib's Dask backend: that one waits forever for a cell that the
scheduler has given up because it ended every worker it ran on.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hessianlens.errors import InputError, expect
from hessianlens.lab.runner.work import Answer, Order, measure_cell
from hessianlens.lab.runner.workers import Workers

if TYPE_CHECKING:
    from distributed import Client

_CONNECT_SECONDS = 20


@contextmanager
def dask_workers(address: str) -> Iterator[Workers]:
    """The workers behind a scheduler. They must run one thread each, since a cell takes its process for itself."""
    try:
        from distributed import Client
    except ImportError as error:
        raise InputError("backend: got 'dask', but it is not installed; pip install 'hessianlens[cluster]'.") from error
    try:
        client = Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(f"address: no Dask scheduler answers at {address!r} ({error}); check it.") from error
    with client:
        yield Workers(_count(client, address), lambda orders: _answers(client, orders))


def _count(client: Client, address: str) -> int:
    threads = client.nthreads()
    expect(bool(threads), f"address: the Dask scheduler at {address} has no workers; start some with `dask worker`.")
    expect(
        set(threads.values()) == {1},
        f"address: workers of the Dask cluster at {address} have {sorted(set(threads.values()))} threads, expected 1 "
        "each; start them with `dask worker --nthreads 1 --nworkers N`.",
    )
    return len(threads)


def _answers(client: Client, orders: Sequence[Order]) -> Generator[Answer, None, None]:
    """Dask gives the cells of a worker that vanished to another one, a few times.

    It blames every cell which that worker had been given, also those that only waited there for their turn. So the
    cells it gives up are asked for once more at the end, one at a time: then only the guilty one can be blamed.
    """
    blamed: list[Order] = []
    for order, answer, killed in _outcomes(client, orders):
        if killed:
            blamed.append(order)
        else:
            yield answer
    for order in blamed:
        yield from (answer for _, answer, _ in _outcomes(client, [order]))


def _outcomes(client: Client, orders: Sequence[Order]) -> Generator[tuple[Order, Answer, bool], None, None]:
    """Every order with its answer, and whether the scheduler gave it up because workers vanished."""
    from distributed import KilledWorker, as_completed

    futures = {client.submit(measure_cell, order, pure=False): order for order in orders}
    done: Any = as_completed(list(futures), loop=client.loop, with_results=True, raise_errors=False)
    try:
        for future, outcome in done:
            order = futures.pop(future)
            if future.status == "finished":
                yield order, outcome, False
            else:
                error = outcome[1] if isinstance(outcome, tuple) else outcome
                given_up = Answer(order[0], None, f"the cluster gave it up ({_reason(error)})")
                yield order, given_up, isinstance(error, KilledWorker)
    finally:
        client.cancel(list(futures))


def _reason(error: Any) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
