"""A Ray cluster.

Orders go to Ray's own tasks: joblib's Ray backend hands results over only when all of them are there.
"""

from __future__ import annotations

import socket
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hessianlens.errors import InputError
from hessianlens.lab.runner.work import Answer, Order, measure_cell
from hessianlens.lab.runner.workers import Workers

_CONNECT_SECONDS = 20

_RETRIES = 3
"""How often Ray may give a cell to another worker after the first was lost."""


@contextmanager
def ray_workers(address: str) -> Iterator[Workers]:
    """The workers of a Ray cluster, one core a cell."""
    try:
        import ray
    except ImportError as error:
        raise InputError("backend: got 'ray', but it is not installed; pip install ray.") from error
    _check_port(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise InputError(f"address: no Ray cluster answers at {address!r} ({error}); check it.") from error
    try:
        cores = int(ray.cluster_resources().get("CPU", 1))
        yield Workers(cores, lambda orders: _answers(ray, orders))
    finally:
        ray.shutdown()


def _check_port(address: str) -> None:
    """Ray itself tries for minutes and then ends the process, so knock first where there is a port to knock at."""
    host, _, port = address.rpartition(":")
    if host and "//" not in address and port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
        except OSError as error:
            raise InputError(f"address: no Ray cluster answers at {address!r} ({error}); check it.") from error


def _answers(ray: Any, orders: Sequence[Order]) -> Generator[Answer, None, None]:
    remote = ray.remote(num_cpus=1, max_retries=_RETRIES)(measure_cell)
    waiting = {remote.remote(order): order[0] for order in orders}
    while waiting:
        done, _ = ray.wait(list(waiting), num_returns=1)
        for reference in done:
            key = waiting.pop(reference)
            try:
                yield ray.get(reference)
            except ray.exceptions.RayError as error:
                yield Answer(key, None, f"the cluster gave it up ({' '.join(str(error).split())})")
