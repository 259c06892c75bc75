"""Takes one item from start to finish: verify, heat up, measure, judge, record."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from time import perf_counter
from typing import TypeVar

from msgspec.structs import replace

from pytest_gpuenergy.control import CURRENT, UNKNOWN, Setpoint
from pytest_gpuenergy.devices import Arena, Device, HostClock, KernelRepeater, Repeater
from pytest_gpuenergy.energy import (
    SW_POWER_CAP,
    THROTTLE_REASONS,
    Announce,
    CounterError,
    EnergyMeter,
    MeterSettings,
    ProcessWatch,
    Reading,
)
from pytest_gpuenergy.engine.arena_check import check_again
from pytest_gpuenergy.engine.arenas import seeded_arenas
from pytest_gpuenergy.engine.verification import seeded_check
from pytest_gpuenergy.engine.verifier import Verifier
from pytest_gpuenergy.kernels import AnyKernel, CacheState, Job
from pytest_gpuenergy.record import Identity, KernelInfo, Measurement, WorkloadInfo
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Workload

BINDING_FRACTION = 0.97
"""A kernel that draws this fraction of the enforced limit or more is held back by that limit,
unless locked clocks hold it back."""

TOLERANCE = 0.02
"""A clock that differs from the lock by less than this fraction keeps to it.

The clocks of two kernels on an H200 that NVML reported to be the same differed by up to 1 %.
"""

R = TypeVar("R", bound=Repeater)


@dataclass(frozen=True)
class Replayable:
    """Work that has a repeater already, for `Harness.measure_callable`.

    Attributes:
        key: its maker's name for it.
        label: the name of its kernel in the record.
        workload: the description of its workload in the record.
        repeater: makes the repeater that launches it.
        details: further details of its kernel for the record.
        together: whether other processes have to measure it at the same time.
    """

    key: str
    label: str
    workload: WorkloadInfo
    repeater: Callable[[], AbstractContextManager[Repeater]]
    details: Mapping[str, str | int | float] = field(default_factory=dict)
    together: bool = False


@dataclass(frozen=True)
class Subject:
    """The item that is measured: its names in the record, and the card's setpoint.

    Attributes:
        node_id: pytest's ID of the item.
        label: the kernel's name.
        setpoint: the setpoint requested from the card.
        enforced: the setpoint that the card enforces.
    """

    node_id: str
    label: str
    setpoint: Setpoint = CURRENT
    enforced: Setpoint = UNKNOWN

    def identity(self, workload: str, cache: CacheState) -> Identity:
        """Return the identity of the item's measurement."""
        return Identity(workload, self.label, self.setpoint.label, cache)


class Harness:
    """Verifies and measures on one device, at the setpoint that the caller has applied.

    Args:
        device: the device that runs the kernels.
        settings: the meter's settings.
        timeout_s: the time limit of one run of a kernel, and of each step of measuring it.
        cache: the state of the L2 cache during a measurement.
        announce: see `Preheat`.
        seed: the seed of a verification's last inputs; by default a random one.
        memory: the file in which the next harness finds how the device is cooled, if any.
    """

    def __init__(
        self,
        device: Device,
        settings: MeterSettings | None = None,
        *,
        timeout_s: float = 60.0,
        cache: CacheState = "hot",
        announce: Announce = lambda _: None,
        seed: int | None = None,
        memory: Path | None = None,
    ) -> None:
        self._device = device
        self._meter = EnergyMeter(device, settings, announce=announce, memory=memory)
        self._timeout_s = timeout_s
        self._cache = cache
        self._verifier = Verifier(device, timeout_s, seed)
        self._watch = ProcessWatch(device)

    @property
    def in_real_time(self) -> bool:
        """Whether measurements take place in the machine's own time rather than a virtual one."""
        return isinstance(self._device.clock, HostClock)

    def expect(self, make: Callable[[], tuple[AnyKernel, Workload]]) -> None:
        """Verify ahead a kernel that will be measured later, see `Verifier.expect`."""
        self._verifier.expect(make)

    def expect_workload(self, workload: Workload) -> None:
        """Prepare what the kernel of the next item is verified on, see `Verifier`.

        The caller times nothing on the card before it measures the present item.
        """
        self._verifier.begin_arrays(workload)
        self._verifier.expect_workload(workload)

    def begin(self, workload: Workload) -> None:
        """Begin with what the measurement of any kernel of a workload needs.

        This is heat, references, and the context of the process that runs kernels.

        Nothing else that is timed may run on the card until a kernel is measured, or `end_heating`
        is called.
        """
        self.begin_heating()
        self._device.begin_context()
        self._verifier.begin_on_device(workload)

    def begin_heating(self) -> None:
        """Heat a card that has rested until a kernel is measured, or `end_heating`; see `begin`."""
        self._meter.begin_heating()

    def heating(self) -> AbstractContextManager[None]:
        """Heat a card that has rested while the caller prepares something; see `EnergyMeter`."""
        return self._meter.heating()

    def end_heating(self) -> None:
        """End the heating that `begin` or `begin_heating` has begun. Idempotent."""
        self._meter.end_heating()

    def close(self) -> None:
        """Stop verifying ahead and heating. Idempotent."""
        self._verifier.close()
        self._meter.end_heating()

    def measure_kernel(
        self, kernel: AnyKernel, workload: Workload, subject: Subject
    ) -> Measurement:
        """Verify ``kernel`` on ``workload``, measure it, and verify it once more.

        If the kernel fails, the measurement has its outcome and error but no figures.

        Raises:
            DeviceError: the device itself does not respond.
        """
        phases = _Phases()
        draft = self._draft(
            subject, describe_kernel(kernel, subject.label), describe_workload(workload)
        )
        with ExitStack() as stack:
            stack.enter_context(self.heating())
            try:
                self._compile(kernel, workload, phases)
                job = self._job(kernel, workload)
                kept = stack.enter_context(ExitStack())  # outlives what runs on the arenas
                made = seeded_arenas(workload, job.seed, self._device.arrays)
                arenas = functools.cache(lambda: kept.enter_context(made))
                if (heater := self._device.alongside(job, arenas)) is not None:
                    stack.callback(self._meter.end_heating)
                    stack.callback(heater.end)
                    alone = self._meter.begin_run(heater)
                draft = self._verify(draft, kernel, workload, phases)
                if heater is None:
                    self.end_heating()
                    repeat = self._device.repeat(job, arenas())
                else:
                    with phases.timed("load"):
                        repeat = nullcontext(self._running_alone(alone))
                draft = self._measured_kernel(draft, job, arenas(), workload, repeat, phases)
            except KernelFault as fault:
                draft = replace(draft, outcome=fault.outcome, error=str(fault))
        return phases.added_to(draft)

    def measure_again(self, kernel: AnyKernel, workload: Workload, subject: Subject) -> Measurement:
        """Measure a kernel as `measure_kernel` does, but without verifying it first."""
        phases = _Phases()
        draft = self._draft(
            subject, describe_kernel(kernel, subject.label), describe_workload(workload)
        )
        job = self._job(kernel, workload)
        try:
            with seeded_arenas(workload, job.seed, self._device.arrays) as arenas:
                repeat = self._device.repeat(job, arenas)
                draft = self._measured_kernel(draft, job, arenas, workload, repeat, phases)
        except KernelFault as fault:
            draft = replace(draft, outcome=fault.outcome, error=str(fault))
        return phases.added_to(draft)

    def _job(self, kernel: AnyKernel, workload: Workload) -> Job:
        return Job.of(kernel, workload, cache=self._cache, timeout_s=self._timeout_s, apart=True)

    def _running_alone(self, alone: Callable[[], KernelRepeater]) -> KernelRepeater:
        """Return a kernel that has run beside its verification; see `EnergyMeter.begin_run`."""
        renewing = Thread(target=self._device.renew)  # ends the process that has verified it
        renewing.start()
        try:
            return alone()
        finally:
            renewing.join()

    def _measured_kernel(
        self,
        draft: Measurement,
        job: Job,
        arenas: Mapping[str, Arena],
        workload: Workload,
        repeat: AbstractContextManager[KernelRepeater],
        phases: _Phases,
    ) -> Measurement:
        check = seeded_check(self._device, workload, arenas, job.seed)
        return self._measured(draft, repeat, phases, lambda again: check_again(again, check))

    def verify_kernel(
        self, kernel: AnyKernel, workload: Workload, subject: Subject
    ) -> tuple[Measurement, KernelFault | None]:
        """Verify ``kernel`` on ``workload`` without measuring it.

        Returns:
            A measurement without figures, and the kernel's fault if it has one.

        Raises:
            DeviceError: the device itself does not respond.
        """
        phases = _Phases()
        draft = self._draft(
            subject, describe_kernel(kernel, subject.label), describe_workload(workload)
        )
        try:
            self._compile(kernel, workload, phases)
            return phases.added_to(self._verify(draft, kernel, workload, phases)), None
        except KernelFault as fault:
            failed = replace(draft, outcome=fault.outcome, error=str(fault))
            return phases.added_to(failed), fault

    def _compile(self, kernel: AnyKernel, workload: Workload, phases: _Phases) -> None:
        with phases.timed("compile"):
            self._verifier.begin(kernel, workload)
            self._device.compile(kernel)

    def _verify(
        self, draft: Measurement, kernel: AnyKernel, workload: Workload, phases: _Phases
    ) -> Measurement:
        with phases.timed("verify"):
            return replace(draft, correctness=self._verifier.verify(kernel, workload))

    def measure_callable(
        self,
        make_repeater: Callable[[], AbstractContextManager[R]],
        workload: WorkloadInfo,
        subject: Subject,
        kind: str,
        check: Callable[[R], object] = lambda _: None,
        settings: MeterSettings | None = None,
    ) -> Measurement:
        """Measure what a callable launches.

        Args:
            make_repeater: makes the callable's repeater; its result is not compared here.
            workload: the description of the workload in the record.
            subject: the item.
            kind: the kind of callable, for the record.
            check: called after the measurement; raises KernelFault if the result is wrong now.
            settings: those of this measurement, by default the meter's.
        """
        phases = _Phases()
        draft = self.draft_of_callable(workload, subject, kind)
        try:
            draft = self._measured(draft, make_repeater(), phases, check, settings)
        except KernelFault as fault:
            draft = replace(draft, outcome=fault.outcome, error=str(fault))
        return phases.added_to(draft)

    def draft_of_callable(self, workload: WorkloadInfo, subject: Subject, kind: str) -> Measurement:
        """Return the measurement of a callable, without figures yet; see `measure_callable`."""
        draft = self._draft(subject, KernelInfo(subject.label, "", kind), workload)
        return replace(draft, in_process=True)

    def _draft(self, subject: Subject, kernel: KernelInfo, workload: WorkloadInfo) -> Measurement:
        return Measurement(
            node_id=subject.node_id,
            workload=workload,
            kernel=kernel,
            outcome="correct",
            cap=subject.setpoint.label,
            cap_index=subject.setpoint.index,
            power_limit_w=subject.setpoint.power_limit_w,
            enforced_power_limit_w=subject.enforced.power_limit_w,
            sm_clock_mhz=subject.setpoint.sm_clock_mhz,
            locked_sm_clock_min_mhz=subject.enforced.sm_clock_mhz,
            locked_sm_clock_max_mhz=subject.enforced.sm_clock_mhz,
            cache=self._cache,
            in_process=False,
            gpu_uuid=self._device.uuid,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def _measured(
        self,
        draft: Measurement,
        repeat: AbstractContextManager[R],
        phases: _Phases,
        check: Callable[[R], object],
        settings: MeterSettings | None = None,
    ) -> Measurement:
        with ExitStack() as stack:
            with phases.timed("load"):
                self._verifier.settle()
                repeater = stack.enter_context(repeat)
            foreign = self._watch.foreign_processes()
            try:
                with phases.timed("measure"):
                    reading = self._meter.measure(repeater, settings)
                phases.split("measure", "heat", reading.heat_wall_s)
            except CounterError as error:
                return replace(draft, error=str(error), validity=(error.flag,))
            foreign |= self._watch.foreign_processes()
            with phases.timed("verify"):
                check(repeater)
        flags = (*reading.flags, "foreign_process") if foreign else tuple(reading.flags)
        return _with_figures(draft, reading, flags)


class _Phases:
    """The wall time of each phase of one item; the times of a repeated phase add up."""

    def __init__(self) -> None:
        self._began_s = perf_counter()
        self._seconds: dict[str, float] = {}

    def added_to(self, draft: Measurement) -> Measurement:
        """Return the item's measurement with the wall time so far."""
        return replace(draft, wall_s=perf_counter() - self._began_s, phases_s=self._seconds)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        began_s = perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + perf_counter() - began_s

    def split(self, name: str, first: str, first_s: float) -> None:
        """Move the first ``first_s`` of phase ``name`` to a phase ``first``, listed before it."""
        whole_s = self._seconds.pop(name)
        self._seconds |= {first: first_s, name: whole_s - first_s}


def describe_workload(workload: Workload) -> WorkloadInfo:
    """Return the description of a workload in a report."""
    return WorkloadInfo(
        workload.name, dict(workload.parameters), workload.flops, workload.bytes_moved
    )


def describe_kernel(kernel: AnyKernel, label: str) -> KernelInfo:
    """Return the description of a kernel in a report."""
    origin = kernel.origin
    return KernelInfo(
        label,
        kernel.digest,
        origin.kind,
        origin.rank,
        dict(origin.details),
        kernel.launch_infos,
    )


def _with_figures(draft: Measurement, reading: Reading, flags: tuple[str, ...]) -> Measurement:
    gflops = draft.workload.flops / reading.time_ms.value / 1e6
    limit_w, locked_mhz = draft.enforced_power_limit_w, draft.locked_sm_clock_max_mhz
    binding = bool(reading.event_reasons & SW_POWER_CAP)
    if limit_w is not None and not keeps_to_lock(reading, locked_mhz):
        binding = binding or reading.power_w >= BINDING_FRACTION * limit_w
    return replace(
        draft,
        time_ms=reading.time_ms.value,
        time_ms_ci95=reading.time_ms.interval,
        energy_mj=reading.energy_mj.value,
        energy_mj_ci95=reading.energy_mj.interval,
        edp_mj_ms=reading.edp_mj_ms.value,
        edp_mj_ms_ci95=reading.edp_mj_ms.interval,
        power_w=reading.power_w,
        gflops=gflops,
        gflops_per_w=gflops / reading.power_w,
        trials=reading.trials,
        warm_trials=reading.warm_trials,
        start=reading.start,
        begin=reading.begin,
        end=reading.end,
        raw_energy_mj=reading.raw_energy_mj,
        temperature_c=reading.temperature_c,
        settled_temperature_c=None if reading.settling is None else reading.settling.settled_c,
        settling_error=None if reading.settling is None else reading.settling_error,
        energy_change_per_k=None if reading.settling is None or binding else reading.settling.per_k,
        effective_sm_clock_mhz=reading.effective_sm_clock_mhz,
        clock_states=reading.clock_states,
        cap_binding=binding,
        energy_source=reading.energy_source,
        validity=(*flags, *lock_flags(reading, locked_mhz)),
    )


def lock_flags(reading: Reading, locked_mhz: int | None) -> tuple[str, ...]:
    """Return the validity flags of a measurement under a lock.

    ``lock_lost``: the clock kept to the lock when the trials began, and exceeded it later.
    ``clock_above_lock``: it exceeded the lock throughout. ``clock_below_lock``: it stayed below the
    lock, and NVML gives no reason for that, such as a power cap.

    Args:
        reading: the reading of the measurement.
        locked_mhz: the clock that the SMs were locked to; None without a lock.
    """
    if locked_mhz is None:
        return ()
    achieved_mhz = _achieved_mhz(reading)
    above = [mhz for mhz in achieved_mhz if mhz > (1 + TOLERANCE) * locked_mhz]
    if above:
        kept_at_first = _is_at(reading.begin.sm_clock_mhz, locked_mhz)
        return ("lock_lost" if kept_at_first else "clock_above_lock",)
    below = any(mhz < (1 - TOLERANCE) * locked_mhz for mhz in achieved_mhz)
    explained = reading.event_reasons & THROTTLE_REASONS
    return ("clock_below_lock",) if below and not explained else ()


def keeps_to_lock(reading: Reading, locked_mhz: int | None) -> bool:
    """Return whether it was a lock that held the clock, rather than a power cap."""
    if locked_mhz is None:
        return False
    achieved_mhz = _achieved_mhz(reading)
    return bool(achieved_mhz) and all(_is_at(mhz, locked_mhz) for mhz in achieved_mhz)


def _is_at(mhz: float | None, locked_mhz: int) -> bool:
    return mhz is not None and abs(mhz / locked_mhz - 1) <= TOLERANCE


def _achieved_mhz(reading: Reading) -> list[float]:
    """Return an SM's mean clock (if unknown, NVML's at the beginning), and NVML's at the end."""
    mean_mhz: float | None = reading.effective_sm_clock_mhz
    if mean_mhz is None:
        mean_mhz = reading.begin.sm_clock_mhz
    return [float(mhz) for mhz in (mean_mhz, reading.end.sm_clock_mhz) if mhz is not None]
