"""The samples of its power that a card takes by itself and keeps for about two seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import NamedTuple

from pytest_gpuenergy.devices import Device, absence
from pytest_gpuenergy.support import DeviceError

_EVERY_S = 1.0


class PowerSample(NamedTuple):
    """One sample, with the time that the card's driver has given it."""

    stamp_us: int
    power_w: float


class CardSamples:
    """Reads the power samples of a card, each of them once.

    Args:
        device: the card.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._newest_us = 0

    def new(self) -> list[PowerSample]:
        """Those that have not been read yet, in order; none where the card keeps no samples.

        Raises:
            DeviceError: they cannot be read.
        """
        nvml = self._device.nvml
        try:
            _, samples = nvml.nvmlDeviceGetSamples(
                self._device.handle, nvml.NVML_TOTAL_POWER_SAMPLES, self._newest_us
            )
        except (nvml.NVMLError_NotFound, *absence(nvml)):
            return []
        except nvml.NVMLError as error:
            raise DeviceError(
                f"The power samples of {self._device.name} cannot be read: {error}."
            ) from None
        found = sorted(
            PowerSample(int(one.timeStamp), one.sampleValue.uiVal / 1e3)
            for one in samples
            if one.timeStamp > self._newest_us
        )
        if found:
            self._newest_us = found[-1].stamp_us
        return found


@contextmanager
def read_regularly(device: Device, read: Callable[[], object]) -> Iterator[None]:
    """Within the context, call ``read`` every second, before the card drops samples.

    It is called in a thread of its own; not for an emulated card, whose time stands still unless it
    is used.
    """
    if device.emulated:
        yield
        return
    over = Event()

    def go_on() -> None:
        while not over.wait(_EVERY_S):
            read()

    thread = Thread(target=go_on, name="power samples", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
