"""A claimed GPU: the only way to use one, for pytest, commands, searches and workers alike.

Claiming takes the GPU's lock, undoes what dead runs left behind and makes signals end the process
in an orderly way. Closing restores the card's settings and cannot be interrupted by a signal.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from pytest_gpuenergy.control import CURRENT, Lease, Setpoint, SettingsWriter, restore_leftovers
from pytest_gpuenergy.devices import Device, Gpu, gpu_lock
from pytest_gpuenergy.energy import PREHEAT_S, Announce, MeterSettings, choose_source
from pytest_gpuenergy.engine.foreign_lock import refuse_locked
from pytest_gpuenergy.engine.harness import Harness
from pytest_gpuenergy.kernels import CacheState
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.support import (
    DeviceError,
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
