"""Kernels of large workloads run on the memory of the process that verifies them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import numpy as np
import pytest
from host_cupy import HostDevice, HostGpu, host_gpu

from pytest_gpuenergy.devices import CupyArrays, PlainReductions, can_open
from pytest_gpuenergy.devices.cuda import arrays as arrays_module
from pytest_gpuenergy.support import DeviceError

NBYTES = 1000


@pytest.fixture
def gpu() -> Iterator[HostGpu]:
    with host_gpu(lambda: None) as gpu:
        yield gpu


@pytest.mark.usefixtures("gpu")
def test_two_processes_see_the_same_bytes():
    memory = CupyArrays(0, can_open).memory(NBYTES)
    other = pickle.loads(pickle.dumps(memory))
    memory.image(writable=True)[7] = 42
    assert other.image()[7] == 42
    with other.arrays.used():
        other.image(writable=True)[8] = 43
    assert memory.image()[8] == 43
    assert memory.image().size == other.image().size == NBYTES


def test_it_is_opened_once_and_closed_in_the_end(gpu):
    other = pickle.loads(pickle.dumps(CupyArrays(0, can_open).memory(NBYTES)))
    assert gpu.blocks.opened == 0
    assert other.image() is other.image()
    assert gpu.blocks.opened == 1
    del other
    assert gpu.blocks.opened == 0


def test_where_processes_cannot_share_it_there_is_none(gpu):
    gpu.blocks.works = False
    with pytest.raises(DeviceError, match="cannot share"):
        CupyArrays(0, can_open).memory(NBYTES)


def test_memory_that_is_too_small_is_said(gpu):
    def fails(_: int) -> None:
        raise MemoryError("out of memory")

    gpu.module.cuda.memory.Memory = fails
    with pytest.raises(DeviceError, match="1000 bytes of the GPU cannot be shared: out of memory"):
        CupyArrays(0, can_open).memory(NBYTES)


@pytest.mark.usefixtures("gpu")
def test_arrays_travel_both_ways():
    arrays = CupyArrays(0, can_open)
    values = np.arange(5.0)
    with arrays.used():
        np.testing.assert_array_equal(arrays.get(arrays.put(values)), values)


@pytest.mark.usefixtures("gpu")
def test_only_the_outer_of_two_uses_waits_for_the_gpu(monkeypatch):
    waits: list[str] = []
    monkeypatch.setattr(HostDevice, "synchronize", lambda _: waits.append("outer"))
    arrays = CupyArrays(0, can_open)
    with arrays.used():
        with pytest.raises(ZeroDivisionError), arrays.used():
            raise ZeroDivisionError
        assert waits == []
    assert waits == ["outer"]


def test_what_cupy_reduces_with_is_put_back_when_the_last_user_is_done(gpu, monkeypatch):
    # Threads that another test has left may be inside the process's.
    monkeypatch.setattr(arrays_module, "PLAIN_REDUCTIONS", PlainReductions())
    arrays, others = CupyArrays(0, can_open), CupyArrays(0, can_open)
    with arrays.used():
        with others.used():
            assert gpu.accelerators == []
        assert gpu.accelerators == []
    assert gpu.accelerators == [1]


@pytest.mark.usefixtures("gpu")
def test_another_gpu_gets_no_context_before_during_or_after_use():
    with CupyArrays(1, can_open).used():
        assert HostDevice.current == 1
    assert HostDevice.current == 1
    assert HostDevice.with_context == {1}
