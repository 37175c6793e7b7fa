"""What does not fit is refused; what failed to be allocated all the same is explained."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hessianlens import memory
from hessianlens.errors import InputError
from hessianlens.memory import available_bytes, ensure_fits, memory_errors_explained, process_bytes

CPU = torch.device("cpu")


def test_an_allocation_that_torch_refuses_is_one_line() -> None:
    expected = pytest.raises(InputError, match=r"memory: an allocation failed \(.*\); take less\.")
    with expected as raised, memory_errors_explained("take less"):
        torch.empty(2**55, dtype=torch.float64)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("error", [RuntimeError("shapes do not match"), ValueError("out of memory")])
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)), memory_errors_explained("take less"):
        raise error


def test_sizes_of_any_magnitude_are_refused() -> None:
    ensure_fits("It", (10, 10), torch.float64, CPU, "take less")
    for shape in ((2**40, 2**20), (2**200,)):
        with pytest.raises(InputError, match=r"would need .* are free on cpu; take less"):
            ensure_fits("It", shape, torch.float64, CPU, "take less")


def test_the_limit_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    unlimited = available_bytes(CPU)
    for name, text in {"memory.max": "3000", "memory.current": "1000", "memory.stat": "inactive_file 500\n"}.items():
        (tmp_path / name).write_text(text)
    assert available_bytes(CPU) == 2500 < unlimited
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes(CPU) > 2**20


def test_the_process_holds_what_it_made() -> None:
    before = process_bytes()
    held = torch.ones(2**25)  # 128 MiB
    assert process_bytes() - before > 0.8 * held.nbytes
