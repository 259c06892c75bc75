"""The power samples that a card takes by itself, and a CSV file of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Lock, Thread
from typing import NamedTuple, TextIO

from pytest_gpuenergy.devices import Device, unavailable_errors
from pytest_gpuenergy.support import DeviceError, csv_text

_EVERY_S = 1.0
"""The time between two reads; a card keeps its samples for about two seconds."""
_SAME_S = 1e-3
"""The tolerance of an interval's end, which is shorter than the time between two samples."""


class PowerSample(NamedTuple):
    """A sample of the power, with its time by the card's driver."""

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
        """Return the samples that have not been read yet, in order; none if the card keeps none.

        Raises:
            DeviceError: the samples cannot be read.
        """
        nvml = self._device.nvml
        try:
            _, samples = nvml.nvmlDeviceGetSamples(
                self._device.handle, nvml.NVML_TOTAL_POWER_SAMPLES, self._newest_us
            )
        except (nvml.NVMLError_NotFound, *unavailable_errors(nvml)):
            return []
        except nvml.NVMLError as error:
            raise DeviceError(
                f"The power samples of {self._device.name} cannot be read: {error}."
            ) from None
        found = sorted(
            PowerSample(int(sample.timeStamp), sample.sampleValue.uiVal / 1e3)
            for sample in samples
            if sample.timeStamp > self._newest_us
        )
        if found:
            self._newest_us = found[-1].stamp_us
        return found


@contextmanager
def read_regularly(device: Device, read: Callable[[], object]) -> Iterator[None]:
    """Within the context, call ``read`` every second, before the card drops samples.

    It is called in a thread of its own; not at all for an emulated card, whose virtual time passes
    only when it is used.
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


class PowerLog:
    """Writes the card's power samples to a CSV file as they come; a context manager.

    The file has the columns ``timestamp``, in seconds since 1970 (in virtual time on the emulated
    GPU), and ``power_w``. No energy is computed from it.

    Args:
        device: the card, claimed by the caller.
        path: the path of the file, which is overwritten.
        interval_s: the number of seconds over which each row is the mean; None for all samples.

    Attributes:
        problem: a sentence that says why the log has ended early, or None.
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
                longest_s = (self._interval_s or 0.0) - _SAME_S
                for sample in self._samples.new():
                    time_s = sample.stamp_us / 1e6
                    if self._bin and time_s - self._bin[0][0] > longest_s:
                        self._write()
                    self._bin.append((time_s, sample.power_w))

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
        """Note errors instead of raising them: the log must not cost the measurements."""
        try:
            yield
        except DeviceError as error:
            self.problem = str(error)
        except OSError as error:
            self.problem = f"{self._path} cannot be written ({error.strerror})."

    def _write(self) -> None:
        if self._bin and self._file is not None:
            mean_w = sum(power_w for _, power_w in self._bin) / len(self._bin)
            self._file.write(csv_text([(f"{self._bin[0][0]:.6f}", f"{mean_w:.3f}")]))
        self._bin.clear()
