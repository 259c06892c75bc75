"""The emulated GPU as a `Device`: the host runs the kernels, the card's state tells the rest."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from pytest_gpuenergy.devices.cache import sets_needed
from pytest_gpuenergy.devices.device import (
    Arena,
    Device,
    KernelRepeater,
    Launches,
    Loaded,
    Timeline,
    Work,
)
from pytest_gpuenergy.devices.emulated.card import Card
from pytest_gpuenergy.devices.emulated.clock import VirtualClock
from pytest_gpuenergy.devices.emulated.compiler import find_compiler, version_of
from pytest_gpuenergy.devices.emulated.faults import FAULTS_VARIABLE, LAUNCH, Fault, parse_faults
from pytest_gpuenergy.devices.emulated.governor import Demand
from pytest_gpuenergy.devices.emulated.host_kernel import HostKernel, HostProgram
from pytest_gpuenergy.devices.emulated.load import Load
from pytest_gpuenergy.devices.emulated.nvml import EmulatedNvml
from pytest_gpuenergy.devices.emulated.owner import Owner
from pytest_gpuenergy.devices.emulated.profiles import DEFAULT_PROFILE, GpuProfile
from pytest_gpuenergy.devices.emulated.state import CardState
from pytest_gpuenergy.devices.emulated.timing.model import demand_of, recorded_on
from pytest_gpuenergy.devices.emulated.timing.plan import AccessProfile, check_limits
from pytest_gpuenergy.devices.emulated.timing.traffic import Traffic, TrafficCache
from pytest_gpuenergy.devices.emulated.toolchain import build_version
from pytest_gpuenergy.devices.places import placements
from pytest_gpuenergy.kernels.job import Job
from pytest_gpuenergy.kernels.kernel import AnyKernel, Kernel
from pytest_gpuenergy.support.errors import DeviceError, KernelFault
from pytest_gpuenergy.support.paths import cache_dir
from pytest_gpuenergy.workloads.workload import Scalar

_FIRST_LAUNCH_NS = 20_000

# On an H200 a kernel of 19.4 us took 32.6 us when launched and timed singly. How often a host can
# launch is a guess.
_TIMED_SINGLY_S = 13e-6
_HOST_LAUNCH_S = 5e-6


class Runner(Protocol):
    """What runs a kernel on the host, as `HostRunner` does; `check_races` leaves the arenas."""

    def prepare(self, kernels: Sequence[Kernel]) -> None: ...
    def compile(self, kernel: Kernel) -> Path: ...
    def open(
        self,
        kernel: Kernel,
        arenas: Mapping[str, Arena],
        scalars: Mapping[str, Scalar],
        *,
        timeout_s: float,
    ) -> AbstractContextManager[HostProgram]: ...
    def check_races(
        self,
        kernel: Kernel,
        arenas: Mapping[str, Arena],
        scalars: Mapping[str, Scalar],
        *,
        timeout_s: float,
    ) -> AccessProfile: ...
    def close(self) -> None: ...


class EmulatedDevice(Device):
    """One emulated GPU. Everything it says of time and energy is recorded or modelled.

    Faults in ``GPUENERGY_EMULATED_FAULTS`` are on the card until `close`.

    Args:
        profile: the GPU it is.
        index: which of several of that profile.
        runner: what runs kernels on the host; closed with the device.

    Raises:
        DeviceError: its state cannot be kept, or a fault keeps NVML from starting.
        InputError: ``GPUENERGY_EMULATED_FAULTS`` is not understood.
    """

    emulated = True

    def __init__(
        self,
        profile: GpuProfile = DEFAULT_PROFILE,
        index: int = 0,
        *,
        runner: Runner | None = None,
    ) -> None:
        self.profile = profile
        self.name = profile.name
        self.architecture = profile.architecture
        self._states = [CardState(profile, i) for i in range(index + 1)]
        self.state = self._states[index]
        self.uuid = self.state.uuid
        self.clock = VirtualClock(self.state)
        self._runner = runner or _host_runner()
        self._traffic = TrafficCache()
        faults = parse_faults(os.environ.get(FAULTS_VARIABLE) or "{}")
        self._faults = [self.state.inject(fault) for fault in faults]
        nvml = EmulatedNvml(self._states)
        try:
            nvml.nvmlInit()
            self.handle = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            self.close()
            raise DeviceError(
                f"NVML of the emulated {self.name} does not start: {error}."
            ) from None
        self.nvml = nvml

    def inject(self, what: str, value: object = True) -> str:
        """Put a fault on the card: what an entry of ``GPUENERGY_EMULATED_FAULTS`` says.

        Returns:
            Its identity, for `CardState.withdraw`; `close` withdraws it too.

        Raises:
            InputError: it is not understood.
        """
        self._faults.append(self.state.inject(Fault.of(what, value)))
        return self._faults[-1]

    def refusal(self, kernel: AnyKernel) -> str | None:
        if isinstance(kernel, Kernel):
            return None
        return f"{kernel.label} needs a real GPU: the emulated one runs CUDA text only."

    def prepare(self, kernels: Sequence[AnyKernel]) -> None:
        self._runner.prepare([kernel for kernel in kernels if isinstance(kernel, Kernel)])

    def compile(self, kernel: AnyKernel) -> None:
        self._runner.compile(self._text(kernel))

    @contextlib.contextmanager
    def load(self, job: Job, arenas: Mapping[str, Arena]) -> Iterator[Loaded]:
        """Make the kernel ready to run on the host; before its first run ever, look for races."""
        kernel = self._text(job.kernel)
        check_geometry(kernel, self.profile)
        check_memory(kernel, arenas, self.profile)

        def before() -> None:
            strike(self.state)
            self._profiled(job, arenas)

        def program() -> AbstractContextManager[HostProgram]:
            return self._runner.open(kernel, arenas, job.scalars, timeout_s=job.timeout_s)

        with contextlib.ExitStack() as stack:
            yield HostKernel(before, program, stack)

    @contextlib.contextmanager
    def repeat(self, job: Job, arenas: Mapping[str, Arena]) -> Iterator[KernelRepeater]:
        kernel, cache = self._text(job.kernel), job.cache
        check_geometry(kernel, self.profile)
        check_memory(kernel, arenas, self.profile)
        strike(self.state)
        self._runner.compile(kernel)
        footprint = sum(arena.tensor.nbytes for arena in arenas.values())
        set_bytes = footprint + sum(space.nbytes for space in kernel.workspaces)
        if cache == "cold":
            sets_needed(set_bytes, self.profile.l2_bytes)  # as a real card would have it
        places = placements(set_bytes) if job.apart and cache == "hot" else 1
        traffic = None
        if recorded_on(kernel, self.profile, cache) is None:
            traffic = self._profiled(job, arenas)
        known = job.io.flops or job.io.bytes_moved
        work = Work(job.io.flops, job.io.bytes_moved) if known else None
        demand = demand_of(
            kernel,
            work,
            traffic,
            self.profile,
            footprint_bytes=footprint,
            cache=cache,
        )
        repeater = _VirtualRepeater(self.state, demand, job.timeout_s, places)
        try:
            yield repeater
        finally:
            repeater.abandon()

    def describe(self) -> dict[str, str]:
        return {
            "driver": "emulated",
            "nvml": "emulated",
            "cuda_driver": "emulated",
            "host_compiler": _compiler_version(),
            "host_build": build_version(),
        }

    def close(self) -> None:
        self._runner.close()
        if self._faults:
            self.state.withdraw(*self._faults)
            self._faults.clear()
        for state in self._states:
            state.close()

    def _text(self, kernel: AnyKernel) -> Kernel:
        if not isinstance(kernel, Kernel):
            raise KernelFault("constraints", str(self.refusal(kernel)))
        return kernel

    def _profiled(self, job: Job, arenas: Mapping[str, Arena]) -> tuple[Traffic, ...]:
        kernel = self._text(job.kernel)
        # A kernel that raced has no profile, so it is looked at, and fails, each time.
        return self._traffic.traffic(
            kernel,
            lambda: (
                self._runner.check_races(
                    kernel, arenas, job.scalars, timeout_s=job.timeout_s
                ).traffic
            ),
        )


class _VirtualRepeater:
    def __init__(self, state: CardState, demand: Demand, timeout_s: float, placements: int) -> None:
        self._state = state
        self._demand = demand
        self._timeout_s = timeout_s
        self._placements = placements
        self._running = False

    def start(self) -> None:
        strike(self._state)
        with self._state.change() as card:
            self._begin(card, self._demand)
            card.advance(card.now_ns + _FIRST_LAUNCH_NS)
        self._running = True

    def stop(self) -> Timeline:
        if not self._running:
            raise RuntimeError("stop() without start()")
        self._running = False
        with self._state.change() as card:
            load = card.load
            if load is None or load.owner != Owner.me():
                raise KernelFault("runtime", "The emulated GPU lost the kernel that it ran.")
            run_s = load.marks[-1][2] / 1e9
            if run_s <= self._timeout_s:
                runs = load.batch_end(card.now_ns)
                while (end_ns := load.moment(runs)) > card.now_ns:
                    card.advance(min(end_ns, card.edge_ns))
            card.stop()
        strike(self._state)
        self._refuse(run_s, "One run takes")
        return replace(load.timeline(runs), placements=self._placements)

    def launch(self, count: int) -> Launches:
        """As on a card whose host launches no faster than it can."""
        demand, idle_w = self._demand, self._state.profile.idle_w
        if demand.time_s < _HOST_LAUNCH_S:
            busy = demand.time_s / _HOST_LAUNCH_S
            power_w = idle_w + busy * (demand.power_w - idle_w)
            demand = replace(demand, time_s=_HOST_LAUNCH_S, power_w=power_w)
        strike(self._state)
        with self._state.change() as card:
            begin_ns = card.now_ns
            load = self._begin(card, demand)
            try:
                self._refuse(count * load.marks[0][2] / 1e9, f"{count} launches take")
                while (end_ns := load.moment(count)) > card.now_ns:
                    card.advance(min(end_ns, card.edge_ns))
            finally:
                card.stop()
        strike(self._state)
        gpu_s = (end_ns - begin_ns) / 1e9 + _TIMED_SINGLY_S
        return Launches(count, begin_ns / 1e9, end_ns / 1e9, gpu_s)

    def relaunch(self, *, once: bool) -> Iterator[int]:  # noqa: ARG002 -- nothing was launched
        """Nothing: the launches measured are virtual; `HostKernel` stands in for them."""
        yield from ()

    def _begin(self, card: Card, demand: Demand) -> Load:
        if card.load is not None:
            raise DeviceError(
                f"The emulated {self._state.profile.name} already runs a kernel of process "
                f"{card.load.owner.pid}: let it finish first."
            )
        load = Load(Owner.me(), demand)
        card.start(load)
        return load

    def _refuse(self, duration_s: float, what: str) -> None:
        if duration_s > self._timeout_s:
            raise KernelFault(
                "timeout",
                f"{what} {duration_s:.3g} s on the emulated GPU, longer than the "
                f"{self._timeout_s:g} s it may take.",
            )

    def abandon(self) -> None:
        """Take the load off the card if nobody stopped it."""
        if self._running:
            self._running = False
            with self._state.change() as card:
                if card.load is not None and card.load.owner == Owner.me():
                    card.stop()


def emulated_devices(profile: GpuProfile, count: int) -> tuple[EmulatedDevice, ...]:
    """The first ``count`` emulated cards of a profile."""
    return tuple(EmulatedDevice(profile, index) for index in range(count))


def strike(state: CardState) -> None:
    """Raise what a fault of launches, or of everything, makes of the next launch.

    Raises:
        KernelFault: such a fault is in force.
    """
    error = state.struck_by(LAUNCH, always=True)
    if error is not None:
        raise KernelFault("runtime", f"The launch failed on the emulated GPU: {error}.")


def check_geometry(kernel: Kernel, profile: GpuProfile) -> None:
    """Refuse launches that a real GPU of this kind would refuse.

    Raises:
        KernelFault: grid, block or dynamic shared memory exceed the GPU's limits.
    """
    check_limits(kernel)
    for launch in kernel.launches:
        if launch.shared_bytes > profile.shared_per_block:
            raise KernelFault(
                "constraints",
                f"{launch.entry} asks for {launch.shared_bytes} bytes of dynamic shared memory; a "
                f"block of an {profile.name} has at most {profile.shared_per_block}.",
            )


def check_memory(kernel: Kernel, arenas: Mapping[str, Arena], profile: GpuProfile) -> None:
    """Refuse buffers that a real GPU of this kind has no memory for.

    Raises:
        KernelFault: tensors and workspaces together exceed the GPU's memory.
    """
    tensors = [*(arena.tensor for arena in arenas.values()), *kernel.workspaces]
    needed_mib = sum(tensor.nbytes for tensor in tensors) / 2**20
    if needed_mib > profile.memory_mib:
        raise KernelFault(
            "constraints",
            f"Out of memory: {needed_mib:.0f} MiB of buffers do not fit into the "
            f"{profile.memory_mib} MiB of an {profile.name}.",
        )


def _host_runner() -> Runner:
    from pytest_gpuenergy.devices.emulated.host import HostRunner

    runner: Runner = HostRunner(cache_dir("emulated", "host"))
    return runner


def _compiler_version() -> str:
    try:
        return version_of(find_compiler())
    except DeviceError as error:
        return f"none ({error})"
