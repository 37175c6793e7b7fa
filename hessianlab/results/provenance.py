"""Where the numbers come from: versions, commit, machine, time."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from hessianlens import __version__

_LIBRARIES = ("torch", "numpy", "scipy", "curvlinops-for-pytorch", "opt_einsum", "matplotlib")


@dataclass(frozen=True)
class Provenance:
    """The circumstances of a run.

    Attributes:
        commit: Of the repository that holds this very package, with "-modified" behind it if the package has been
            changed since; None outside a repository.
    """

    version: str
    commit: str | None
    created: str
    python: str
    libraries: dict[str, str]
    system: str
    cpu: str
    cores: int
    threads: int
    memory: str


def collect() -> Provenance:
    """The circumstances now."""
    import psutil
    import torch

    from hessianlens.sizes import readable

    return Provenance(
        version=__version__,
        commit=_commit(Path(__file__).resolve().parents[1]),
        created=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        python=platform.python_version(),
        libraries={name: version for name in _LIBRARIES if (version := _version(name)) is not None},
        system=f"{platform.system()} {platform.release()}, {platform.machine()}",
        cpu=_cpu(),
        cores=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        memory=readable(psutil.virtual_memory().total),
    )


def _version(library: str) -> str | None:
    """None if it is not installed; not everything needs every library."""
    from importlib import metadata

    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    """The processor's name, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _commit(package: Path) -> str | None:
    """The commit of `package`, unless it merely lies somewhere inside a foreign repository."""
    try:
        if not _git(package, "ls-files", "--", "__init__.py"):
            return None
        commit = _git(package, "rev-parse", "--short=12", "HEAD")
        return commit + ("-modified" if _git(package, "status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(where: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(where), *arguments], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()
