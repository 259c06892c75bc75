"""Which process a real GPU's kernels run in, with workers that only note what they are asked."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from device_arrays import DlpackArray
from host_cupy import HostDevice, host_gpu, nvml_of_one_card
from jobs import job_of

from pytest_gpuenergy.devices import (
    Binary,
    CompilerPools,
    CudaDevice,
    FoundGpu,
    Heater,
    KernelRepeater,
)
from pytest_gpuenergy.devices.cuda import cuda_device as cuda
from pytest_gpuenergy.kernels import CudaProgram, Kernel, Launch, LibraryCall
from pytest_gpuenergy.support import DeviceError, KernelFault
from pytest_gpuenergy.workloads import IoContract


class FakeWorker:
    """A child process that is only a number."""

    born = 0

    def __init__(
        self, _: str, imports: tuple[str, ...], environment: Mapping[str, str] | None = None
    ) -> None:
        self.imports = imports
        self.environment = environment or {}
        self.pid: int | None = None
        self.calls: list[tuple[int, str]] = []
        self.faults: dict[str, Exception] = {}

    def start(self) -> None:
        if self.pid is None:
            FakeWorker.born += 1
            self.pid = FakeWorker.born

    def call(self, method: str, *_: Any, timeout_s: float | None = None) -> Any:  # noqa: ARG002
        self.start()
        assert self.pid is not None
        self.calls.append((self.pid, method))
        if method in self.faults:
            raise self.faults[method]

    def kill(self) -> None:
        self.pid = None

    def retire(self) -> None:
        self.kill()
        self.faults = dict.fromkeys(("load", "start", "stop"), DeviceError("It has been ended."))


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[FakeWorker]:
    made: list[FakeWorker] = []

    def make(*arguments: Any, **more: Any) -> FakeWorker:
        made.append(FakeWorker(*arguments, **more))
        return made[-1]

    monkeypatch.setattr(FakeWorker, "born", 0)
    monkeypatch.setattr(cuda, "Worker", make)
    monkeypatch.setattr(cuda, "find_spec", lambda _: object())
    monkeypatch.setattr(cuda, "has_context", lambda _: False)
    monkeypatch.setattr(CudaDevice, "_binary", lambda *_: None)
    monkeypatch.setattr(CompilerPools, "submit", lambda *_: None)
    monkeypatch.setattr(CompilerPools, "begin", lambda _: None)
    return made


def cuda_device(ordinal: int) -> CudaDevice:
    gpu: Any = SimpleNamespace(handle=None, name="GPU", uuid="GPU-1", ordinal=ordinal)
    found: FoundGpu = gpu
    return CudaDevice(nvml_of_one_card(), found)


@pytest.fixture
def device(workers: list[FakeWorker]) -> CudaDevice:  # noqa: ARG001 -- it makes them
    return cuda_device(0)


@pytest.fixture
def second(workers: list[FakeWorker]) -> Iterator[CudaDevice]:  # noqa: ARG001 -- it makes them
    with host_gpu(lambda: None):
        yield cuda_device(1)


def test_references_are_computed_on_the_gpu(device):
    assert device.arrays is not None


@pytest.mark.parametrize("mode", ["exclusive", "unknown"])
def test_no_second_process_needs_a_context_where_there_may_be_one_only(device, mode):
    def asked(_: object) -> int:
        if mode == "unknown":
            raise device.nvml.NVMLError("Not Supported")
        return 3

    device.nvml.nvmlDeviceGetComputeMode = asked
    assert device.arrays is None


def kernel() -> Kernel:
    return Kernel("void k();", (Launch("k", (1, 1, 1), (32, 1, 1), (), 0),))


def measure(device: CudaDevice, *, apart: bool) -> int:
    """Run a kernel back to back, and return the number of the process."""
    with device.repeat(job_of(kernel(), apart=apart), {}) as repeater:
        (number,) = device.processes
        repeater.start()
    return number


def test_each_measurement_apart_has_a_process_of_its_own(device):
    assert len({measure(device, apart=True) for _ in range(3)}) == 3


def test_others_share_one(device):
    assert len({measure(device, apart=False) for _ in range(3)}) == 1


def test_a_renewed_device_gives_the_next_kernel_a_process_of_its_own(device):
    before = measure(device, apart=False)
    device.renew()
    assert measure(device, apart=False) != before


def test_a_process_in_which_no_kernel_has_run_is_kept(device):
    device.prepare(())
    device.renew()
    assert measure(device, apart=False) == 1


def test_devices_beside_have_processes_of_their_own_that_end(device, workers):
    first = measure(device, apart=False)
    with device.beside(3) as devices:
        numbers = [measure(other, apart=False) for other in devices]
        assert len({first, *numbers}) == 4
        assert measure(devices[0], apart=False) == numbers[0]
    assert {one.pid for one in workers} & set(numbers) == set()
    assert measure(device, apart=False) == first


def test_processes_for_devices_beside_start_with_the_search(device, workers):
    device.begin_search(2)
    ready = {worker.pid for worker in workers} - {None}
    with device.beside(3) as devices:
        numbers = [measure(other, apart=False) for other in devices]
    assert len(ready & set(numbers)) == 2
    assert {worker.pid for worker in workers} & set(numbers) == set()


def test_processes_for_devices_beside_that_are_not_needed_end_with_the_device(device, workers):
    device.begin_search(2)
    device.close()
    assert {worker.pid for worker in workers} == {None}


def test_one_device_at_a_time_needs_no_other(device):
    with device.beside(1) as devices:
        assert tuple(devices) == (device,)


def test_no_device_is_beside_one_of_which_only_one_process_may_have_a_context(device):
    device.nvml.nvmlDeviceGetComputeMode = lambda _: 3
    with device.beside(4) as devices:
        assert tuple(devices) == (device,)


def test_the_process_after_the_next_kernels_has_its_imports_ahead(device, workers):
    device.renew(("triton", "torch"))
    own, following = [one for one in workers if one.pid is not None]
    assert own.calls == [(own.pid, "prepare")]
    assert following.imports == ("triton", "torch")
    device.renew(("triton", "torch"))
    assert following.calls[0][1] == "prepare"


PROGRAM = CudaProgram("void begin();", "begin", ())


def test_only_a_process_for_cuda_text_has_a_single_queue(device, workers):
    for subject, queues in ((kernel(), "1"), (PROGRAM, None), (kernel(), "1"), (LIBRARY, None)):
        for apart in (False, True, True):
            with device.repeat(job_of(subject, apart=apart), TENSORS) as repeater:
                repeater.start()
                (number,) = device.processes
            assert queues_of(workers, number) == queues


def queues_of(workers: list[FakeWorker], number: int) -> str | None:
    [worker] = [one for one in workers if (number, "start") in one.calls]
    return worker.environment.get("CUDA_DEVICE_MAX_CONNECTIONS")


def test_programs_beside_their_verification_have_processes_with_many_queues_ahead(device, workers):
    for _ in range(3):
        made = len(workers)
        heater = alongside(device, PROGRAM)
        assert heater is not None
        with heater as repeater:
            repeater.start()
            device.run_once(job_of(PROGRAM), TENSORS)
            device.renew()
            [number] = device.processes
            assert queues_of(workers, number) is None
    assert len(workers) - made == 1  # nothing started in vain


def test_a_kernel_that_needs_no_modules_has_a_process_without(device, workers):
    device.renew(("triton", "torch"))
    device.renew()
    number = measure(device, apart=False)
    [worker] = [one for one in workers if one.pid == number]
    assert worker.imports == ()
    assert "prepare" not in [method for _, method in worker.calls]


def test_cuda_text_has_ptx_and_where_there_is_nvdisasm_sass(device, monkeypatch):
    binary = Binary(Path("kernel.cubin"), {})
    monkeypatch.setattr(CudaDevice, "_binary", lambda *_: binary)
    monkeypatch.setattr(CompilerPools, "ptx", lambda *_: ".entry k")
    for sass, right in ((None, {"ptx": ".entry k"}), ("EXIT", {"ptx": ".entry k", "sass": "EXIT"})):
        monkeypatch.setattr(cuda, "sass_listing", lambda _, sass=sass: sass)
        assert device.listings(kernel()) == right


def test_a_library_has_no_listing(device):
    assert (
        device.listings(LibraryCall("torch.matmul", {"input": "a", "other": "b", "out": "c"}, {}))
        == {}
    )


def test_one_apart_does_not_take_the_process_of_another(device):
    assert measure(device, apart=False) != measure(device, apart=True)


def test_the_process_that_proved_a_kernel_right_measures_it(device, workers):
    measure(device, apart=True)
    device.run_once(job_of(kernel()), {})
    number = measure(device, apart=True)
    methods = [method for worker in workers for pid, method in worker.calls if pid == number]
    assert methods == ["open", "run", "shut", "load", "start"]


def test_the_next_process_begins_while_a_kernel_is_measured_and_keeps_off_the_gpu(device, workers):
    with device.repeat(job_of(kernel(), apart=True), {}) as repeater:
        spare = workers[1]
        repeater.start()
        assert spare.pid not in {None, *device.processes}
        assert spare.calls == []


def test_this_process_is_one_of_ours_on_the_gpu_once_it_has_a_context(device, monkeypatch):
    assert device.processes == set()
    monkeypatch.setattr(cuda, "has_context", lambda ordinal: ordinal == device.ordinal)
    assert device.processes == {os.getpid()}


def test_a_search_has_no_second_process(device, workers):
    with device.repeat(job_of(kernel(), apart=False), {}) as repeater:
        repeater.start()
        assert [worker.pid for worker in workers] == [1, None]


def test_only_one_process_at_a_time_is_on_the_gpu(device, workers, monkeypatch):
    on_the_gpu: set[int] = set()
    most = 0
    called, killed = FakeWorker.call, FakeWorker.kill

    def call(worker: FakeWorker, method: str, *_: Any, timeout_s: float | None = None) -> Any:
        nonlocal most
        called(worker, method, timeout_s=timeout_s)
        on_the_gpu.add(id(worker))
        most = max(most, len(on_the_gpu))

    def kill(worker: FakeWorker) -> None:
        on_the_gpu.discard(id(worker))
        killed(worker)

    monkeypatch.setattr(FakeWorker, "call", call)
    monkeypatch.setattr(FakeWorker, "kill", kill)
    for apart in (True, False, True, True, False):
        measure(device, apart=apart)
    assert most == 1
    assert len(workers) == 2


def test_after_a_fault_there_is_a_new_process(device, workers):
    workers[0].faults["start"] = KernelFault("runtime", "illegal address")
    with pytest.raises(KernelFault, match="illegal address"):
        measure(device, apart=True)
    ((broken, _), *_) = workers[0].calls
    assert measure(device, apart=True) != broken


def test_closing_ends_all_processes(device, workers):
    measure(device, apart=True)
    device.close()
    assert [worker.pid for worker in workers] == [None, None]


def test_callables_run_on_the_gpu_that_is_measured(second):
    second.make_current()
    assert HostDevice.current == 1
    assert second.misplaced([]) is None


def test_a_first_gpu_is_current_without_a_context(device):
    with host_gpu(lambda: None):
        device.make_current()
        assert HostDevice.with_context == set()
        assert device.misplaced([]) is None


def test_a_callable_that_works_on_another_gpu_is_told(second):
    assert "works on CUDA device 0, but this run measures device 1" in (second.misplaced([]) or "")


@pytest.mark.parametrize(("place", "misplaced"), [((2, 0), True), ((2, 1), False), ((1, 0), False)])
def test_arguments_on_another_gpu_are_told(second, place, misplaced):
    second.make_current()
    reason = second.misplaced([DlpackArray(None, place), 3, "text"])
    assert (reason is not None) == misplaced


def test_a_heater_has_a_process_of_its_own_until_it_ends(device, workers):
    heater = device.heater()
    assert heater is not None
    with heater as repeater:
        repeater.start()
        repeater.stop()
        repeater.launch(1)
        (running,) = [worker for worker in workers if worker.pid is not None]
        assert running.pid not in device.processes
    assert [method for _, method in running.calls] == ["load", "start", "stop", "launch"]
    assert running.pid is None


def test_a_heater_that_was_ended_does_not_start(device):
    heater = device.heater()
    assert heater is not None
    heater.end()
    with pytest.raises(DeviceError), heater:
        pass


def test_there_is_no_heater_where_there_may_be_one_process_only(device):
    device.nvml.nvmlDeviceGetComputeMode = lambda _: 3
    assert device.heater() is None


LIBRARY = LibraryCall("torch.matmul", {"input": "a", "other": "b", "out": "c"}, {})
TENSORS: dict[str, Any] = dict.fromkeys("abc")


def alongside(device: CudaDevice, subject: Any) -> Heater[KernelRepeater] | None:
    return device.alongside(job_of(subject, apart=True), lambda: TENSORS)


def test_a_kernel_alongside_its_verification_has_a_process_of_its_own(device, workers):
    device.prepare(())
    for _ in range(2):
        heater = alongside(device, kernel())
        assert heater is not None
        with device.load(job_of(kernel()), TENSORS) as loaded, heater as repeater:
            repeater.start()
            loaded.run()
            measuring, verifying = (
                next(worker for worker in workers if (worker.pid, method) in worker.calls)
                for method in ("start", "run")
            )
            assert device.processes == {measuring.pid, verifying.pid}
            device.renew()
            assert device.processes == {measuring.pid}
            repeater.launch(1)
            repeater.stop()
            number = measuring.pid
        calls = [method for pid, method in measuring.calls if pid == number]
        assert calls == ["begin_context", "load", "start", "launch", "stop"]
        assert measuring.pid is None


def test_a_fault_of_a_kernel_alongside_is_its_own(device, workers):
    heater = alongside(device, kernel())
    assert heater is not None
    workers[1].faults["load"] = KernelFault("runtime", "illegal address")
    with pytest.raises(KernelFault, match="illegal address"), heater:
        pass
    device.run_once(job_of(kernel()), TENSORS)


def test_no_kernel_runs_alongside_if_it_needs_modules_or_much_memory(device, monkeypatch):
    assert alongside(device, LIBRARY) is None
    monkeypatch.setattr(cuda, "_MAX_ALONGSIDE_BYTES", -1)
    assert alongside(device, kernel()) is None


def test_no_kernel_runs_alongside_where_there_may_be_one_process_only(device):
    device.nvml.nvmlDeviceGetComputeMode = lambda _: 3
    assert alongside(device, kernel()) is None


def test_the_process_of_kernels_begins_to_use_the_gpu_in_the_background(device, workers):
    device.begin_context()
    for thread in threading.enumerate():
        if thread.name == "context":
            thread.join()
    assert device.processes == {workers[0].pid}
    assert [method for _, method in workers[0].calls] == ["begin_context"]


def test_a_device_that_will_be_used_has_processes_that_import_already(device, workers):
    assert [worker.pid for worker in workers] == [None, None]
    device.prepare(())
    assert [worker.pid for worker in workers] == [1, 3, 2]
    assert device.processes == set()
    device.prepare(())
    assert measure(device, apart=False) == 1
    heater = device.heater()
    assert heater is not None
    with heater:
        assert [method for _, method in workers[2].calls] == ["load"]


def test_closing_ends_a_heater_that_nobody_has_used(device, workers):
    device.prepare(())
    device.close()
    assert [worker.pid for worker in workers] == [None, None, None]


def choose_and_measure(device: CudaDevice, workers: list[FakeWorker], chosen: Any) -> FakeWorker:
    """Time some candidates, verify the chosen one and measure it; return its process."""
    for _ in range(3):
        with device.repeat(job_of(chosen, apart=False), TENSORS) as repeater:
            repeater.start()
    device.run_once(job_of(chosen), TENSORS)
    with device.repeat(job_of(chosen, apart=True), TENSORS) as repeater:
        repeater.start()
        (number,) = device.processes
    [worker] = [one for one in workers if (number, "start") in one.calls]
    return worker


def test_the_process_that_measures_a_chosen_library_call_has_imported_it_ahead(device, workers):
    chosen = choose_and_measure(device, workers, LIBRARY)
    assert chosen.imports == ("torch",)
    assert choose_and_measure(device, workers, kernel()).imports == ()
    assert choose_and_measure(device, workers, LIBRARY).imports == ("torch",)


def test_a_kernel_is_not_measured_where_pytorch_was_imported_for_another(device, workers):
    with device.repeat(job_of(LIBRARY, apart=False), TENSORS) as repeater:
        repeater.start()
    number = measure(device, apart=True)
    [worker] = [one for one in workers if (number, "start") in one.calls]
    assert worker.imports == ()


def test_the_process_after_a_measurement_imports_what_is_expected(device, workers):
    device.expect_modules(("torch",))
    before = measure(device, apart=True)
    device.offered(LIBRARY, IoContract("w"))
    device.run_once(job_of(LIBRARY), TENSORS)
    with device.repeat(job_of(LIBRARY, apart=True), TENSORS) as repeater:
        repeater.start()
        (number,) = device.processes
    [worker] = [one for one in workers if (number, "offered") in one.calls]
    assert worker.imports == ("torch",)
    assert number != before
    assert [method for _, method in worker.calls][-2:] == ["load", "start"]


@pytest.mark.parametrize("apart", [False, True])
def test_what_was_expected_in_vain_is_in_no_process_of_another_kernel(device, workers, apart):
    device.expect_modules(("torch",))
    measure(device, apart=True)
    device.run_once(job_of(kernel()), {})
    number = measure(device, apart=apart)
    [worker] = [one for one in workers if (number, "start") in one.calls]
    assert worker.imports == ()
    assert (number, "run") in worker.calls
