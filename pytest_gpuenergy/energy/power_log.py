"""The card's power over time as a CSV file, for those who want to see the curve."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Lock, Thread
from typing import NamedTuple, TextIO

from pytest_gpuenergy.devices import Device, absence
from pytest_gpuenergy.support import DeviceError, csv_text

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


_SAME_S = 1e-3  # its samples are further apart


class PowerLog:
    """Writes the power samples that the card takes by itself, as they come; a context manager.

    The file has the columns ``timestamp``, in seconds since 1970 (on the emulated GPU, of its
    virtual time), and ``power_w``. No energy is computed from it.

    Args:
        device: the card, claimed by the caller.
        path: of the file; overwritten.
        interval_s: each row is the mean over so many seconds; None for all samples as they are.

    Attributes:
        problem: a sentence that says why the log has ended early, if it has.
    """

    def __init__(self, device: Device, path: Path, interval_s: float | None = None) -> None:
        self._device = device
        self._samples = CardSamples(device)
        self._path = path
        self._interval_s = interval_s
        self.problem: str | None = None
        self._bin: list[tuple[float, float]] = []
        self._lock = Lock()
        self._reading = ExitStack()
        self._file: TextIO | None = None

    def __enter__(self) -> PowerLog:
        """Begin with the samples from now on.

        Raises:
            DeviceError: the card has no samples, or they cannot be read.
            OSError: the file cannot be written.
        """
        if not self._samples.new():
            raise DeviceError(
                f"{self._device.name} keeps no samples of its power: leave out --power-log."
            )
        self._file = self._path.open("w", encoding="utf-8", buffering=1)
        self._file.write(csv_text([("timestamp", "power_w")]))
        self._reading.enter_context(read_regularly(self._device, self.collect))
        return self

    def collect(self) -> None:
        """Write the samples since the last call, unless there was a `problem`."""
        with self._lock, self._noting_problems():
            if self.problem is None:
                for one in self._samples.new():
                    self._add(one.stamp_us / 1e6, one.power_w)

    def __exit__(self, *_: object) -> None:
        """Write what is left and close the file."""
        self._reading.close()
        self.collect()
        with self._noting_problems():
            self._write()
            if self._file is not None:
                self._file.close()

    @contextmanager
    def _noting_problems(self) -> Iterator[None]:
        """A curve is not worth the measurements: what keeps it from being written is noted."""
        try:
            yield
        except DeviceError as error:
            self.problem = str(error)
        except OSError as error:
            self.problem = f"{self._path} cannot be written ({error.strerror})."

    def _add(self, time_s: float, power_w: float) -> None:
        if self._bin and time_s - self._bin[0][0] > (self._interval_s or 0.0) - _SAME_S:
            self._write()
        self._bin.append((time_s, power_w))

    def _write(self) -> None:
        if self._bin and self._file is not None:
            mean_w = sum(power_w for _, power_w in self._bin) / len(self._bin)
            self._file.write(csv_text([(f"{self._bin[0][0]:.6f}", f"{mean_w:.3f}")]))
        self._bin.clear()
