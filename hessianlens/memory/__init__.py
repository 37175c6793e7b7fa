"""Memory: how much there is, what a piece of work holds at its peak, and refusals before it is too late."""

from hessianlens.memory.limits import (
    SAFE_SHARE,
    available_bytes,
    ensure_fits,
    memory_errors_explained,
    process_bytes,
)
from hessianlens.memory.live import LiveBytes

__all__ = [
    "SAFE_SHARE",
    "LiveBytes",
    "available_bytes",
    "ensure_fits",
    "memory_errors_explained",
    "process_bytes",
]
