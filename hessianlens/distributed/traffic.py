"""What went between processes."""

from __future__ import annotations

from dataclasses import dataclass

from hessianlens.sizes import readable, readable_time


@dataclass
class Traffic:
    """Counts what a process has sent into sums, and how long these took.

    Attributes:
        sums: Sums of tensors over all processes.
        bytes: Bytes of these tensors, a process.
        seconds: Time in which they were added up, once all processes were there.
        waits: Roll calls, one before each sum and each decision.
        waited: Time in them: that of the messages, and of waiting for the slowest process.

    >>> Traffic(sums=2, bytes=2048, seconds=0.5, waits=4, waited=0.25)
    2 sums of 1.0 KiB in 250 ms each, 4 roll calls of 62.5 ms
    """

    sums: int = 0
    bytes: int = 0
    seconds: float = 0.0
    waits: int = 0
    waited: float = 0.0

    def __repr__(self) -> str:
        sums, waits = max(self.sums, 1), max(self.waits, 1)
        return (
            f"{self.sums} sums of {readable(self.bytes / sums)} in {_short(self.seconds / sums)} each, "
            f"{self.waits} roll calls of {_short(self.waited / waits)}"
        )


def _short(seconds: float) -> str:
    return readable_time(seconds) if seconds >= 1 else f"{1e3 * seconds:.3g} ms"
