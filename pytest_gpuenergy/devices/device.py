"""The interface of a GPU, and the records it returns.

Times are seconds of the device's clock, which is virtual on the emulated GPU.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.devices.arena import Arena, DeviceArrays
from pytest_gpuenergy.kernels import AnyKernel, Job, Kernel, Launch, LibraryCall
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import IoContract

# A launch lasts about 20 us.
_LIGHT = """extern "C" __global__ void light_load() {
  long long begin = clock64();
  while (clock64() - begin < 40000) {}
}
"""
_LIGHT_JOB = Job(
    Kernel(_LIGHT, (Launch("light_load", (1, 1, 1), (32, 1, 1), ()),)), IoContract("light load")
)
# About a millisecond on each multiprocessor, so that other work on the GPU does not wait for long.
# The map is chaotic, because arithmetic on constant numbers draws less power.
_HEAT = """__device__ float heated;
extern "C" __global__ void __launch_bounds__(1024) heat() {
  float x[8];
  for (int k = 0; k < 8; ++k) x[k] = 0.1f + 0.0007f * threadIdx.x + 0.01f * k;
  for (int i = 0; i < 6000; ++i) {
#pragma unroll
    for (int k = 0; k < 8; ++k) x[k] = fmaf(x[k], -1.9f * x[k], 1.0f);
  }
  for (int k = 1; k < 8; ++k) x[0] += x[k];
  if (x[0] == 12.345f) heated = x[0];  // or else the compiler would remove the loop
}
"""
HEAT_JOB = Job(Kernel(_HEAT, (Launch("heat", (512, 1, 1), (1024, 1, 1), ()),)), IoContract("heat"))
"""Arithmetic that keeps a GPU busy, without any memory."""


@dataclass(frozen=True)
class Work:
    """The amount of work of one run, as a hint for the emulated GPU's model."""

    flops: int
    bytes_moved: int


CLOCK_SPAN_S = 0.05
"""Approximate length of the spans of `ClockSamples`."""


@dataclass(frozen=True)
class ClockSamples:
    """The mean clock of an SM over spans of about `CLOCK_SPAN_S`, from the SM's cycle counter.

    Attributes:
        begin_s: the start of each span on the device's clock, shape (n,).
        end_s: the end of each span on the device's clock, ascending, shape (n,).
        mhz: the cycles per microsecond in each span, shape (n,).
    """

    begin_s: npt.NDArray[np.float64]
    end_s: npt.NDArray[np.float64]
    mhz: npt.NDArray[np.float64]


@dataclass(frozen=True)
class Timeline:
    """Progress of back-to-back launches, with one entry for each finished batch.

    Attributes:
        time_s: the end of each batch on the device's clock, ascending, shape (n,).
        launches: the number of launches finished by then, shape (n,).
        busy_s: the GPU time of those launches by the device's own timer, shape (n,).
        placements: the number of buffer sets, each at its own place in memory; successive batches
            rotate through them.
        clocks: the clock of an SM during the launches; None if it is unknown.
    """

    time_s: npt.NDArray[np.float64]
    launches: npt.NDArray[np.float64]
    busy_s: npt.NDArray[np.float64]
    placements: int = 1
    clocks: ClockSamples | None = None


@dataclass(frozen=True)
class Launches:
    """Launches made one by one from the host, rather than back to back.

    Attributes:
        count: the number of launches.
        begin_s: the time before the first launch on the device's clock.
        end_s: the time after the last launch on the device's clock.
        gpu_s: the time from the first launch to the end of the last by the GPU's own timer,
            including the time that the GPU waited for the host.
    """

    count: int
    begin_s: float
    end_s: float
    gpu_s: float


class Clock(Protocol):
    """The clock shared by NVML readings and timelines."""

    def now_s(self) -> float:
        """Return the time in seconds since some fixed moment."""

    def sleep_s(self, duration_s: float) -> None:
        """Let ``duration_s`` pass (virtual time on the emulated GPU)."""


class Repeater(Protocol):
    """Something that can run back to back, without the host ever delaying a launch."""

    def start(self) -> None:
        """Start launching; return once the first launches are in progress."""

    def stop(self) -> Timeline:
        """Stop launching, wait for launches in progress, and return the timeline.

        Raises:
            KernelFault: a launch failed or hung.
        """

    def launch(self, count: int) -> Launches:
        """Launch ``count`` times from the host, one after another, and wait for the last.

        Programs without a CUDA graph run this way. Not allowed between `start` and `stop`.

        Raises:
            KernelFault: a launch failed or hung.
        """


SINGLES = 3
"""The number of times that single launches are checked after many launches, see `Relaunching`."""


class Relaunching(Protocol):
    """A kernel that can be launched once more after many launches."""

    def relaunch(self, *, once: bool) -> Iterator[int]:
        """Launch again as before, in the same process and on the same buffers.

        All outputs are first overwritten with the present contents of the arenas; inputs,
        workspaces and device variables keep what the launches so far have left in them. Every set
        of buffers that has been used is launched on. When the GPU has finished, the first set is
        copied to the arenas, and after it, one by one, the other sets whose contents may differ.

        Args:
            once: launch a few times, overwrite the outputs, and directly after that launch a single
                time, so that no later launch can make up for work that this launch skips. Each of
                `SINGLES` such calls may use its share of the sets, if there are so many.

        Yields:
            The number of launches so far, each time the arenas have been written. Nothing if there
            have been no launches.

        Raises:
            KernelFault: a launch failed or hung, or wrote outside a workspace.
        """


class Threshold(NamedTuple):
    """A number with which a kernel compares values that vary.

    Attributes:
        value: the number.
        real: whether it is a floating-point number.
    """

    value: float
    real: bool


class Loaded(Relaunching, Protocol):
    """A kernel ready to run on arenas, in a process that keeps the state launches leave behind."""

    @property
    def thresholds(self) -> Collection[Threshold]:
        """The numbers that the runs so far compared with; empty if the device cannot tell."""

    @property
    def unread(self) -> Mapping[str, Sequence[tuple[int, int]]]:
        """The bytes of each input that no run so far has read, as ranges with their ends excluded.

        Nothing is listed on a device that cannot observe reads, and only some of the ranges where
        there are many.
        """

    def run(self, order_seed: int = 0) -> None:
        """Run all launches once, in place on the arenas, with fresh workspaces.

        ``order_seed`` varies the order in which an emulated GPU runs threads and blocks; a real
        one ignores it.

        Raises:
            KernelFault: the kernel did not compile, crashed, hung, or raced.
        """


class KernelRepeater(Repeater, Relaunching, Protocol):
    """A kernel that can run back to back."""


R = TypeVar("R", bound=Repeater, covariant=True)


class Heater(Protocol[R]):
    """A load that heats a GPU beside whatever else runs there, from a process of its own.

    A context manager, which may take seconds to begin; one thread at a time calls its methods,
    except `end`.
    """

    def __enter__(self) -> R:
        """Load it, and return what runs it.

        Raises:
            GpuEnergyError: it cannot run here, or `end` has been called.
        """

    def __exit__(self, *_: object) -> None:
        """End its process."""

    def end(self) -> None:
        """End its process at once, from any thread. Idempotent."""


class Device(ABC):
    """One GPU, real or emulated. A context manager that ends the GPU's processes on exit.

    Attributes:
        name: as reported by NVML, such as ``NVIDIA H200``.
        uuid: as reported by NVML, ``GPU-...``.
        architecture: such as ``sm_90``.
        emulated: whether anything it reports is modelled rather than measured.
        nvml: object with the functions, constants and error classes of `pynvml` that we use.
        handle: this device's NVML handle, for the functions of `nvml`.
        clock: the clock of NVML's readings and of `Timeline.time_s`.
    """

    name: str
    uuid: str
    architecture: str
    emulated: bool
    nvml: Any
    handle: Any
    clock: Clock

    def refusal(self, kernel: AnyKernel) -> str | None:  # noqa: ARG002 -- for those that refuse
        """Return a sentence that says why this device cannot run a kernel, or None if it can."""
        return None

    @abstractmethod
    def prepare(self, kernels: Sequence[AnyKernel]) -> None:
        """Start compiling ``kernels`` in the background, in parallel; faults are raised later.

        Without any, what all kernels need is made, such as a process, before the device is used.
        """

    def begin_search(self, beside: int = 0) -> None:  # noqa: B027 -- for devices with processes
        """Start what many kernels will need, without waiting for it, before the first kernel.

        A real GPU starts all its compilers and the context in which kernels run. Nothing may be
        timed until a kernel has run.

        Args:
            beside: the number of devices `beside` this one whose processes are started as well.
        """

    @abstractmethod
    def compile(self, kernel: AnyKernel) -> None:
        """Wait until ``kernel`` is compiled.

        Raises:
            KernelFault: it does not compile.
        """

    def prepare_job(self, job: Job) -> None:
        """Start compiling a job's kernel, also one that is compiled for types and scalars."""
        self.prepare([job.kernel])

    def compile_job(self, job: Job) -> None:
        """Wait until a job's kernel is compiled; a fault may also be raised where the job runs.

        Raises:
            KernelFault: it does not compile.
        """
        self.compile(job.kernel)

    def tensor_core_instructions(
        self,
        job: Job,  # noqa: ARG002 -- for devices that can look
    ) -> frozenset[str]:
        """Return the names of the tensor-core instructions in the machine code of a job's kernel.

        The set is empty for library calls, whose machine code is not examined.

        Raises:
            KernelFault: the kernel does not compile.
        """
        return frozenset()

    def variable_bytes(
        self,
        kernel: AnyKernel,  # noqa: ARG002 -- for devices that can look
    ) -> int:
        """Return the bytes of a kernel's device variables, which outlive a launch; 0 if unknown.

        Raises:
            KernelFault: the kernel does not compile.
        """
        return 0

    def listings(
        self,
        kernel: AnyKernel,  # noqa: ARG002 -- for devices whose compiler gives some
    ) -> Mapping[str, str]:
        """Return the compiler's listings of a kernel by name, ``ptx`` and ``sass``, if available.

        Raises:
            KernelFault: the kernel does not compile.
        """
        return {}

    def offered(
        self,
        call: LibraryCall,
        io: IoContract,  # noqa: ARG002 -- for devices that can ask the library
    ) -> tuple[LibraryCall, ...]:
        """Return the algorithms that a library offers for a call, the most promising first.

        Args:
            call: the call, which leaves the choice of the algorithm to the library.
            io: the tensors that the call takes.

        Raises:
            KernelFault: the library cannot make the call here.
        """
        raise KernelFault("constraints", self.refusal(call) or f"{call.label} has no choices.")

    @abstractmethod
    def load(self, job: Job, arenas: Mapping[str, Arena]) -> AbstractContextManager[Loaded]:
        """Make the job's kernel ready to run on the arenas.

        The arenas are the job's tensors, by name; their contents may change between runs. The
        device manages workspaces itself.

        Raises:
            KernelFault: the kernel did not compile, or cannot be launched.
        """

    def run_once(self, job: Job, arenas: Mapping[str, Arena], order_seed: int = 0) -> None:
        """Run all launches of the job's kernel once, in place on the arenas; see `load`.

        Raises:
            KernelFault: the kernel did not compile, crashed, hung, or raced.
        """
        with self.load(job, arenas) as loaded:
            loaded.run(order_seed)

    @abstractmethod
    def repeat(
        self, job: Job, arenas: Mapping[str, Arena]
    ) -> AbstractContextManager[KernelRepeater]:
        """Load the job's kernel to run back to back, on buffers filled from the arenas.

        Raises:
            KernelFault: the kernel did not compile or could not be launched, or its buffers are
                too small to be kept out of the L2 cache.
        """

    def beyond_model(
        self,
        job: Job,  # noqa: ARG002 -- a real card is no model, whatever the kernel
        arenas: Mapping[str, Arena],  # noqa: ARG002 -- as above
    ) -> str | None:
        """Return a clause that says why a kernel's time and energy may not be compared, or None.

        An emulated GPU computes them with a model that was validated on a real card for some kinds
        of kernels only. On a real card they may always be compared.

        Raises:
            KernelFault: the kernel does not compile, is refused, or races.
        """
        return None

    def light_load(self) -> AbstractContextManager[Repeater]:
        """Run a light load on one SM, which shows the clock of the card at little power.

        Raises:
            KernelFault: it does not compile or cannot be launched.
        """
        return self.repeat(_LIGHT_JOB, {})

    def heater(self) -> Heater[Repeater] | None:
        """Return a load that heats the GPU while it is not measured, or None.

        There is none where a second process may not use the GPU, nor where time is virtual.
        """
        return None

    def alongside(
        self, job: Job, arenas: Callable[[], Mapping[str, Arena]]
    ) -> Heater[KernelRepeater] | None:
        """Return a kernel that runs as by `repeat`, but beside other work, or None.

        There is none where there is no `heater`, nor for kernels that need Python modules, which
        take long to import, nor for large buffers.

        Args:
            job: the kernel.
            arenas: makes the arenas, by the thread that loads the kernel.
        """
        del job, arenas
        return None

    def begin_context(self) -> None:
        """Have the process that will run kernels begin to use the GPU, without waiting for it.

        Nothing that is timed may run on the GPU until a kernel has run. An emulated GPU has
        nothing to do.
        """
        return

    def renew(self, modules: Sequence[str] = ()) -> None:  # noqa: ARG002 -- for devices with a process
        """Run the next kernel in a new process.

        An emulated GPU starts a process for each kernel anyway.

        Args:
            modules: the Python modules that the kernel needs. They have been imported when this
                returns, and are imported ahead of time for the next call.
        """
        return

    def expect_modules(self, modules: Sequence[str]) -> None:  # noqa: B027 -- for devices with a process
        """Tell which Python modules the next kernel probably needs, so that they can be imported.

        That takes place while a kernel is measured. A kernel never runs in a process that has
        imported more than it needs. A device without such processes has nothing to do.
        """

    def aside(self) -> AbstractContextManager[list[str]] | None:
        """Return a context in which a thread can verify a kernel before its item runs, or None.

        Devices return None where verifying early could change what any item shows. Inside the
        context, what the kernel prints is added to the list.
        """
        return None

    def beside(self, count: int) -> AbstractContextManager[Sequence[Device]]:
        """Return devices of this GPU that run kernels at the same time, for what is not timed.

        Those of a real GPU have processes of their own, which end with the context. An emulated
        GPU returns itself alone.

        Args:
            count: the largest number of devices.
        """
        del count
        return nullcontext((self,))

    def twin(self) -> AbstractContextManager[Device]:
        """Return a device whose figures do not depend on what this device has run, if possible.

        An emulated GPU returns a copy of itself; a real GPU can only return itself.
        """
        return nullcontext(self)

    @property
    def arrays(self) -> DeviceArrays | None:
        """The device's arrays, for large references; None if this process should not use them."""
        return None

    def make_current(self) -> None:  # noqa: B027 -- where a process has only this one
        """Make this GPU the current one, on which callables in this process launch."""

    def misplaced(
        self,
        arguments: Iterable[object],  # noqa: ARG002 -- for machines with several GPUs
    ) -> str | None:
        """Return why a callable with these arguments would run on another GPU, or None."""
        return None

    @property
    def processes(self) -> frozenset[int]:
        """The IDs of our processes that have a context on the device."""
        return frozenset({os.getpid()})

    @abstractmethod
    def describe(self) -> dict[str, str]:
        """Return the versions of the driver, the runtime and the compilers, for the report."""

    @abstractmethod
    def close(self) -> None:
        """End the device's processes. Idempotent."""

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class NvmlGpu:
    """A GPU whose power limit can be managed even where neither CUDA nor CuPy works.

    The attributes are those of a `Device`.
    """

    nvml: Any
    handle: Any
    name: str
    uuid: str
    clock: Clock
    emulated: bool = False


Gpu = Device | NvmlGpu
"""Any GPU whose power limit can be read and set."""
