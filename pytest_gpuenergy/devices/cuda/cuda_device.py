"""A real NVIDIA GPU: CuPy in a worker process that may die, NVML in this process."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from copy import copy
from functools import cached_property, partial
from importlib.util import find_spec
from threading import Thread
from typing import Any

from pytest_gpuenergy.devices.arena import Arena, DeviceArrays
from pytest_gpuenergy.devices.cuda.array_kernels import array_kernels
from pytest_gpuenergy.devices.cuda.arrays import CupyArrays, Handle, array_ordinal
from pytest_gpuenergy.devices.cuda.compiler_pools import CompilerPools
from pytest_gpuenergy.devices.cuda.compilers import Binary
from pytest_gpuenergy.devices.cuda.machine_code import (
    host_program_cubins,
    sass_listing,
    tensor_core_instructions,
    variable_bytes,
)
from pytest_gpuenergy.devices.cuda.nvcc import find_nvcc
from pytest_gpuenergy.devices.device import (
    HEAT_JOB,
    SINGLES,
    Device,
    Heater,
    KernelRepeater,
    Launches,
    Loaded,
    Repeater,
    Threshold,
    Timeline,
)
from pytest_gpuenergy.devices.discovery import FoundGpu, has_context
from pytest_gpuenergy.devices.host_clock import HostClock
from pytest_gpuenergy.devices.nvml import GuardedNvml, printable_text
from pytest_gpuenergy.kernels import AnyKernel, CudaProgram, Job, Kernel, LibraryCall
from pytest_gpuenergy.support import (
    DeviceError,
    GpuEnergyError,
    KernelFault,
    Worker,
    WorkerDiedError,
    WorkerTimeoutError,
)
from pytest_gpuenergy.workloads import IoContract

_OFFER_TIMEOUT_S = 180.0
"""The time limit for a library to offer algorithms, and for PyTorch to be imported before."""

_IMPORTS_S = 120.0
"""The time limit for imports: PyTorch's gigabytes of libraries may be on a slow disk."""

_VERSIONS = {
    "driver": "nvmlSystemGetDriverVersion",
    "nvml": "nvmlSystemGetNVMLVersion",
    "cuda_driver": "nvmlSystemGetCudaDriverVersion_v2",
}

_HEATER_S = 60.0
"""The time limit for the heater to load, and for each of its calls."""

_MAX_ALONGSIDE_BYTES = 1 << 28
"""The largest tensors of a kernel that runs beside its verification, which needs memory as well."""

_ONE_QUEUE = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
"""The environment of a process that runs CUDA text, whose launches are all on one stream. With one
hardware queue instead of eight, a context takes half as long to begin with, and to end
(docs/notes/item-time.md)."""

_SHARING_S = 60.0
"""The time limit for the worker to open this process's memory; its context takes a second."""


_INSTALLED_BY = {"deep_gemm": "install DeepGEMM 2 or later from github.com/deepseek-ai/DeepGEMM"}
"""What installs a module that is not in the extra ``gemm``."""

_Modules = tuple[str, ...] | None
"""The Python modules that a worker's kernels need; None for a worker of CUDA text, see
`_ONE_QUEUE`."""


class CudaDevice(Device):
    """One whole NVIDIA GPU."""

    emulated = False

    def __init__(self, nvml: GuardedNvml, gpu: FoundGpu) -> None:
        self.nvml = nvml
        self.handle = gpu.handle
        self.name = gpu.name
        self.uuid = gpu.uuid
        self.ordinal = gpu.ordinal
        try:
            major, minor = nvml.nvmlDeviceGetCudaComputeCapability(gpu.handle)
        except nvml.NVMLError as error:
            raise DeviceError(
                f"{gpu.name} does not report its compute capability ({error}): check the card "
                "with nvidia-smi."
            ) from None
        self.architecture = f"sm_{major}{minor}"
        self.clock = HostClock()
        if find_spec("cupy") is None:
            raise DeviceError(
                f"{gpu.name} needs CuPy, which is not installed: pip install "
                "'pytest-gpuenergy[cuda13]' (or cuda12), or use --gpu-device emulated."
            )
        self._compilers = CompilerPools(self.architecture)
        self._worker, self._next_worker = self._new_worker(), self._new_worker()
        self._next_heater: Worker | None = None
        self._alongside: Worker | None = None
        self._ending: Thread | None = None
        self._is_beside = False
        self._spare: list[CudaDevice] = []  # for `beside`
        self._worker_modules: _Modules = None
        self._next_modules: _Modules = None
        self._latest_plain: _Modules = None  # of the latest kernel that needs no modules
        self._expected_modules: tuple[str, ...] = ()
        self._worker_has_repeated = False
        self._worker_is_unused = True
        self._are_tested = False  # the `array_kernels`, in a worker
        self._with_context: int | None = None  # process ID of the worker that has a context
        self._arrays = CupyArrays(gpu.ordinal, self._can_open, lambda: self._array_kernels)

    def refusal(self, kernel: AnyKernel) -> str | None:
        if isinstance(kernel, CudaProgram) and find_nvcc() is None:
            return (
                f"{kernel.label} needs nvcc, which is not on the PATH: install the CUDA toolkit, "
                "and put its folder bin on the PATH."
            )
        missing = [module for module in kernel.modules if find_spec(module) is None]
        if not missing:
            return None
        how = _INSTALLED_BY.get(missing[0], "pip install 'pytest-gpuenergy[gemm]'")
        return f"{kernel.label} needs {missing[0]}, which is not installed: {how}."

    def prepare(self, kernels: Sequence[AnyKernel]) -> None:
        if not kernels:  # otherwise another thread may be using the worker
            self._worker.start()  # imports CuPy, without using the GPU
            if self._shares_memory and self._next_heater is None:
                self._next_heater = self._new_worker()
                self._next_heater.start()
                self._next_worker.start()  # for the first kernel `alongside`
                self._compilers.submit(array_kernels())
            self._compilers.submit(HEAT_JOB.kernel)  # whose process also tells NVRTC's version
        for kernel in kernels:
            if not self.refusal(kernel):
                self._compilers.submit(kernel)

    def begin_search(self, beside: int = 0) -> None:
        self._compilers.begin()
        self.prepare(())
        self.begin_context()
        if self._shares_memory:
            self._spare += [self._other() for _ in range(beside - len(self._spare))]

    def compile(self, kernel: AnyKernel) -> None:
        self._binary(kernel)

    def prepare_job(self, job: Job) -> None:
        if not self.refusal(job.kernel):
            self._compilers.submit_job(job)

    def compile_job(self, job: Job) -> None:
        self.compile(job.kernel)
        self._compilers.wait_for(job)

    def tensor_core_instructions(self, job: Job) -> frozenset[str]:
        if isinstance(job.kernel, LibraryCall):
            return frozenset()
        if binary := self._binary(job.kernel):
            content = binary.path.read_bytes()
            if isinstance(job.kernel, CudaProgram):
                cubins = [*host_program_cubins(content)]
                if not cubins:
                    raise KernelFault(
                        "constraints", f"{job.kernel.label} has no machine code to look through."
                    )
                return frozenset().union(*map(tensor_core_instructions, cubins))
            return tensor_core_instructions(content, binary.symbols.values())
        self._leave_unfit_worker(_modules_of(job.kernel))
        codes: list[tuple[bytes, str]] = self._use(job.timeout_s, "machine_code", job)
        return frozenset().union(
            *(tensor_core_instructions(cubin, [symbol]) for cubin, symbol in codes)
        )

    def variable_bytes(self, kernel: AnyKernel) -> int:
        if not isinstance(kernel, Kernel) or (binary := self._binary(kernel)) is None:
            return 0
        return variable_bytes(binary.path.read_bytes())

    def listings(self, kernel: AnyKernel) -> Mapping[str, str]:
        if not isinstance(kernel, Kernel) or (binary := self._binary(kernel)) is None:
            return {}
        found = {"ptx": self._compilers.ptx(kernel), "sass": sass_listing(binary.path)}
        return {name: text for name, text in found.items() if text is not None}

    def offered(self, call: LibraryCall, io: IoContract) -> tuple[LibraryCall, ...]:
        self._binary(call)  # raises if it is refused
        self._leave_unfit_worker(_modules_of(call))
        calls: tuple[LibraryCall, ...] = self._use(_OFFER_TIMEOUT_S, "offered", call, io)
        return calls

    @contextmanager
    def load(self, job: Job, arenas: Mapping[str, Arena]) -> Iterator[Loaded]:
        kernel = _WorkerKernel(
            self, job.timeout_s, (job, self._compiled(job, arenas), dict(arenas))
        )
        modules = _modules_of(job.kernel)
        self._leave_unfit_worker(modules)
        # For the measurement that follows, see `repeat`; it may take place in this worker.
        if not self._is_beside:
            self._ready_next_worker(modules if self._worker_has_repeated else self._latest_plain)
        try:
            yield kernel
        finally:
            kernel.shut()

    @contextmanager
    def repeat(self, job: Job, arenas: Mapping[str, Arena]) -> Iterator[KernelRepeater]:
        binary = self._compiled(job, arenas)
        modules = _modules_of(job.kernel)
        self._leave_unfit_worker(modules)
        if job.apart and self._worker_has_repeated:
            self._replace_unfit_next(modules)
            self._renew_worker()
        self._worker_has_repeated = True
        if job.apart:
            # It imports CuPy, and these, in the meantime, and does not use the GPU yet.
            self._ready_next_worker(self._expected_modules or self._latest_plain)
        elif modules:  # of one kernel of many, one of which is then measured
            self._ready_next_worker(modules)
        self._use(job.timeout_s, "load", job, binary, dict(arenas))
        try:
            yield _WorkerRepeater(self, job.timeout_s)
        finally:
            if job.apart:
                self._renew_worker()
            elif self._worker.pid is not None:
                self._call(job.timeout_s, "unload")

    def expect_modules(self, modules: Sequence[str]) -> None:
        self._expected_modules = tuple(modules)

    def heater(self) -> Heater[Repeater] | None:
        if not self._shares_memory:
            return None
        worker, self._next_heater = self._next_heater or self._new_worker(), None
        return _WorkerHeater(self, worker)

    def alongside(
        self, job: Job, arenas: Callable[[], Mapping[str, Arena]]
    ) -> Heater[KernelRepeater] | None:
        nbytes = sum(tensor.nbytes for tensor in job.io.tensors)
        if not self._shares_memory or job.kernel.modules or nbytes > _MAX_ALONGSIDE_BYTES:
            return None
        self._latest_plain = _modules_of(job.kernel)
        self._replace_unfit_next(self._latest_plain)
        worker, self._next_worker = self._next_worker, self._new_worker(self._latest_plain)
        self._alongside = worker
        return _AlongsideKernel(self, worker, job, arenas)

    def begin_context(self) -> None:
        def begin() -> None:
            with suppress(GpuEnergyError):  # whoever needs the process next starts another
                self._use(_SHARING_S, "begin_context")

        if self._shares_memory:
            Thread(target=begin, name="context", daemon=True).start()

    def renew(self, modules: Sequence[str] = ()) -> None:
        if self._ending is not None:
            self._ending.join()
        needed = tuple(modules) or self._latest_plain
        self._replace_unfit_next(needed)
        if modules or not self._worker_is_unused:
            self._renew_worker()
        self._ready_next_worker(needed)  # as in `repeat`
        if modules:
            self._worker_is_unused = False
            self._call(_IMPORTS_S, "prepare", tuple(modules))

    @contextmanager
    def beside(self, count: int) -> Iterator[Sequence[Device]]:
        if not self._shares_memory or count < 2:
            yield (self,)
            return
        while len(self._spare) < count:
            self._spare.append(self._other())
        others, self._spare = self._spare[:count], self._spare[count:]
        try:
            yield others
        finally:
            workers = [each for other in others for each in (other._worker, other._next_worker)]
            with ThreadPoolExecutor(count, "kill") as pool:  # a context takes 0.1 s to end
                list(pool.map(lambda worker: worker.kill(), workers))

    @property
    def arrays(self) -> DeviceArrays | None:
        """The device's arrays; None in an exclusive mode, which allows only one context."""
        return self._arrays if self._shares_memory else None

    @cached_property
    def _array_kernels(self) -> Binary | None:
        """The compiled `array_kernels`; None if they cannot be compiled, as without NVRTC."""
        with suppress(Exception):
            return self._binary(array_kernels())
        return None

    @cached_property
    def _shares_memory(self) -> bool:
        # Read once: an H100's driver takes 40 ms for the mode.
        try:
            mode = self.nvml.nvmlDeviceGetComputeMode(self.handle)
        except self.nvml.NVMLError:
            return False
        return bool(mode == self.nvml.NVML_COMPUTEMODE_DEFAULT)

    def make_current(self) -> None:
        # The first GPU is current even without a context.
        if self.ordinal and self.arrays is not None:
            self._arrays.make_current()

    def misplaced(self, arguments: Iterable[object]) -> str | None:
        for where in (self._arrays.current(), *map(array_ordinal, arguments)):
            if where not in (None, self.ordinal):
                return (
                    f"The callable works on CUDA device {where}, but this run measures device "
                    f"{self.ordinal}, {self.uuid}: have it use the current device, or set "
                    f"CUDA_VISIBLE_DEVICES={self.uuid}."
                )
        return None

    @property
    def processes(self) -> frozenset[int]:
        found = {os.getpid()} if has_context(self.ordinal) else set()
        if self._with_context is not None and self._with_context == self._worker.pid:
            found.add(self._with_context)
        if self._alongside is not None and self._alongside.pid is not None:
            found.add(self._alongside.pid)
        return frozenset(found)

    def describe(self) -> dict[str, str]:
        nvml = self.nvml
        found: dict[str, Any] = {}
        for name, function in _VERSIONS.items():
            with suppress(nvml.NVMLError):
                found[name] = getattr(nvml, function)()
        if (cuda := found.get("cuda_driver")) is not None:
            found["cuda_driver"] = f"{cuda // 1000}.{cuda % 1000 // 10}"
        # Two processes tell the rest, which may both have to import CuPy first.
        with ThreadPoolExecutor(1) as pool:
            compilers = pool.submit(lambda: self._compilers.versions)
            versions: dict[str, str] = self._call(60.0, "describe")
            return {
                **{name: printable_text(version) for name, version in found.items()},
                **compilers.result(),
                **versions,
            }

    def close(self) -> None:
        workers = [self._worker, self._next_worker, self._next_heater, self._alongside]
        for worker in (*workers, *(other._worker for other in self._spare)):
            if worker is not None:
                worker.kill()
        self._compilers.close()

    def _new_worker(self, modules: _Modules = None) -> Worker:
        return Worker(
            "pytest_gpuenergy.devices.cuda.runner:CudaRunner",
            tuple(modules or ()),
            # By UUID, so that CUDA's order in a worker cannot differ from NVML's.
            environment={
                "CUDA_VISIBLE_DEVICES": self.uuid,
                **(_ONE_QUEUE if modules is None else {}),
            },
        )

    def _other(self) -> CudaDevice:
        """Return a device with this one's compilers and arrays, but with processes of its own."""
        other = copy(self)
        other._is_beside, other._spare = True, []
        other._worker, other._next_worker = other._new_worker(), other._new_worker()
        other._next_heater, other._with_context = None, None
        other._alongside, other._ending = None, None
        other._worker_modules = other._next_modules = other._latest_plain = None
        other._worker_has_repeated, other._worker_is_unused = False, True
        other._worker.start()
        return other

    def _compiled(self, job: Job, arenas: Mapping[str, Arena]) -> Binary | None:
        job.kernel.check_arguments(arenas, job.scalars)
        return self._binary(job.kernel)

    def _binary(self, kernel: AnyKernel) -> Binary | None:
        """Return the compiled kernel, or None for a kernel that the worker prepares itself."""
        if reason := self.refusal(kernel):
            raise KernelFault("constraints", reason)
        future = self._compilers.submit(kernel)
        return None if future is None else future.result()

    def _can_open(self, handle: Handle) -> bool:
        try:
            can: bool = self._use(_SHARING_S, "can_open", handle)
        except KernelFault:  # it died
            return False
        return can

    def _ready_next_worker(self, modules: _Modules) -> None:
        """Have the next worker import exactly these modules, without waiting for it."""
        if not (_fits(self._next_modules, modules) and _fits(modules, self._next_modules)):
            self._replace_next_worker(modules)
        self._next_worker.start()

    def _leave_unfit_worker(self, modules: _Modules) -> None:
        """Run the next kernel in another process if this one does not fit it."""
        self._latest_plain = self._latest_plain if modules else modules
        if not _fits(self._worker_modules, modules):
            self._replace_unfit_next(modules)
            self._renew_worker()

    def _replace_unfit_next(self, modules: _Modules) -> None:
        if not _fits(self._next_modules, modules):
            self._replace_next_worker(modules)

    def _replace_next_worker(self, modules: _Modules) -> None:
        self._next_worker.kill()
        self._next_worker, self._next_modules = self._new_worker(modules), modules

    def _renew_worker(self) -> None:
        # The old worker first: a card in exclusive mode allows only one process to have a context.
        self._worker.kill()
        self._worker, self._next_worker = self._next_worker, self._worker
        self._worker_modules, self._next_modules = self._next_modules, self._worker_modules
        self._worker_has_repeated = False
        self._worker_is_unused = not self._worker_modules

    def _use(self, timeout_s: float, method: str, *arguments: object) -> Any:
        """Call a method that creates the worker's context if it has none."""
        try:
            return self._call(timeout_s, method, *arguments)
        finally:
            self._with_context = self._worker.pid
            self._worker_is_unused = False

    def _relaunched(self, call: Callable[..., Any], once: bool, number: int = 0) -> Iterator[int]:
        """Relaunch in a worker, see `Relaunching.relaunch`; ``number`` counts single launches."""
        turns: int
        turns, self._are_tested = call("begin_relaunch", self._array_kernels, self._are_tested)
        share = SINGLES if once and turns >= SINGLES else 1
        for turn in range(number % share, turns, share):
            # One call for each turn, because the time limit of a call is meant for one launch.
            launches, results = call("relaunch", turn, once)
            for result in range(results):
                call("fetch", result)
                yield launches

    def _call(self, timeout_s: float, method: str, *arguments: object) -> Any:
        return self._called(self._worker, timeout_s, method, *arguments)

    @staticmethod
    def _called(worker: Worker, timeout_s: float, method: str, *arguments: object) -> Any:
        """Call a method of a worker's runner.

        Raises:
            KernelFault: the kernel failed, did not finish in time, or ended the process.
        """
        try:
            return worker.call(method, *arguments, timeout_s=timeout_s)
        except KernelFault as fault:
            if fault.outcome == "runtime":
                worker.kill()  # the context cannot be used any more
            raise
        except WorkerTimeoutError:
            raise KernelFault(
                "timeout", f"The kernel did not finish within {timeout_s:g} s."
            ) from None
        except WorkerDiedError as error:
            raise KernelFault("runtime", str(error)) from None


def _modules_of(kernel: AnyKernel) -> _Modules:
    return None if isinstance(kernel, Kernel) else tuple(kernel.modules)


def _fits(worker: _Modules, kernel: _Modules) -> bool:
    """Return whether a worker for kernels with these modules may run another kernel.

    Other kernels run differently in a process that has imported PyTorch. A program may use several
    streams, so that it needs all hardware queues.
    """
    if worker is None or kernel is None:
        return worker is kernel
    return set(worker) <= set(kernel)


class _WorkerKernel:
    """A kernel that stays in the worker, on the same buffers, from its first `run` to `shut`."""

    def __init__(self, device: CudaDevice, timeout_s: float, subject: tuple[object, ...]) -> None:
        self._device = device
        self._timeout_s = timeout_s
        self._subject = subject
        self._opened_in: int | None = None  # process ID of the worker

    @property
    def thresholds(self) -> Collection[Threshold]:
        """Nothing, because the hardware does not tell what is compared."""
        return ()

    @property
    def unread(self) -> Mapping[str, Sequence[tuple[int, int]]]:
        """Nothing, because the hardware does not tell what is read."""
        return {}

    def run(self, order_seed: int = 0) -> None:  # noqa: ARG002 -- the hardware orders threads
        if self._opened_in is None:
            self._device._use(self._timeout_s, "open", *self._subject)
            self._opened_in = self._device._worker.pid
        self._device._use(self._timeout_s, "run")

    def shut(self) -> None:
        """Free the kernel's buffers, unless the worker has ended since."""
        if self._opened_in is not None and self._opened_in == self._device._worker.pid:
            self._device._call(self._timeout_s, "shut")

    def relaunch(self, *, once: bool) -> Iterator[int]:
        """Launch again from the host, see `HostLaunches` and `Relaunching.relaunch`."""
        if self._opened_in is not None and self._opened_in == self._device._worker.pid:
            yield from self._device._relaunched(partial(self._device._call, self._timeout_s), once)


class _RemoteRepeater(ABC):
    """A `Repeater` whose load runs in a worker."""

    @abstractmethod
    def _call(self, method: str, *arguments: object) -> Any:
        """Call a method of the worker."""

    def start(self) -> None:
        self._call("start")

    def stop(self) -> Timeline:
        timeline: Timeline = self._call("stop")
        return timeline

    def launch(self, count: int) -> Launches:
        launches: Launches = self._call("launch", count)
        return launches


class _WorkerRepeater(_RemoteRepeater):
    """A kernel that runs back to back in the device's worker."""

    def __init__(self, device: CudaDevice, timeout_s: float) -> None:
        self._device = device
        self._timeout_s = timeout_s
        self._singles = 0

    def relaunch(self, *, once: bool) -> Iterator[int]:
        number, self._singles = self._singles, self._singles + once
        yield from self._device._relaunched(self._call, once, number)

    def _call(self, method: str, *arguments: object) -> Any:
        return self._device._call(self._timeout_s, method, *arguments)


class _AlongsideKernel(_WorkerRepeater):
    """See `Device.alongside`; nothing else runs in its worker, which ends for good by `end`."""

    def __init__(
        self,
        device: CudaDevice,
        worker: Worker,
        job: Job,
        arenas: Callable[[], Mapping[str, Arena]],
    ) -> None:
        super().__init__(device, job.timeout_s)
        self._worker = worker
        self._job, self._arenas = job, arenas

    def __enter__(self) -> KernelRepeater:
        self._call("begin_context")  # while the process that verifies begins with its own
        arenas = dict(self._arenas())
        self._call("load", self._job, self._device._compiled(self._job, arenas), arenas)
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        # Its context takes 0.07 s to end, in which the next kernel can begin.
        self._device._ending = ending = Thread(target=self._worker.retire, daemon=True)
        ending.start()

    def _call(self, method: str, *arguments: object) -> Any:
        return self._device._called(self._worker, self._timeout_s, method, *arguments)


class _WorkerHeater(_RemoteRepeater):
    """See `Heater`; its worker is no other's, so that a kernel that dies cannot end it."""

    def __init__(self, device: CudaDevice, worker: Worker) -> None:
        self._device = device
        self._worker = worker

    def __enter__(self) -> Repeater:
        try:
            self._worker.start()  # imports CuPy while the load is compiled
            self._call("load", HEAT_JOB, self._device._binary(HEAT_JOB.kernel), {})
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        self._worker.retire()

    def _call(self, method: str, *arguments: object) -> Any:
        return self._worker.call(method, *arguments, timeout_s=_HEATER_S)
