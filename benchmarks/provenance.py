"""Where the numbers come from: versions, threads, CPU, date, commit."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

_LIBRARIES = ("hessianlens", "torch", "numpy", "curvlinops-for-pytorch", "opt_einsum")


def collect() -> dict[str, Any]:
    """The circumstances of a run."""
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY", "default"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "libraries": {name: metadata.version(name) for name in _LIBRARIES},
        "load_average": [round(x, 2) for x in os.getloadavg()] if hasattr(os, "getloadavg") else None,
    }


def cpu_model() -> str:
    """The processor's name, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _commit() -> str | None:
    """The commit measured; "-modified" behind it if the package differs from it."""
    root = Path(__file__).resolve().parents[1]
    try:
        commit = _git(root, "rev-parse", "--short=12", "HEAD")
        return commit + ("-modified" if _git(root, "status", "--porcelain", "--", "hessianlens") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(where: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(where), *arguments], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()
