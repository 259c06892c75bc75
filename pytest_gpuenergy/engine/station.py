"""Claims a GPU: the only way to one, for pytest, commands, searches and workers alike.

Claiming takes the GPU's lock, undoes what dead runs left behind and makes signals end the process
in an orderly way. Closing restores the card's settings and cannot be interrupted by a signal.
"""

from __future__ import annotations

import atexit
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuenergy.control import (
    CURRENT,
    Lease,
    Setpoint,
    SettingsWriter,
    restore_leftovers,
    single_setpoint,
    supported_clocks,
)
from pytest_gpuenergy.devices import ClockSamples, Device, Gpu, gpu_lock
from pytest_gpuenergy.energy import (
    PREHEAT_S,
    THROTTLE_REASONS,
    Announce,
    MeterSettings,
    choose_source,
    read_conditions,
)
from pytest_gpuenergy.engine.harness import Harness
from pytest_gpuenergy.kernels import CacheState
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.record import Conditions
from pytest_gpuenergy.support import (
    DeviceError,
    KernelFault,
    SetpointError,
    cache_dir,
    remove_leftovers,
    termination_as_interrupt,
    uninterrupted,
)

LOCK_WAIT_S = 10.0
"""The time for which a command waits for a GPU that another run is using."""

SEARCH_LOCK_WAIT_S = 2.0
"""The time for which a search waits for a GPU that another run is using."""

_RAMP_S = 0.6
"""The longest time in which the clock of a card at rest rises under a load."""

_READINGS, _READING_INTERVAL_S = 8, 0.05
"""The number of readings of the clock that follow, and the time between two of them."""

_UNLOCKED_FRACTION = 0.98
"""A card that reaches this fraction of its highest clock does not seem to be locked."""

_MAX_PINNED_SPREAD = 0.005
"""A clock that moves by more than this fraction is not pinned."""

_GPU_IDLE, _SYNC_BOOST = 0x1, 0x10
_EXPLAINING_REASONS = THROTTLE_REASONS | _GPU_IDLE | _SYNC_BOOST
"""NVML's event reasons that explain a clock below the highest."""


class Station:
    """One GPU, held exclusively by this process until `close`; a context manager.

    Args:
        gpu: the GPU, opened by the caller, who closes it after the station.
        lock_wait_s: how long to wait for another process that holds the GPU.
        group: the name of a group of processes, such as the workers of one run, that wait for each
            other indefinitely.
        writer: writes the settings; by default chosen at the first write.
        allow_clocks: whether to lock clocks that another program seems to have locked.

    Attributes:
        gpu: the claimed GPU.
        restored: sentences about the settings changed by dead runs that were restored or could not
            be restored, on this GPU and all others of its kind, real or emulated.

    Raises:
        DeviceError: another process holds the GPU, or its settings cannot be restored.
    """

    def __init__(
        self,
        gpu: Gpu,
        *,
        lock_wait_s: float = LOCK_WAIT_S,
        group: str = "",
        writer: SettingsWriter | None = None,
        allow_clocks: bool = False,
    ) -> None:
        self.gpu = gpu
        self.restored: list[str] = []
        self._signals = ExitStack()
        self._claim = ExitStack()
        atexit.register(self.close)  # in case an interrupt prevents the caller from closing it
        try:
            self._signals.enter_context(termination_as_interrupt())
            self._claim.enter_context(gpu_lock(gpu, wait_s=lock_wait_s, group=group))
            remove_leftovers()
            check = (lambda: None) if allow_clocks else (lambda: refuse_locked(gpu))
            self._lease = Lease(gpu, writer, before_lock=check)
            self._claim.callback(self._lease.restore)
            self.restored += filter(None, [self._lease.restored])
            self.restored += restore_leftovers(gpu, but=gpu.uuid)
        except BaseException:
            self.close()
            raise

    @property
    def device(self) -> Device:
        """The claimed GPU as a device that runs kernels.

        Raises:
            DeviceError: it was opened only for its power limit.
        """
        if not isinstance(self.gpu, Device):
            raise DeviceError(f"{self.gpu.name} was opened only for its power limit.")
        return self.gpu

    def check(self, setpoint: Setpoint) -> None:
        """Check, without writing and as far as possible, that `apply` would succeed.

        Raises:
            SetpointError: it would fail.
        """
        self._lease.check(setpoint)

    def apply(self, setpoint: Setpoint) -> Setpoint:
        """Set the card to ``setpoint`` and return what it enforces.

        Raises:
            SetpointError: the setpoint cannot be applied.
        """
        return self._lease.set(setpoint)

    def refuse_foreign_lock(self) -> None:
        """Check now, instead of at the first lock, that no other program has locked the SM clocks.

        Raises:
            SetpointError: another program seems to have locked them.
        """
        self._lease.refuse_foreign_lock()

    def judge_setpoint(self) -> tuple[str, ...]:
        """Return validity flags for changes of the card's settings since they were applied."""
        return self._lease.judge()

    @contextmanager
    def under(self, setpoint: Setpoint) -> Iterator[Setpoint]:
        """Hold the card at ``setpoint`` within the context, then restore its prior settings.

        Yields:
            The setpoint that the card enforces.

        Raises:
            SetpointError: the setpoint cannot be applied, or the prior settings cannot be restored.
        """
        try:
            yield self.apply(setpoint)
        finally:
            self.apply(CURRENT)

    def keep(self, setpoint: Setpoint) -> Setpoint:
        """Set the card as `apply` does, but until ``gpuenergy powercap restore`` undoes it.

        Raises:
            SetpointError: the setpoint cannot be applied.
        """
        return Lease(self.gpu, kept=True).set(setpoint)

    def harness(
        self,
        *,
        timeout_s: float = 60.0,
        cache: CacheState = "hot",
        preheat_s: float = PREHEAT_S,
        min_launches: int = 0,
        announce: Announce = lambda _: None,
        seed: int | None = None,
    ) -> Harness:
        """Return a harness that measures on this GPU; see `Harness` and `MeterSettings`.

        Raises:
            DeviceError: the card has no energy source.
        """
        device = self.device
        choose_source(device)  # raises once here rather than for every kernel
        settings = MeterSettings(preheat_s=preheat_s, min_launches=min_launches)
        # Figures of an emulated GPU must not depend on earlier runs.
        digest = hashlib.sha256(device.uuid.encode()).hexdigest()
        memory = None if device.emulated else cache_dir("cooling") / f"{digest}.json"
        return Harness(
            device,
            settings,
            timeout_s=timeout_s,
            cache=cache,
            announce=announce,
            seed=seed,
            memory=memory,
        )

    def close(self) -> None:
        """Restore the power limit and release the GPU. Idempotent.

        Raises:
            SetpointError: the prior limit cannot be restored; the next run tries again.
        """
        try:
            with uninterrupted():
                self._claim.close()
        finally:
            self._signals.close()
            atexit.unregister(self.close)

    def __enter__(self) -> Station:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def open_station(
    spec: str, *, lock_wait_s: float = LOCK_WAIT_S, index: int = 0, allow_clocks: bool = False
) -> Iterator[Station]:
    """Open and claim the GPU that ``spec`` names.

    Args:
        spec: see `open_device`.
        lock_wait_s: see `Station`.
        index: see `open_device`.
        allow_clocks: see `Station`.

    Raises:
        InputError: there is no such device.
        DeviceError: it cannot be used or claimed.
    """
    with (
        open_device(spec, index=index) as device,
        Station(device, lock_wait_s=lock_wait_s, allow_clocks=allow_clocks) as station,
    ):
        yield station


def refuse_locked(gpu: Gpu) -> None:
    """Refuse a card whose clocks another program seems to have locked.

    A card that was opened for its settings only cannot run the load that would tell, and is not
    refused.

    Raises:
        SetpointError: the clocks seem to be locked, or the card does not run the load.
    """
    if not isinstance(gpu, Device):
        return
    try:
        pinned_mhz, highest_mhz = _pinned_mhz(gpu), supported_clocks(gpu)[-1]
    except KernelFault as fault:
        raise SetpointError(
            f"Whether somebody else has locked the SM clocks of {gpu.name} cannot be seen "
            f"({fault}): to lock them all the same, give --gpuenergy-allow clocks (commands: "
            "--allow clocks)."
        ) from None
    if pinned_mhz is not None:
        raise SetpointError(
            f"Somebody else seems to have locked the SM clocks of {gpu.name}: under a light load "
            f"they stay at {pinned_mhz:.0f} MHz of {highest_mhz} MHz, and NVML gives no reason. "
            "What they are locked to cannot be read, so it could not be restored: unlock them "
            "(nvidia-smi -rgc), or give --gpuenergy-allow clocks (commands: --allow clocks), after "
            "which they are unlocked."
        )


def pinned_at(
    readings: Sequence[Conditions], achieved: ClockSamples | None, highest_mhz: float
) -> float | None:
    """Return the clock in MHz at which a card under a light load is pinned.

    Args:
        readings: the readings of NVML's clock and event reasons during the load.
        achieved: the clock of an SM meanwhile; None if it is unknown.
        highest_mhz: the highest clock that the card supports.

    Returns:
        None if the card is not pinned, if NVML explains the clock, or if nothing is known.
    """
    if any((reading.event_reasons or 0) & _EXPLAINING_REASONS for reading in readings):
        return None
    reported = [float(r.sm_clock_mhz) for r in readings if r.sm_clock_mhz is not None]
    counted = [] if achieved is None else achieved.mhz.tolist()
    for clocks in (counted, reported):
        if clocks and (
            max(clocks) >= _UNLOCKED_FRACTION * highest_mhz
            or max(clocks) - min(clocks) > _MAX_PINNED_SPREAD * max(clocks)
        ):
            return None
    return next((max(clocks) for clocks in (reported, counted) if clocks), None)


def _pinned_mhz(device: Device) -> float | None:
    readings = []
    with device.light_load() as repeater:
        repeater.start()
        try:
            device.clock.sleep_s(_RAMP_S)
            begin_s = device.clock.now_s()
            for _ in range(_READINGS):
                readings.append(read_conditions(device))
                device.clock.sleep_s(_READING_INTERVAL_S)
        finally:
            timeline = repeater.stop()
    clocks = timeline.clocks
    if clocks is not None:
        late = clocks.begin_s >= begin_s
        clocks = ClockSamples(clocks.begin_s[late], clocks.end_s[late], clocks.mhz[late])
    return pinned_at(readings, clocks, supported_clocks(device)[-1])


@dataclass(frozen=True)
class Settings:
    """The settings of GPUs while a search has claimed them.

    Attributes:
        powercap: one power limit, in the form of ``--powercap``.
        smclock: one clock, in the form of ``--smclock``.
        allow_clocks: see `Station`.
    """

    powercap: str
    smclock: str
    allow_clocks: bool

    @property
    def writes(self) -> bool:
        """Whether they change a card's power limit or clocks."""
        return any(word != "current" for word in (self.powercap, self.smclock))

    def __str__(self) -> str:
        words = [f"--powercap {self.powercap}", f"--smclock {self.smclock}"]
        return " and ".join(word for word in words if not word.endswith(" current"))


def claim(
    stack: ExitStack,
    device: Device,
    settings: Settings,
    tell: Callable[[str], None],
    *,
    lock_wait_s: float = SEARCH_LOCK_WAIT_S,
) -> Station:
    """Claim an opened GPU and hold it at a setpoint until the stack is closed.

    Args:
        stack: the stack that the caller closes to release the GPU.
        device: the GPU to claim.
        settings: the settings of the card.
        tell: called with sentences about settings that dead runs have left.
        lock_wait_s: see `Station`.

    Raises:
        InputError: the settings name several setpoints.
        DeviceError: the GPU cannot be claimed or set.
    """
    station = stack.enter_context(
        Station(device, lock_wait_s=lock_wait_s, allow_clocks=settings.allow_clocks)
    )
    for sentence in station.restored:
        tell(sentence)
    setpoint = single_setpoint(device, settings.powercap, Path.cwd(), settings.smclock)
    stack.enter_context(station.under(setpoint))
    return station
