"""Caches that cannot be written, as on a full disk: what is kept in them is made again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pytest_gpuenergy.devices import NvrtcCompilers
from pytest_gpuenergy.engine import cached_reference, verify_on_device
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.support import DeviceError, files, keep_for_later
from pytest_gpuenergy.tuners import KernelCache
from pytest_gpuenergy.workloads import Contract, Conv2d, Tensor

KERNEL = Kernel(
    'extern "C" __global__ void f(float* y) { y[threadIdx.x] = 1.0f; }',
    (Launch("f", (1, 1, 1), (32, 1, 1), ("y",)),),
)
ONES = Contract(
    "ones",
    (Tensor("y", (32,), "float32", "output"),),
    lambda _: {"y": np.ones(32)},
)


@pytest.fixture
def full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which nothing more can be written by way of drafts."""

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_atomically", refuse)
    return tmp_path


def test_what_can_be_made_again_is_kept_where_it_can(tmp_path):
    keep_for_later(tmp_path / "kept", "text")
    keep_for_later(tmp_path / "missing" / "kept", b"bytes")
    assert [path.name for path in tmp_path.rglob("*")] == ["kept"]


def test_a_lowered_kernel_is_not_kept(full_disk):
    cache = KernelCache(full_disk, "0.27.0")
    cache.put(KERNEL, "record")
    assert cache.get("record") is None


@pytest.mark.usefixtures("full_disk")
def test_a_kernel_is_verified():
    with open_device("emulated") as device:
        assert verify_on_device(device, KERNEL, ONES).max_relative_error == 0


@pytest.mark.usefixtures("full_disk")
def test_a_reference_is_computed():
    workload = Conv2d.of("full", 1, 3, 3, 1, 1, 1, 1, 1, 0)
    assert cached_reference(workload, 0)["output"].shape == (1, 1, 3, 3)


def test_machine_code_that_cannot_be_written_is_told(tmp_path, monkeypatch):
    pool = NvrtcCompilers("sm_90", tmp_path / "missing")
    monkeypatch.setattr(
        pool, "_call", lambda method, *_: "13.0" if method == "version" else (b"", {"f": "f"})
    )
    with pytest.raises(DeviceError, match=r"missing cannot be written .* set GPUENERGY_CACHE"):
        pool.submit(KERNEL).result()
    pool.close()
