"""A claimed GPU: the only way to use one, for pytest, commands, searches and workers alike.

Claiming takes the GPU's lock, undoes what dead runs left behind and makes signals end the process
in an orderly way. Closing restores the card's settings and cannot be interrupted by a signal.
"""

from __future__ import annotations

import atexit
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
    RESTRAINING_REASONS,
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
    remove_leftovers,
    termination_as_interrupt,
    uninterrupted,
)

LOCK_WAIT_S = 10.0
"""How long a command waits for a GPU that another run is using."""


class Station:
    """One GPU, held exclusively by this process until `close`; a context manager.

    Args:
        gpu: opened by the caller, who closes it after the station.
        lock_wait_s: how long to wait for another process that holds the GPU.
        group: processes of the same group, such as the workers of one run, wait for each other
            indefinitely.
        writer: writes the settings; chosen at the first write if not given.
        allow_clocks: whether clocks may be locked that somebody else seems to have locked.

    Attributes:
        gpu: the claimed GPU.
        restored: sentences that say which settings changed by dead runs were restored or could not
            be, on this GPU and all others of its kind, real or emulated.

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
        atexit.register(self.close)  # even if interrupts cut short what should close it
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
        """Look, once, whether the SM clocks may be locked, before the first lock does so.

        Raises:
            SetpointError: somebody else seems to have locked them.
        """
        self._lease.refuse_foreign_lock()

    def judge_setpoint(self) -> tuple[str, ...]:
        """Validity flags for changes of the card's settings since they were applied."""
        return self._lease.judge()

    @contextmanager
    def under(self, setpoint: Setpoint) -> Iterator[Setpoint]:
        """Hold the card at ``setpoint`` within the context, then restore its prior settings.

        Yields:
            What the card enforces.

        Raises:
            SetpointError: the setpoint cannot be applied, or the prior settings not restored.
        """
        try:
            yield self.apply(setpoint)
        finally:
            self.apply(CURRENT)

    def keep(self, setpoint: Setpoint) -> Setpoint:
        """As `apply`, but beyond the end of this process: ``gpuenergy powercap restore`` undoes it.

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
        """The harness that verifies and measures on this GPU; see `Harness` and `MeterSettings`.

        Raises:
            DeviceError: the card has no energy source.
        """
        choose_source(self.device)  # without one every kernel would fail the same way
        settings = MeterSettings(preheat_s=preheat_s, min_launches=min_launches)
        return Harness(
            self.device, settings, timeout_s=timeout_s, cache=cache, announce=announce, seed=seed
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
        Station(device, lock_wait_s=lock_wait_s, allow_clocks=allow_clocks) as own,
    ):
        yield own


RAMP_S = 0.6
"""How long the clock may take to rise from that of a card at rest."""

READINGS, READING_S = 8, 0.05
"""How often the clock is then read, and the time between two readings."""

HIGHEST = 0.98
"""A card that reaches this fraction of its highest clock is not locked, as far as can be seen."""

SPREAD = 0.005
"""A clock that moves by more than this fraction is not pinned."""

_GPU_IDLE, _SYNC_BOOST = 0x1, 0x10
_EXPLAIN = RESTRAINING_REASONS | _GPU_IDLE | _SYNC_BOOST


def refuse_locked(gpu: Gpu) -> None:
    """Refuse a card whose clocks somebody else seems to have locked.

    A card that cannot run anything here, because it was opened for its settings only, is not
    refused: nothing is known of it.

    Raises:
        SetpointError: they seem to be locked, or the card does not run the load.
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
    """The clock in MHz at which a card under a light load is pinned; None if it is not.

    Args:
        readings: of the card's clock and event reasons during the load.
        achieved: the clock of an SM meanwhile; None if it is unknown.
        highest_mhz: the highest clock that the card supports.

    Returns:
        None too where the readings cannot tell: NVML explains the clock, or nothing is known.
    """
    if any((one.event_reasons or 0) & _EXPLAIN for one in readings):
        return None
    told = [float(one.sm_clock_mhz) for one in readings if one.sm_clock_mhz is not None]
    seen = [] if achieved is None else achieved.mhz.tolist()
    for clocks in (seen, told):
        if clocks and (
            max(clocks) >= HIGHEST * highest_mhz or max(clocks) - min(clocks) > SPREAD * max(clocks)
        ):
            return None
    return next((max(clocks) for clocks in (told, seen) if clocks), None)


def _pinned_mhz(device: Device) -> float | None:
    readings = []
    with device.light_load() as repeater:
        repeater.start()
        try:
            device.clock.sleep_s(RAMP_S)
            begin_s = device.clock.now_s()
            for _ in range(READINGS):
                readings.append(read_conditions(device))
                device.clock.sleep_s(READING_S)
        finally:
            timeline = repeater.stop()
    clocks = timeline.clocks
    if clocks is not None:
        late = clocks.begin_s >= begin_s
        clocks = ClockSamples(clocks.begin_s[late], clocks.end_s[late], clocks.mhz[late])
    return pinned_at(readings, clocks, supported_clocks(device)[-1])


SEARCH_LOCK_WAIT_S = 2.0
"""How long a search waits for a GPU that another run is using."""


@dataclass(frozen=True)
class Settings:
    """What GPUs are set to while they are claimed.

    Attributes:
        powercap: one power limit, as ``--powercap`` takes it.
        smclock: one clock, as ``--smclock`` takes it.
        allow_clocks: see `Station`.
    """

    powercap: str
    smclock: str
    allow_clocks: bool

    @property
    def writes(self) -> bool:
        """Whether they change anything of a card."""
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
        stack: closed by the caller.
        device: to claim.
        settings: of the card.
        tell: called with sentences about settings that dead runs have left.
        lock_wait_s: see `Station`.

    Raises:
        InputError: the settings name several setpoints.
        DeviceError: it cannot be claimed, or not be set.
    """
    station = stack.enter_context(
        Station(device, lock_wait_s=lock_wait_s, allow_clocks=settings.allow_clocks)
    )
    for sentence in station.restored:
        tell(sentence)
    setpoint = single_setpoint(device, settings.powercap, Path.cwd(), settings.smclock)
    stack.enter_context(station.under(setpoint))
    return station
