"""The GPU of a pytest process: opened at first use, claimed for the run, set for each item."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from pytest_gpuenergy.control import (
    CURRENT,
    UNKNOWN,
    NamedSetpoints,
    Setpoint,
    SettingsWriter,
    choose_writer,
    enforced_setpoint,
)
from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.energy import responds
from pytest_gpuenergy.engine import Station
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.pytest_plugin.link import SET
from pytest_gpuenergy.pytest_plugin.options import Options
from pytest_gpuenergy.pytest_plugin.setpoints import named_setpoints


class Card:
    """Opens and claims the GPU only when an item needs it.

    Args:
        options: of the run.
        tell: tells the controller, of a pytest-xdist worker, what the card is set to.

    Attributes:
        named: the setpoints to measure at, with the words that name them.
    """

    def __init__(self, options: Options, tell: Callable[[str, object], None]) -> None:
        self.named = NamedSetpoints({})
        self._options = options
        self._tell = tell
        self._device: Device | None = None
        self._station: Station | None = None
        self._writer: SettingsWriter | None = None
        self._exit = contextlib.ExitStack()

    @property
    def device(self) -> Device:
        """The device, opened at first use.

        Raises:
            InputError, DeviceError: no usable device was found.
        """
        if self._device is None:
            options = self._options
            self._device = open_device(options.device, index=options.worker_index)
            self._exit.callback(self._device.close)
        return self._device

    @property
    def opened(self) -> bool:
        """Whether the device has been opened."""
        return self._device is not None

    def resolve_setpoints(self) -> list[Setpoint]:
        """The setpoints to measure at, including table values that the card does not support.

        Raises:
            InputError, DeviceError: as `named_setpoints`, or no usable device was found.
        """
        if not self.named.words:
            self.named = named_setpoints(self.device, self._options)
        return self.named.setpoints

    def settings_writer(self) -> SettingsWriter:
        """The writer of the card's settings, chosen once.

        Raises:
            SetpointError: none is permitted.
        """
        if self._writer is None:
            self._writer = choose_writer(self.device)
        return self._writer

    def claim(self, run_id: str) -> Station:
        """Claim the GPU, which `release` gives back.

        Args:
            run_id: workers of one run that share a GPU take turns, however long that takes.

        Raises:
            DeviceError: another run is using the GPU, or it does not work.
        """
        device, options = self.device, self._options
        if device.emulated:
            from pytest_gpuenergy.emulator import find_compiler

            find_compiler()  # without a compiler, every item would fail the same way
        self._station = Station(
            device,
            lock_wait_s=options.lock_wait_s,
            group=run_id,
            writer=self._writer,
            allow_clocks=options.allow_clocks,
        )
        return self._station

    def apply(self, setpoint: Setpoint) -> Setpoint:
        """Set the claimed card to ``setpoint`` and return what it enforces.

        No setting affects a verification: a run that measures nothing writes nothing to the card.
        An export checks that ``setpoint`` could be set.

        Raises:
            SetpointError: ``setpoint`` cannot be set.
        """
        assert self._station is not None
        if self._options.export_folder is not None:
            self._station.check(setpoint)
        if not self._measures:
            return UNKNOWN
        if setpoint != CURRENT:  # said before, because this process may die in between
            self._tell(SET, setpoint.label)
        enforced = self._station.apply(setpoint)
        if setpoint == CURRENT:
            self._tell(SET, "")
        return enforced

    def refuse_foreign_lock(self) -> None:
        """Look, if this run locks clocks, whether it may lock those of the claimed GPU.

        Raises:
            SetpointError: somebody else seems to have locked them.
        """
        assert self._station is not None
        if self._measures and any(one.sm_clock_mhz is not None for one in self.named.setpoints):
            self._station.refuse_foreign_lock()

    def enforced(self) -> Setpoint:
        """The setpoint that the card currently enforces."""
        return enforced_setpoint(self.device) if self._measures else UNKNOWN

    def answers(self) -> bool:
        """Whether the card responds at all, as opposed to only rejecting a setpoint."""
        return responds(self.device)

    def judge_setpoint(self) -> tuple[str, ...]:
        """Validity flags for the settings under which an item was measured."""
        return () if self._station is None else self._station.judge_setpoint()

    def release(self) -> None:
        """Restore the power limit and release the GPU: nothing more is measured here."""
        station, self._station = self._station, None
        if station is not None:
            station.close()
            self._tell(SET, "")

    def close(self) -> None:
        """End the device's processes. Idempotent."""
        self._exit.close()

    @property
    def _measures(self) -> bool:
        return self._options.export_folder is None and not self._options.verify_only
