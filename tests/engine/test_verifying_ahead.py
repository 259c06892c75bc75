"""Verifying kernels ahead of the items that measure them."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from python_kernels import KERNEL, PythonDevice
from strict_arrays import StrictArrays

from pytest_gpuenergy.engine import Verifier, references
from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Gemm, Workload

PRODUCT = Gemm("product", 3, 4, 5)
TIMEOUT_S = 60.0


class AsideDevice(PythonDevice):
    """An emulated device that notes which threads have run kernels, all of which print."""

    def __init__(self, body: Callable[..., None], *, faults: bool = False) -> None:
        super().__init__(body, emulated=True)
        self.faults = faults
        self.threads: list[int] = []
        self.ended = threading.Event()

    def aside(self) -> AbstractContextManager[list[str]] | None:
        return None if self.faults else self._kept()

    @contextmanager
    def _kept(self) -> Iterator[list[str]]:
        try:
            yield ["printed"]
        finally:
            self.ended.set()


@pytest.fixture(autouse=True)
def processors(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Make processors(count), which lets the machine have so many; at first there are many."""

    def give(count: int) -> None:
        monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(count)))

    give(8)
    return give


@pytest.fixture
def kernel(request: pytest.FixtureRequest) -> Kernel:
    """A kernel that no other test has verified: successes are kept on disk."""
    return replace(KERNEL, source=f"__global__ void f() {{ /* {request.node.nodeid} */ }}")


def verifier(body: Callable[..., None], *, faults: bool = False) -> tuple[Verifier, AsideDevice]:
    def noted(**arrays: Any) -> None:
        device.threads.append(threading.get_ident())
        body(**arrays)

    device = AsideDevice(noted, faults=faults)
    return Verifier(device, TIMEOUT_S, None), device


def right(**arrays: Any) -> None:
    arrays["C"][...] = arrays["A"] @ arrays["B"]


def expect(found: Verifier, device: AsideDevice, kernel: Kernel, workload: Workload) -> None:
    found.expect(lambda: (kernel, workload))
    assert device.ended.wait(TIMEOUT_S)


@pytest.mark.parametrize("large", [True, False])
def test_references_that_have_begun_are_computed_once(large, kernel, monkeypatch):
    if large:  # the device computes them
        monkeypatch.setattr(references, "_LARGE_ELEMENTS", 1)
    computed: list[tuple[bool, bytes]] = []
    reference = Gemm.reference

    def noted(workload: Gemm, inputs: Mapping[str, Any]) -> Any:
        a, b = (getattr(inputs[name], "values", inputs[name]) for name in "AB")
        computed.append((inputs["A"] is not a, a.tobytes() + b.tobytes()))
        return reference(workload, inputs)

    product = Gemm("product", 320, 320, 384 + large)  # no sparse inputs, which can be equal
    monkeypatch.setattr(Gemm, "reference", noted)
    found = Verifier(PythonDevice(right, arrays=StrictArrays(shared=True)), TIMEOUT_S, 7)
    if large:
        found.begin_on_device(product)
    else:
        found.expect_workload(product)
    found.verify(kernel, product)
    found.close()
    assert len(set(computed)) == len(computed) > 3
    assert {on_device for on_device, _ in computed} == {large}


@pytest.mark.parametrize(("large", "begun"), [(True, 1), (False, 0)])
def test_the_first_large_product_that_is_expected_begins_to_use_the_gpus_memory(
    large, begun, monkeypatch
):
    if large:
        monkeypatch.setattr(references, "_LARGE_ELEMENTS", 1)
    began: list[int] = []
    may_begin = threading.Event()

    class Arrays(StrictArrays):
        def begin(self) -> None:
            may_begin.wait(TIMEOUT_S)
            began.append(1)
            raise MemoryError("out of memory")  # which its user will meet again

    found = Verifier(PythonDevice(right, arrays=Arrays(shared=True)), TIMEOUT_S, 7)
    for size in (320, 384):
        found.begin_arrays(Gemm("product", size, size, size))
    may_begin.set()
    found.settle()
    assert len(began) == begun
    found.close()


def test_a_right_kernel_is_not_run_again(kernel, capsys):
    found, device = verifier(right)
    expect(found, device, kernel, PRODUCT)
    runs = device.runs
    assert runs
    assert capsys.readouterr().err == ""
    assert found.verify(kernel, PRODUCT) == found.verify(kernel, PRODUCT)
    assert device.runs == runs
    assert threading.get_ident() not in device.threads
    assert capsys.readouterr().err == "printed"


def test_with_few_processors_the_first_kernel_is_verified_alone(kernel, processors):
    processors(2)
    found, device = verifier(right)
    made = threading.Event()

    def make() -> tuple[Kernel, Workload]:
        made.set()
        return replace(kernel, source=f"{kernel.source} // another one"), PRODUCT

    found.expect(make)
    assert made.wait(TIMEOUT_S)
    found.verify(kernel, PRODUCT)
    assert device.ended.wait(TIMEOUT_S)
    own = device.threads.count(threading.get_ident())
    assert 0 < own < len(device.threads)
    assert set(device.threads[:own]) == {threading.get_ident()}


def test_a_kernel_that_waits_for_the_first_one_ends_with_the_run(kernel, processors):
    processors(2)
    found, device = verifier(right)
    made = threading.Event()

    def make() -> tuple[Kernel, Workload]:
        made.set()
        return kernel, PRODUCT

    found.expect(make)
    assert made.wait(TIMEOUT_S)
    found.close()
    for thread in threading.enumerate():
        if thread.name.startswith("verify-ahead"):
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()
    assert not device.threads


def test_references_are_computed_ahead_unless_the_kernel_is_known_to_be_right(
    kernel, tmp_path, monkeypatch
):
    monkeypatch.setenv("GPUENERGY_CACHE", str(tmp_path))
    known, new = Gemm("known", 3, 5, 7), Gemm("new", 3, 5, 8)
    verifier(right)[0].verify(kernel, known)
    shutil.rmtree(tmp_path / "references")
    computed: list[str] = []
    is_new = threading.Event()
    compute = Gemm.reference

    def noted(workload: Gemm, inputs: Any) -> Any:
        computed.append(workload.name)
        if workload == new:
            is_new.set()
        return compute(workload, inputs)

    monkeypatch.setattr(Gemm, "reference", noted)
    found, _ = verifier(right)
    found.begin(kernel, known)
    found.begin(kernel, new)
    assert is_new.wait(TIMEOUT_S)
    found.close()
    assert "known" not in computed


def test_a_wrong_kernel_fails_as_if_it_had_not_been_verified_ahead(kernel, capsys):
    found, device = verifier(lambda **_: None)
    expect(found, device, kernel, PRODUCT)
    with pytest.raises(KernelFault, match="never written"):
        found.verify(kernel, PRODUCT)
    assert threading.get_ident() in device.threads
    assert capsys.readouterr().err == ""


def test_with_faults_on_the_card_nothing_is_verified_ahead(kernel):
    found, device = verifier(right, faults=True)
    found.expect(lambda: (kernel, PRODUCT))
    found.verify(kernel, PRODUCT)
    assert set(device.threads) == {threading.get_ident()}


def test_after_faults_what_was_found_ahead_does_not_count(kernel, capsys):
    found, device = verifier(right)
    expect(found, device, kernel, PRODUCT)
    device.faults = True
    found.verify(kernel, PRODUCT)
    assert capsys.readouterr().err == ""


def test_what_cannot_be_made_is_left_to_its_own_item(kernel):
    found, device = verifier(right)

    def make() -> tuple[Kernel, Workload]:
        device.ended.set()
        raise KernelFault("compile", "no such record")

    found.expect(make)
    assert device.ended.wait(TIMEOUT_S)
    found.verify(kernel, PRODUCT)
    found.close()
    found.close()
