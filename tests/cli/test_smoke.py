"""Every command once, small, as the release check runs it in an environment with the wheel alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
def test_every_command_runs() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / ".ci/smoke.py"), sys.executable, "-m", "hessianlens"],
        env=os.environ | {"HESSIANLENS_SMOKE": "clone", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILED" not in done.stdout and done.stdout.count("ok ") >= 12
