"""The emulated GPU as a `Device`: the host runs its kernels, a simulated card does the rest."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from pytest_gpuenergy.devices import (
    Arena,
    Device,
    KernelRepeater,
    Launches,
    Loaded,
    Repeater,
    Timeline,
    Work,
    placements,
    sets_needed,
)
from pytest_gpuenergy.emulator.card.card_state import CardState, VirtualClock
from pytest_gpuenergy.emulator.card.emulated_nvml import EmulatedNvml
from pytest_gpuenergy.emulator.card.faults import (
    FAULTS_VARIABLE,
    LAUNCH,
    Fault,
    Owner,
    parse_faults,
)
from pytest_gpuenergy.emulator.card.governor import Demand, demand_on_board
from pytest_gpuenergy.emulator.card.load import Load
from pytest_gpuenergy.emulator.card.physics import EmulatedCard
from pytest_gpuenergy.emulator.card.profiles import DEFAULT_PROFILE, GpuProfile
from pytest_gpuenergy.emulator.host.access_profile import TrafficCache
from pytest_gpuenergy.emulator.host.compiler import compiler_version, find_compiler
from pytest_gpuenergy.emulator.host.flags import build_version
from pytest_gpuenergy.emulator.host.host_kernel import HostKernel, is_divisible
from pytest_gpuenergy.emulator.host.host_runner import HostRunner
from pytest_gpuenergy.emulator.host.kernel_limits import check_geometry, check_memory
from pytest_gpuenergy.emulator.host.kernel_process import printing_kept
from pytest_gpuenergy.emulator.timing.model import (
    beyond_comparison,
    kernel_demand,
    recorded_figures,
)
from pytest_gpuenergy.emulator.timing.traffic import Traffic
from pytest_gpuenergy.kernels import AnyKernel, Job, Kernel
from pytest_gpuenergy.support import (
    DeviceError,
    KernelFault,
    compiled_dir,
    scratch_folder,
    sections,
)

_FIRST_LAUNCH_NS = 20_000  # what the first launch of a repeated kernel takes
# A launch timed singly takes longer: on an H200 32.6 us for a kernel of 19.4 us.
_TIMED_SINGLY_S = 13e-6
_HOST_LAUNCH_S = 5e-6  # what the host takes for a launch; a guess


def _strike(state: CardState) -> None:
    """Raise the error of a launch if an injected fault demands one."""
    error = state.error_to_raise(LAUNCH, always=True)
    if error is not None:
        raise KernelFault("runtime", f"The launch failed on the emulated GPU: {error}.")


class VirtualRepeater:
    """A `KernelRepeater` in virtual time: a load on the card that stands for the launches.

    Args:
        state: the state of the card.
        demand: the demand of one run of the kernel.
        timeout_s: the time that a run may take.
        placements: see `Timeline`.
    """

    def __init__(self, state: CardState, demand: Demand, timeout_s: float, placements: int) -> None:
        self._state = state
        self._demand = demand
        self._timeout_s = timeout_s
        self._placements = placements
        self._running = False

    def start(self) -> None:
        """Put the load on the card.

        Raises:
            KernelFault: a fault strikes the launch.
            DeviceError: the card already runs a kernel.
        """
        _strike(self._state)
        with self._state.change() as card:
            self._begin(card, self._demand)
            card.advance(card.now_ns + _FIRST_LAUNCH_NS)
        self._running = True

    def stop(self) -> Timeline:
        """Finish the batch under way and take the load off the card.

        Raises:
            KernelFault: a fault strikes, a run takes too long, or another process took the load
                off the card.
            RuntimeError: it was not started.
        """
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
        _strike(self._state)
        self._refuse(run_s, "One run takes")
        return replace(load.timeline(runs), placements=self._placements)

    def launch(self, count: int) -> Launches:
        """Launch one by one; the rate of the host limits how busy short kernels keep the card."""
        demand, waiting_w = self._demand, self._state.profile.waiting_w
        if demand.time_s < _HOST_LAUNCH_S:
            busy = demand.time_s / _HOST_LAUNCH_S
            power_w = waiting_w + busy * (demand.power_w - waiting_w)
            demand = replace(demand, time_s=_HOST_LAUNCH_S, power_w=power_w)
        _strike(self._state)
        with self._state.change() as card:
            begin_ns = card.now_ns
            load = self._begin(card, demand)
            try:
                self._refuse(count * load.marks[0][2] / 1e9, f"{count} launches take")
                while (end_ns := load.moment(count)) > card.now_ns:
                    card.advance(min(end_ns, card.edge_ns))
            finally:
                card.stop()
        _strike(self._state)
        gpu_s = (end_ns - begin_ns) / 1e9 + _TIMED_SINGLY_S
        return Launches(count, begin_ns / 1e9, end_ns / 1e9, gpu_s)

    def relaunch(self, *, once: bool) -> Iterator[int]:  # noqa: ARG002 -- nothing was launched
        """Yield nothing: the measured launches are virtual, and `HostKernel` stands in for them."""
        yield from ()

    def abandon(self) -> None:
        """Take the load off the card unless it was stopped already."""
        if self._running:
            self._running = False
            with self._state.change() as card:
                if card.load is not None and card.load.owner == Owner.me():
                    card.stop()

    def _begin(self, card: EmulatedCard, demand: Demand) -> Load:
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


_PLAY_TIMEOUT_S = 60.0
_LIGHT_S, _LIGHT_SHARE = 20e-6, 0.05  # run time and share of the dynamic power of a light load
_CARD_BYTES = 1 << 20  # the limit for the files of a card with a folder of its own
_MARK = ".cuhost_tensor_cores"  # section of programs that multiply matrices, see matrices.h


class EmulatedDevice(Device):
    """One emulated GPU. All its times and energies are recorded or modelled.

    Faults in ``GPUENERGY_EMULATED_FAULTS`` are on the card until `close`.

    Args:
        profile: the model of GPU.
        index: the index of the card among those of this profile.
        runner: what runs kernels on the host.
        closes_runner: whether closing the device closes the runner, too.
        folder: the folder of the card's state, for a private card; by default the folder that
            processes share.

    Raises:
        DeviceError: the card's state cannot be stored, or a fault keeps NVML from starting.
        InputError: ``GPUENERGY_EMULATED_FAULTS`` is not valid.
    """

    emulated = True

    def __init__(
        self,
        profile: GpuProfile = DEFAULT_PROFILE,
        index: int = 0,
        *,
        runner: HostRunner | None = None,
        closes_runner: bool = True,
        folder: Path | None = None,
    ) -> None:
        self.profile = profile
        self.name = profile.name
        self.architecture = profile.architecture
        self._index = index
        self._states = [CardState(profile, i, folder) for i in range(index + 1)]
        self.state = self._states[index]
        self.uuid = self.state.uuid
        self.clock = VirtualClock(self.state)
        self._runner = runner or HostRunner(compiled_dir("emulated", "host"), profile=profile)
        self._closes_runner = closes_runner
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
        """Put a fault on the card, given like an entry of ``GPUENERGY_EMULATED_FAULTS``.

        Returns:
            The identity of the fault, for `CardState.withdraw`; `close` withdraws it too.

        Raises:
            InputError: the fault is not valid.
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

    def tensor_core_instructions(self, job: Job) -> frozenset[str]:
        program = self._runner.compile(self._text(job.kernel)).read_bytes()
        return frozenset({"mma"} if any(name == _MARK for name, _ in sections(program)) else ())

    @contextlib.contextmanager
    def load(self, job: Job, arenas: Mapping[str, Arena]) -> Iterator[Loaded]:
        """Make the kernel ready to run on the host; before its first run ever, check for races."""
        kernel = self._text(job.kernel)
        check_geometry(kernel, self.profile)
        check_memory(kernel, arenas, self.profile)

        def before() -> None:
            _strike(self.state)
            self._launch_traffic(job, arenas)

        program = functools.partial(
            self._runner.open, kernel, arenas, job.scalars, timeout_s=job.timeout_s
        )

        def traffic_bytes() -> float:
            launches = zip(kernel.launches, self._launch_traffic(job, arenas), strict=True)
            return sum(launch.blocks * traffic.total_bytes for launch, traffic in launches)

        with contextlib.ExitStack() as stack:
            outputs = [arena for arena in arenas.values() if arena.tensor.is_written]
            yield HostKernel(
                before,
                program,
                stack,
                outputs,
                divisible=is_divisible(kernel),
                inspect=functools.partial(program, inspecting=True),
                traffic_bytes=traffic_bytes,
            )

    @contextlib.contextmanager
    def repeat(self, job: Job, arenas: Mapping[str, Arena]) -> Iterator[KernelRepeater]:
        kernel, cache = self._text(job.kernel), job.cache
        check_geometry(kernel, self.profile)
        check_memory(kernel, arenas, self.profile)
        _strike(self.state)
        self._runner.compile(kernel)
        footprint = sum(arena.tensor.nbytes for arena in arenas.values())
        set_bytes = footprint + sum(space.nbytes for space in kernel.workspaces)
        if cache == "cold":
            sets_needed(set_bytes, self.profile.l2_bytes)  # raises what it would on a real card
        places = placements(set_bytes) if job.apart and cache == "hot" else 1
        traffic = None
        if recorded_figures(kernel, self.profile, cache) is None:
            traffic = self._launch_traffic(job, arenas)
        restored_bytes = sum(a.tensor.nbytes for a in arenas.values() if a.tensor.role == "inout")
        demand = kernel_demand(
            *(kernel, _work(job), traffic, self.profile),
            footprint_bytes=footprint,
            cache=cache,
            restored_bytes=restored_bytes,
        )
        demand = demand_on_board(demand, self._index)
        with self._abandoned_at_exit(
            VirtualRepeater(self.state, demand, job.timeout_s, places)
        ) as repeater:
            yield repeater

    def beyond_model(self, job: Job, arenas: Mapping[str, Arena]) -> str | None:
        kernel = self._text(job.kernel)
        traffic = self._launch_traffic(job, arenas)
        dtypes = [arena.tensor.dtype for arena in arenas.values()]
        return beyond_comparison(kernel, dtypes, _work(job), traffic, self.name, job.cache)

    def play(self, demand: Demand) -> AbstractContextManager[KernelRepeater]:
        """Return a repeater of work that has no kernel, only a demand.

        Args:
            demand: the demand of one run on board 0.
        """
        demand = demand_on_board(demand, self._index)
        return self._abandoned_at_exit(VirtualRepeater(self.state, demand, _PLAY_TIMEOUT_S, 1))

    def light_load(self) -> AbstractContextManager[Repeater]:
        """Return a repeater of work that takes little power and has no kernel to compile."""
        idle_w, top_w = self.profile.idle_w, self.profile.default_limit_w
        return self.play(Demand(_LIGHT_S, idle_w + _LIGHT_SHARE * (top_w - idle_w)))

    @contextlib.contextmanager
    def _abandoned_at_exit(self, repeater: VirtualRepeater) -> Iterator[KernelRepeater]:
        try:
            yield repeater
        finally:
            repeater.abandon()

    def describe(self) -> dict[str, str]:
        try:
            compiler = compiler_version(find_compiler())
        except DeviceError as error:
            compiler = f"none ({error})"
        names = dict.fromkeys(("driver", "nvml", "cuda_driver"), "emulated")
        return {**names, "host_compiler": compiler, "host_build": build_version()}

    def aside(self) -> AbstractContextManager[list[str]] | None:
        # Faults count launches, and begin and end in virtual time.
        return None if self.state.has_faults else printing_kept()

    @contextlib.contextmanager
    def twin(self) -> Iterator[Device]:
        """Open a private card with the same settings that has just been switched on."""
        with self.state.change() as card:
            limit_mw, lock_mhz = card.limit_mw, card.lock_mhz
        with scratch_folder(_CARD_BYTES) as folder:
            twin = EmulatedDevice(
                self.profile, self._index, runner=self._runner, closes_runner=False, folder=folder
            )
            with twin:
                with twin.state.change() as card:
                    card.set_limit(limit_mw)
                    card.lock_clocks(lock_mhz)
                yield twin

    def close(self) -> None:
        if self._closes_runner:
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

    def _launch_traffic(self, job: Job, arenas: Mapping[str, Arena]) -> tuple[Traffic, ...]:
        kernel = self._text(job.kernel)

        # A kernel that races leaves no profile, so it is checked, and fails, every time.
        def count() -> tuple[Traffic, ...]:
            checked = self._runner.check_races(kernel, arenas, job.scalars, timeout_s=job.timeout_s)
            return tuple(launch.traffic for launch in checked)

        return self._traffic.traffic(kernel, count, job)


def _work(job: Job) -> Work | None:
    if not job.io.flops and not job.io.bytes_moved:
        return None
    return Work(job.io.flops, job.io.bytes_moved)
