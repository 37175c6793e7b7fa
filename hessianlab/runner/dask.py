"""A Dask cluster.

Orders go to Dask's own client rather than through joblib's Dask backend: that one waits forever for a cell that the
scheduler has given up because it ended every worker it ran on, and so does Dask itself for a scheduler that is gone.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hessianlab.runner.workers import CellAnswer, Order, Workers, measure_cell
from hessianlens.errors import InputError, expect

if TYPE_CHECKING:
    from distributed import Client, Future

_CONNECT_SECONDS = 20

_REPLY_TIMEOUT_SECONDS = 30.0
"""How long a scheduler may be silent; asked for a sign of life now and then."""

_AHEAD = 2
"""Orders a worker: one that it measures, one that is there when that is done."""


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
    try:
        count = _count(client, address)
        yield Workers(count, lambda orders: _answers(client, orders, count * _AHEAD))
    finally:
        client.close(timeout=2)


def _count(client: Client, address: str) -> int:
    threads = client.nthreads()
    expect(bool(threads), f"address: the Dask scheduler at {address} has no workers; start some with `dask worker`.")
    expect(
        set(threads.values()) == {1},
        f"address: workers of the Dask cluster at {address} have {sorted(set(threads.values()))} threads, expected 1 "
        "each; start them with `dask worker --nthreads 1 --nworkers N`.",
    )
    return len(threads)


def _answers(client: Client, orders: Iterable[Order], most: int) -> Generator[CellAnswer, None, None]:
    """Dask gives the cells of a worker that vanished to another one, a few times.

    It blames every cell which that worker had been given, also those that only waited there for their turn; and an
    answer may vanish with its worker before it is fetched. So such cells are asked for again at the end, one at a
    time: then only the guilty one can be blamed.
    """
    again: list[Order] = []
    for order, answer, vanished in _outcomes(client, orders, most):
        if vanished:
            again.append(order)
        else:
            yield answer
    for order in again:
        yield from (answer for _, answer, _ in _outcomes(client, [order], 1))


def _outcomes(
    client: Client, orders: Iterable[Order], most: int
) -> Generator[tuple[Order, CellAnswer, bool], None, None]:
    """Every order with its answer, and whether it is missing because workers vanished."""
    waiting, more = iter(orders), True
    given: dict[Future[Any], Order] = {}
    done: queue.Queue[Future[Any]] = queue.Queue()
    try:
        while more or given:
            while more and len(given) < most:
                order = next(waiting, None)
                more = order is not None
                if order is not None:
                    future = client.submit(measure_cell, order, pure=False)
                    given[future] = order
                    future.add_done_callback(done.put)
            if given:
                future = _next_done(client, done)
                yield _outcome(client, given.pop(future), future)
    finally:
        if given and client.status == "running":
            client.cancel(list(given), asynchronous=True)


def _outcome(client: Client, order: Order, future: Future[Any]) -> tuple[Order, CellAnswer, bool]:
    from distributed import KilledWorker

    if future.status == "finished":
        answer = _result(client, future)
        return order, answer or CellAnswer(order[0], None, "its answer was lost with its worker"), answer is None
    error = future.exception(timeout=_REPLY_TIMEOUT_SECONDS) if future.status == "error" else future.status
    return (
        order,
        CellAnswer(order[0], None, f"the cluster gave it up ({_reason(error)})"),
        isinstance(error, KilledWorker),
    )


def _result(client: Client, future: Future[Any]) -> CellAnswer | None:
    """The answer of a cell; none if it cannot be fetched from a worker, `InputError` if the scheduler is gone."""
    try:
        answer: CellAnswer = future.result(timeout=_REPLY_TIMEOUT_SECONDS)
    except OSError:  # a connection that was lost, or an answer that does not come
        _ask(client)
        return None
    return answer


def _next_done(client: Client, done: queue.Queue[Future[Any]]) -> Future[Any]:
    """The next future that is settled; `InputError` if the scheduler is gone, for whom Dask itself waits forever."""
    asked = time.monotonic()
    while True:
        _check_alive(client)
        try:
            future = done.get(timeout=0.5)
        except queue.Empty:
            if time.monotonic() - asked > _REPLY_TIMEOUT_SECONDS:
                asked = time.monotonic()
                _ask(client)
            continue
        _check_alive(client)  # futures are cancelled, too, when the scheduler is gone
        return future


def _check_alive(client: Client) -> None:
    comm = client.scheduler_comm
    if client.status != "running" or comm is None or comm.comm.closed():
        raise _gone(client, "it has closed the connection")


def _ask(client: Client) -> None:
    """A sign of life from a scheduler whose connection looks open."""
    scheduler: Any = client.scheduler
    try:
        client.sync(scheduler.identity, callback_timeout=_REPLY_TIMEOUT_SECONDS)
    except Exception as error:  # of the many kinds of which each means that nobody answers
        raise _gone(client, _reason(error)) from error


def _gone(client: Client, why: str) -> InputError:
    address = getattr(client.scheduler, "address", None) or "its address"
    return InputError(
        f"address: the Dask scheduler at {address} no longer answers ({why}); what was measured so far is kept; "
        "start it again and run the same command to continue."
    )


def _reason(error: Any) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
