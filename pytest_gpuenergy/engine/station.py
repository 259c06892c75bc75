"""A claimed GPU: the only way to one, for pytest, commands, searches and workers alike.

Claiming takes the GPU's lock, undoes what dead runs left behind and makes signals end the process
in an orderly way. Closing puts the card's settings back, and no signal cuts it short.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from pytest_gpuenergy.control.lease import Lease
from pytest_gpuenergy.control.leftovers import restore_leftovers
from pytest_gpuenergy.control.setpoint import CURRENT, Setpoint
from pytest_gpuenergy.control.writers import SettingsWriter
from pytest_gpuenergy.devices.device import Device
from pytest_gpuenergy.devices.gpu import Gpu
from pytest_gpuenergy.devices.lock import gpu_lock
from pytest_gpuenergy.devices.select import open_device
from pytest_gpuenergy.energy.samples import choose_source
from pytest_gpuenergy.engine.harness import Harness
from pytest_gpuenergy.kernels.job import CacheState
from pytest_gpuenergy.support.errors import DeviceError
from pytest_gpuenergy.support.scratch import remove_leftovers
from pytest_gpuenergy.support.signals import termination_as_interrupt, uninterrupted

LOCK_WAIT_S = 10.0
"""How long a command waits for a GPU that another run uses."""


class Station:
    """One GPU, held for this process alone until `close`; a context manager.

    Args:
        gpu: opened by the caller, who closes it after the station.
        lock_wait_s: how long to wait for another process that holds the GPU.
        group: processes of one group, such as the workers of one run, wait for each other however
            long that takes.
        writer: who writes the settings; chosen at the first write when not given.

    Attributes:
        gpu: the claimed one.
        restored: sentences about what dead runs left behind, on any GPU of this kind.

    Raises:
        DeviceError: another process holds the GPU, or what was left behind cannot be restored.
    """

    def __init__(
        self,
        gpu: Gpu,
        *,
        lock_wait_s: float = LOCK_WAIT_S,
        group: str = "",
        writer: SettingsWriter | None = None,
    ) -> None:
        self.gpu = gpu
        self.restored: list[str] = []
        self._signals = ExitStack()
        self._claim = ExitStack()
        atexit.register(self.close)  # however often an interrupt cut short what would close it
        try:
            self._signals.enter_context(termination_as_interrupt())
            self._claim.enter_context(gpu_lock(gpu, wait_s=lock_wait_s, group=group))
            remove_leftovers()
            self._lease = Lease(gpu, writer)
            self._claim.callback(self._lease.restore)
            self.restored += filter(None, [self._lease.restored])
            self.restored += restore_leftovers(gpu, but=gpu.uuid)
        except BaseException:
            self.close()
            raise

    @property
    def device(self) -> Device:
        """The claimed GPU as what kernels run on.

        Raises:
            DeviceError: it was opened for its power limit alone.
        """
        if not isinstance(self.gpu, Device):
            raise DeviceError(f"{self.gpu.name} was opened for its power limit alone.")
        return self.gpu

    def check(self, setpoint: Setpoint) -> None:
        """Make sure, without writing, that `apply` could do it, as far as one can know.

        Raises:
            SetpointError: it could not.
        """
        self._lease.check(setpoint)

    def apply(self, setpoint: Setpoint) -> Setpoint:
        """Set the card to ``setpoint`` and return what it enforces.

        Raises:
            SetpointError: the card cannot be set so.
        """
        return self._lease.set(setpoint)

    def judge_setpoint(self) -> tuple[str, ...]:
        """Named doubts about the card's settings since they were applied."""
        return self._lease.judge()

    @contextmanager
    def under(self, setpoint: Setpoint) -> Iterator[Setpoint]:
        """The card at ``setpoint`` for a while, and at its prior settings again afterwards.

        Yields:
            What the card enforces.

        Raises:
            SetpointError: the card cannot be set so, or its prior settings not be restored.
        """
        try:
            yield self.apply(setpoint)
        finally:
            self.apply(CURRENT)

    def keep(self, setpoint: Setpoint) -> Setpoint:
        """As `apply`, for longer than this process: ``gpuenergy powercap restore`` undoes it.

        Raises:
            SetpointError: the card cannot be set so.
        """
        return Lease(self.gpu, kept=True).set(setpoint)

    def harness(self, *, timeout_s: float = 60.0, cache: CacheState = "hot") -> Harness:
        """What verifies and measures here.

        Raises:
            DeviceError: the card has no source of energy.
        """
        choose_source(self.device)  # without one every kernel would fail alike
        return Harness(self.device, timeout_s=timeout_s, cache=cache)

    def close(self) -> None:
        """Restore the power limit and release the GPU. Idempotent.

        Raises:
            SetpointError: the prior limit cannot be restored; the next start tries again.
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
    spec: str, *, lock_wait_s: float = LOCK_WAIT_S, index: int = 0
) -> Iterator[Station]:
    """The GPU that ``spec`` names, opened and claimed.

    Args:
        spec: as for `open_device`.
        lock_wait_s: as for `Station`.
        index: as for `open_device`.

    Raises:
        InputError: no such device.
        DeviceError: it cannot be used or claimed.
    """
    with open_device(spec, index=index) as device, Station(device, lock_wait_s=lock_wait_s) as own:
        yield own
