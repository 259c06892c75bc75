"""Large workloads are verified in the device's memory, where their kernels run in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from python_kernels import KERNEL, PythonDevice
from strict_arrays import StrictArrays

from pytest_gpuenergy.devices import GUARD_BYTES, Arena
from pytest_gpuenergy.engine import (
    cached_reference,
    read_job,
    references,
    seeded_arenas,
    seeded_check,
    verify_on_device,
    write_job,
)
from pytest_gpuenergy.kernels import Job
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Contract, Gemm, Tensor, numbers, rounded_to

SIZE = 2000
DTYPES = ["float32", "float16", "bfloat16", "float64", "int8", "uint32"]


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "_LARGE_ELEMENTS", 1)
    monkeypatch.setattr("pytest_gpuenergy.workloads.inputs.DRAWN_ELEMENTS", 500)


def doubled(dtype: str = "float32") -> Contract:
    tensors = (Tensor("x", (SIZE,), dtype, "input"), Tensor("y", (SIZE,), dtype, "output"))
    return Contract("doubled", tensors, lambda inputs: {"y": 2 * inputs["x"]}, init={"x": (0, 9)})


def twice(dtype: str) -> Callable[..., None]:
    def body(x: Any, y: Any) -> None:
        y[:] = rounded_to(2 * numbers(x, dtype).astype(np.float64), dtype)

    return body


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_right_kernel_is_right(dtype):
    arrays = StrictArrays(shared=True)
    verify_on_device(PythonDevice(twice(dtype), arrays=arrays), KERNEL, doubled(dtype))
    assert arrays.memories == 2


def test_only_the_beginning_of_the_inputs_travels():
    arrays = StrictArrays(shared=True)
    sizes: list[int] = []
    put = arrays.put

    def noted(array: Any) -> Any:
        sizes.append(array.size if isinstance(array, np.ndarray) else 0)
        return put(array)

    arrays.put = noted  # type: ignore[method-assign]
    with seeded_arenas(doubled(), 0, arrays) as arenas:
        assert max(size for size in sizes if size < GUARD_BYTES) <= 500
        with arrays.used():
            found = arrays.get(arenas["x"].elements())
    np.testing.assert_array_equal(found, doubled().make_inputs(0)["x"])


def one_wrong(x: Any, y: Any) -> None:
    y[:] = 2 * x
    y[1234] += 1


def one_missing(x: Any, y: Any) -> None:
    y[:1999] = 2 * x[:1999]


def one_input_changed(x: Any, y: Any) -> None:
    y[:] = 2 * x
    x[77] += 1


def stale(x: Any, y: Any) -> None:
    if not np.isfinite(y).all():
        y[:] = 2 * x


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (one_wrong, r"^1 of 2000 elements of y \(first y\[1234\]\) is wrong"),
        (one_missing, r"^1 of 2000 elements of y \(first y\[1999\]\) is never written"),
        (one_input_changed, r"^1 of 2000 elements of x \(first x\[77\]\) is changed"),
        (stale, r"elements of y .* wrong"),
    ],
)
@pytest.mark.parametrize("shared", [True, False])
def test_a_wrong_kernel_is_found_there_as_on_the_host(body, words, shared):
    device = PythonDevice(body, arrays=StrictArrays(shared=shared))
    with pytest.raises(KernelFault, match=words):
        verify_on_device(device, KERNEL, doubled())


@pytest.mark.parametrize(
    ("at", "words"),
    [
        (GUARD_BYTES - 1, "before the start of y"),
        (GUARD_BYTES + 4 * SIZE, "past the end of y"),
    ],
)
def test_a_write_beside_a_tensor_is_found(at, words):
    arrays = StrictArrays(shared=True)
    device = PythonDevice(twice("float32"), arrays=arrays)
    with seeded_arenas(doubled(), 0, arrays) as arenas:
        check = seeded_check(device, doubled(), arenas, 0)
        run(device, arenas)
        check()
        with arrays.used():
            arenas["y"].image(writable=True)[at] = 0
        with pytest.raises(KernelFault, match=words):
            check()


@pytest.mark.parametrize("dtype", DTYPES)
def test_outputs_made_wrong_on_purpose_are_wrong(dtype):
    arrays = StrictArrays(shared=True)
    device = PythonDevice(twice(dtype), arrays=arrays)
    with seeded_arenas(doubled(dtype), 0, arrays) as arenas:
        check = seeded_check(device, doubled(dtype), arenas, 0)
        run(device, arenas)
        check.falsify()
        with pytest.raises(KernelFault, match=r"of 2000 elements of y .* wrong"):
            check()


def run(device: PythonDevice, arenas: Mapping[str, Arena]) -> None:
    with device.load(Job.of(KERNEL, doubled()), arenas) as loaded:
        loaded.run()


def test_a_reference_on_the_device_is_made_once_for_all_kernels_of_a_product(monkeypatch):
    made: list[str] = []
    compute = Gemm.reference

    def counted(gemm: Gemm, inputs: Mapping[str, Any]) -> Any:
        made.append(type(gemm).__name__)
        return compute(gemm, inputs)

    monkeypatch.setattr(Gemm, "reference", counted)
    arrays, gemm = StrictArrays(shared=True), Gemm("product", 8, 8, 8, "nn", "float32")
    first = cached_reference(gemm, 0, arrays)
    count = len(made)
    assert cached_reference(replace(gemm, name="again"), 0, arrays) is first
    assert len(made) == count
    (twin,) = gemm.twins
    assert cached_reference(twin, 0, arrays) is not first
    assert cached_reference(gemm, 0, StrictArrays(shared=True)) is not first


def test_a_reference_that_needs_the_hosts_arrays_is_compared_there():
    tensors = doubled().tensors
    workload = Contract(
        "doubled", tensors, lambda inputs: {"y": np.array([2 * float(x) for x in inputs["x"]])}
    )
    device = PythonDevice(one_wrong, arrays=StrictArrays(shared=True))
    with pytest.raises(KernelFault, match=r"first y\[1234\]"):
        verify_on_device(device, KERNEL, workload)


def test_without_shared_memory_arenas_are_files():
    arrays = StrictArrays(shared=False)
    with seeded_arenas(doubled(), 0, arrays) as arenas:
        assert not any(arena.memory.in_place for arena in arenas.values())


def test_small_workloads_stay_in_files(monkeypatch):
    monkeypatch.setattr(references, "_LARGE_ELEMENTS", 2 * SIZE + 1)
    with seeded_arenas(doubled(), 0, StrictArrays(shared=True)) as arenas:
        assert not any(arena.memory.in_place for arena in arenas.values())


def test_a_stored_job_is_checked_where_its_kernel_runs(tmp_path):
    contract = doubled()
    name = write_job(tmp_path, Job.of(KERNEL, contract), contract)
    arrays = StrictArrays(shared=True)
    with read_job(tmp_path, name).opened(arrays) as (arenas, check), arrays.used():
        assert arrays.memories == 2
        x, y = (arenas[name].elements(writable=True) for name in ("x", "y"))
        y[:] = 2 * x
        check()
        y[1234] = y[1234] + 1
        with pytest.raises(KernelFault, match=r"1 of 2000 elements of y \(first y\[1234\]\)"):
            check()


def test_a_stored_job_is_the_same_whether_the_device_or_the_host_computes_it(tmp_path):
    contract = doubled()
    job = Job.of(KERNEL, contract)
    there = write_job(tmp_path, job, contract, StrictArrays(shared=True))
    assert there == write_job(tmp_path, job, contract)


def test_a_stored_job_is_checked_on_the_host_if_memory_cannot_be_shared(tmp_path):
    contract = doubled()
    name = write_job(tmp_path, Job.of(KERNEL, contract), contract)
    with read_job(tmp_path, name).opened(StrictArrays()) as (arenas, check):
        arenas["y"].fill(2 * arenas["x"].value())
        check()
        arenas["y"].fill(arenas["x"].value())
        with pytest.raises(KernelFault, match=r"elements of y"):
            check()
