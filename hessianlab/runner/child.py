"""A process that measures: it takes orders from its standard input and answers until that is closed.

Only `START` runs before `serve`. It starts isolated, so that neither the current folder nor PYTHONPATH can put a module
in front of a library's, and then looks for modules just where the process that started it does.
"""

from __future__ import annotations

import os
import pickle
import queue
import struct
import sys
import threading
from typing import IO, Any

START = """
import importlib.util, pickle, sys
began = pickle.load(sys.stdin.buffer)
sys.path[:] = began["path"]
for name, folder in began["packages"].items():
    spec = importlib.util.spec_from_file_location(name, folder + "/__init__.py", submodule_search_locations=[folder])
    package = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
from hessianlab.runner.child import serve
serve(began["main"])
"""
"""What the interpreter is started with. The packages are the very ones of the parent, wherever that found them."""

_LENGTH = struct.Struct("<Q")


def beginning(packages: dict[str, str]) -> bytes:
    """What `START` reads first: where to look for modules, and the script that defines what is in ``__main__``.

    An empty entry, which means the current folder, goes to the end: what is installed comes first.
    """
    path = [entry for entry in sys.path if entry] + ([os.getcwd()] if "" in sys.path else [])
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return pickle.dumps({"path": path, "packages": packages, "main": main and os.path.abspath(main)})


def send(stream: IO[bytes], message: Any) -> None:
    """One object, with its length in front."""
    content = pickle.dumps(message)
    stream.write(_LENGTH.pack(len(content)) + content)
    stream.flush()


def receive(stream: IO[bytes]) -> bytes | None:
    """The bytes of one object; None where the stream ends."""
    length = stream.read(_LENGTH.size)
    if len(length) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack(length)
    content = stream.read(size)
    return content if len(content) == size else None


def serve(main: str | None) -> None:
    """Answer orders, one at a time, until the parent closes the pipe or is gone."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    orders: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    while True:
        received = orders.get()
        if main is not None and b"__main__" in received:
            _define(main)
            main = None
        from hessianlab.runner.workers import measure_cell

        send(answers, measure_cell(pickle.loads(received)))


def _listen(orders: queue.Queue[bytes]) -> None:
    """Hand orders over. The end of the stream ends the process in the middle of a cell: nobody waits for it."""
    while (received := receive(sys.stdin.buffer)) is not None:
        orders.put(received)
    os._exit(0)


def _define(script: str) -> None:
    """Run the parent's script under another name, as `multiprocessing` does, for the functions it defines."""
    from multiprocessing.spawn import prepare

    prepare({"init_main_from_path": script})
