"""The random seed that the kernels of a workload share for a day."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from python_kernels import KERNEL, PythonDevice

from pytest_gpuenergy.engine import drawn_seed, seeds, verify_on_device
from pytest_gpuenergy.workloads import Conv2d

SMALL = Conv2d.of("small", 1, 6, 7, 3, 4, 3, 3, 1, 1)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUENERGY_CACHE", str(tmp_path))
    return tmp_path


class Later(seeds.datetime):
    """A day on which nothing has been verified yet."""

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return seeds.datetime(2099, 1, 1, tzinfo=tz)


def right(data: Any, weight: Any, output: Any) -> None:
    output[...] = SMALL.reference({"data": data, "weight": weight})["output"]


def test_all_kernels_of_a_workload_share_it_for_a_day():
    first = drawn_seed(SMALL)
    assert drawn_seed(replace(SMALL, name="other")) == first
    assert drawn_seed(Conv2d.of("larger", 1, 7, 7, 3, 4, 3, 3, 1, 1)) != first


def test_another_machine_has_another_one(tmp_path, monkeypatch):
    first = drawn_seed(SMALL)
    monkeypatch.setenv("GPUENERGY_CACHE", str(tmp_path / "other"))
    assert drawn_seed(SMALL) != first


def test_the_next_day_has_another_one_and_the_old_reference_is_gone(own_cache, monkeypatch):
    first = verify_on_device(PythonDevice(right), KERNEL, SMALL).seeds[-1]
    count = len(list((own_cache / "references").iterdir()))
    with monkeypatch.context() as patch:
        patch.setattr(seeds, "datetime", Later)
        assert verify_on_device(PythonDevice(right), KERNEL, SMALL).seeds[-1] != first
    assert len(list((own_cache / "references").iterdir())) == count


def test_what_was_verified_on_an_emulated_gpu_is_known_the_next_day(monkeypatch):
    first = verify_on_device(PythonDevice(right, emulated=True), KERNEL, SMALL)
    monkeypatch.setattr(seeds, "datetime", Later)
    device = PythonDevice(right, emulated=True)
    assert verify_on_device(device, KERNEL, SMALL) == first
    assert device.runs == 0


def test_a_seed_to_repeat_is_run_even_if_another_one_is_known():
    verify_on_device(PythonDevice(right, emulated=True), KERNEL, SMALL)
    device = PythonDevice(right, emulated=True)
    assert verify_on_device(device, KERNEL, SMALL, drawn=77).seeds == (0, 1, 77)
    assert device.runs == len(seeds.drawings_of((0, 1, 77), SMALL))


@pytest.mark.parametrize("text", ["", "{", '{"day": 1}', '{"day": "2099-01-01", "seed": -5}'])
def test_a_damaged_file_is_written_again(own_cache, monkeypatch, text):
    monkeypatch.setattr(seeds, "datetime", Later)
    drawn_seed(SMALL)
    (path,) = (own_cache / "seeds").iterdir()
    path.write_text(text)
    again = drawn_seed(SMALL)
    assert drawn_seed(SMALL) == again


def test_a_cache_that_cannot_be_written_leaves_a_seed_of_its_own(own_cache):
    folder = own_cache / "seeds"
    folder.mkdir()
    folder.chmod(0o500)
    found = np.array([drawn_seed(SMALL) for _ in range(3)])
    folder.chmod(0o700)
    assert (found >= 2).all()
