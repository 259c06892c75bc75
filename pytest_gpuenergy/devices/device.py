"""What every device can do. Times are seconds of the device's own clock (virtual if emulated)."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.kernels.job import Job
from pytest_gpuenergy.kernels.kernel import AnyKernel
from pytest_gpuenergy.workloads.workload import Array, Tensor

GUARD_BYTES = 65536
"""Length of the guard band on either side of a buffer; a multiple of every alignment we need."""

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Arena:
    """A tensor's bytes in a file, between two guard bands, so that processes can share them.

    The file holds ``GUARD_BYTES`` of 0xFF, the tensor, ``GUARD_BYTES`` (and up to 255 bytes more,
    so that its length is a multiple of 256) of 0xFF. As float32, float64 or half, 0xFF.. is NaN.
    """

    tensor: Tensor
    path: Path

    @classmethod
    def create(cls, path: Path, tensor: Tensor, value: Array | None = None) -> Arena:
        """Write the file; the payload is ``value``, or 0xFF (NaN) everywhere without one."""
        guard = b"\xff" * GUARD_BYTES
        payload: Sequence[bytes | memoryview]
        if value is None:
            whole, rest = divmod(tensor.nbytes, GUARD_BYTES)
            payload = [guard] * whole + [guard[:rest]]
        else:
            payload = [_bytes_of(tensor, value).data]
        with path.open("wb") as file:
            for piece in (guard, *payload, guard[: -tensor.nbytes % 256], guard):
                file.write(piece)
        return cls(tensor, path)

    def image(self, mode: str = "r") -> Bytes:
        """The whole file, mapped (``r`` read only, ``r+`` writable)."""
        return np.memmap(self.path, dtype=np.uint8, mode=mode)  # type: ignore[call-overload,no-any-return]

    def value(self) -> Array:
        """A copy of the tensor."""
        return (
            np.array(self.payload(self.image())).view(self.tensor.dtype).reshape(self.tensor.shape)
        )

    def fill(self, value: Array | None = None) -> None:
        """Make ``value``, or 0xFF (NaN) everywhere, the tensor."""
        payload = self.payload(self.image("r+"))
        payload[:] = 0xFF if value is None else _bytes_of(self.tensor, value)

    def payload(self, image: Bytes) -> Bytes:
        """The tensor's bytes in an image of the file."""
        return image[GUARD_BYTES : GUARD_BYTES + self.tensor.nbytes]


def _bytes_of(tensor: Tensor, value: Array) -> Bytes:
    if value.shape != tensor.shape or value.dtype != np.dtype(tensor.dtype):
        raise ValueError(f"{tensor.name}: {value.shape} {value.dtype} is not {tensor}")
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8)


@dataclass(frozen=True)
class Work:
    """What the workload says of one run, as a hint for the emulated GPU's model."""

    flops: int
    bytes_moved: int


@dataclass(frozen=True)
class Timeline:
    """Progress of back-to-back launches: one entry each time a batch of them had finished.

    Attributes:
        time_s: shape (n,), the device clock, ascending.
        launches: shape (n,), launches finished by then, counted from the start.
        busy_s: shape (n,), GPU time of those launches by the device's own timer.
        placements: how many sets of buffers, each at a place of its own in memory, took turns, a
            batch each.
    """

    time_s: npt.NDArray[np.float64]
    launches: npt.NDArray[np.float64]
    busy_s: npt.NDArray[np.float64]
    placements: int = 1


@dataclass(frozen=True)
class Launches:
    """Launches made one by one from the host, rather than back to back.

    Attributes:
        count: how many.
        begin_s: the device clock before the first.
        end_s: the device clock when the last had finished.
        gpu_s: between two marks of the GPU's own timer, one before the first launch and one
            after the last: what it waited for the host is part of it.
    """

    count: int
    begin_s: float
    end_s: float
    gpu_s: float


class Clock(Protocol):
    """The clock that NVML's readings and timelines share."""

    def now_s(self) -> float:
        """Seconds since some fixed moment."""

    def sleep_s(self, duration_s: float) -> None:
        """Let ``duration_s`` pass (in virtual time on the emulated GPU)."""


class Repeater(Protocol):
    """Something that can be run back to back, without the host ever delaying a launch."""

    def start(self) -> None:
        """Begin launching; returns once the first launches are under way."""

    def stop(self) -> Timeline:
        """Stop launching, wait for what is under way, and tell what was done.

        Raises:
            KernelFault: a launch failed or hung.
        """

    def launch(self, count: int) -> Launches:
        """Launch ``count`` times from the host, one after another, and wait for the last.

        It is how programs without a CUDA graph run. Not between `start` and `stop`.

        Raises:
            KernelFault: a launch failed or hung.
        """


class Relaunching(Protocol):
    """A kernel that can be launched once more after many launches."""

    def relaunch(self, *, once: bool) -> Iterator[int]:
        """Launch again as before, in the same process and on the same buffers.

        All outputs are first overwritten with those that the arenas have at the call; inputs,
        workspaces and variables of the device stay as the launches so far have left them. Every set
        of buffers that was used takes part. When the GPU has finished, the arenas are given what is
        in the buffers: of the first set, and then of each other set in which anything differs.

        Args:
            once: launch a few times, then overwrite the outputs, and launch a single time directly
                after that: no later launch can make up for what that one leaves out.

        Yields:
            How many launches there have been, each time that the arenas have been written. Nothing
            where there have been no launches.

        Raises:
            KernelFault: a launch failed or hung, or wrote beside a workspace.
        """


class Loaded(Relaunching, Protocol):
    """A kernel in a process that keeps what launches leave behind, with arenas as its buffers."""

    def run(self, order_seed: int = 0) -> None:
        """Run all launches once, in place on the arenas, with workspaces that nobody has written.

        ``order_seed`` varies the order in which an emulated GPU runs threads and blocks; a real
        one ignores it.

        Raises:
            KernelFault: the kernel did not compile, crashed, hung, or raced.
        """


class KernelRepeater(Repeater, Relaunching, Protocol):
    """A kernel that can be run back to back."""


class Device(ABC):
    """One GPU, real or emulated. A context manager: leaving it ends its processes.

    Attributes:
        name: as NVML gives it, such as ``NVIDIA H200``.
        uuid: as NVML gives it; ``GPU-...``.
        architecture: such as ``sm_90``.
        emulated: whether anything it says is modelled rather than measured.
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
        """Why this device cannot run kernels like this one, as a sentence; None if it can."""
        return None

    @abstractmethod
    def prepare(self, kernels: Sequence[AnyKernel]) -> None:
        """Begin compiling ``kernels`` in the background, in parallel; faults surface later."""

    @abstractmethod
    def compile(self, kernel: AnyKernel) -> None:
        """Wait until ``kernel`` is compiled.

        Raises:
            KernelFault: it does not compile.
        """

    @abstractmethod
    def load(self, job: Job, arenas: Mapping[str, Arena]) -> AbstractContextManager[Loaded]:
        """Make the job's kernel ready to run on the arenas, which are its tensors by name.

        What the arenas hold may change between runs. Workspaces are the device's own affair.

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
        """Load the job's kernel with the arenas' contents as its buffers, to run back to back.

        Raises:
            KernelFault: the kernel did not compile or could not be launched, or its buffers are
                too small to be kept out of the L2 cache.
        """

    @property
    def processes(self) -> frozenset[int]:
        """Numbers of the processes of ours that hold a context on the device."""
        return frozenset({os.getpid()})

    @abstractmethod
    def describe(self) -> dict[str, str]:
        """Driver, runtime and compiler versions, for the report."""

    @abstractmethod
    def close(self) -> None:
        """End the device's processes. Idempotent."""

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
