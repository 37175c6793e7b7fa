"""Models by their name on the hub: asked for over the network only where somebody answers there."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

_SECONDS = 4.0
"""Within these the hub, or the proxy in front of it, takes a connection; transformers itself tries for a minute."""

_TRUE = ("1", "on", "yes", "true")


def local_only(name: str) -> bool:
    """Whether a model is to be looked for on this machine alone: it is a folder, or the hub cannot be reached."""
    return Path(name).is_dir() or os.environ.get("HF_HUB_OFFLINE", "").lower() in _TRUE or not _answers(_address())


def _address() -> tuple[str, int]:
    """Of the hub, or of the proxy that stands in front of it."""
    hub = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    proxies = getproxies()
    proxy = proxies.get(hub.scheme) or proxies.get("all")
    place = urlsplit(proxy if "//" in proxy else f"//{proxy}") if proxy else hub
    return place.hostname or "huggingface.co", place.port or (80 if place.scheme == "http" else 443)


def _answers(address: tuple[str, int]) -> bool:
    """In a thread: to look up a name may take far longer than to be told that there is no network."""
    found = threading.Event()

    def knock() -> None:
        try:
            socket.create_connection(address, timeout=_SECONDS).close()
            found.set()
        except OSError:
            pass

    thread = threading.Thread(target=knock, daemon=True)
    thread.start()
    thread.join(_SECONDS)
    return found.is_set()
