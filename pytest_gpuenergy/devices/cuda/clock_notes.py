"""Measures the clock of an SM during a run, of which NVML reports only the setting.

Between launches, a kernel of one thread notes the cycles of its SM and the GPU's nanoseconds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.devices.device import ClockSamples

MAX_NOTES = 1 << 14
"""The number of notes that are kept, enough for 13 minutes."""

MIN_SPAN_NS = 20_000_000
"""The shortest span that is evaluated, because the nanosecond timer of some GPUs counts in 1 us."""

_MAX_MHZ = 10_000.0

NOTE_PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry note(.param .u64 notes, .param .u64 count)
{
  .reg .u64 %%notes, %%at, %%ns, %%cycles;
  .reg .u32 %%number, %%sm;
  mov.u64 %%ns, %%globaltimer;
  mov.u64 %%cycles, %%clock64;
  mov.u32 %%sm, %%smid;
  ld.param.u64 %%notes, [notes];
  ld.param.u64 %%at, [count];
  atom.global.add.u32 %%number, [%%at], 1;
  and.b32 %%number, %%number, %d;
  mad.wide.u32 %%at, %%number, 24, %%notes;
  st.global.u64 [%%at], %%ns;
  st.global.u64 [%%at+8], %%cycles;
  cvt.u64.u32 %%ns, %%sm;
  st.global.u64 [%%at+16], %%ns;
  ret;
}
""" % (MAX_NOTES - 1)
"""The PTX of the noting kernel, which the driver translates for any GPU, without a compiler."""


class ClockNotes:
    """A kernel of one thread that notes the clock, in a graph of its own on the current stream.

    As in `GraphRepeater`, the graph is not uploaded before its first launch.
    """

    def __init__(self, cupy: Any, stream: Any) -> None:
        self._stream = stream
        self._notes = cupy.empty(3 * MAX_NOTES, dtype=np.uint64)
        self._count = cupy.empty(1, dtype=np.uint32)
        # On this stream, because a non-blocking stream does not wait for the default stream.
        self._count.data.memset_async(0, self._count.nbytes, stream)
        self._module = cupy.cuda.function.Module()
        self._module.load(NOTE_PTX)
        note = self._module.get_function("note")
        arguments = (self._notes, self._count)
        note((1,), (1,), arguments)  # loads the kernel
        stream.begin_capture()
        try:
            note((1,), (1,), arguments)
        finally:
            self._graph = stream.end_capture()
        self._made = 1
        self.enqueue()

    @classmethod
    def of(cls, cupy: Any, stream: Any) -> ClockNotes | None:
        """Construct a `ClockNotes`; return None if the GPU or its driver cannot note the clock."""
        try:
            return cls(cupy, stream)
        except (
            cupy.cuda.driver.CUDADriverError,
            cupy.cuda.runtime.CUDARuntimeError,
            cupy.cuda.memory.OutOfMemoryError,
        ):
            return None

    def enqueue(self) -> None:
        """Enqueue a note, which is made when the work so far has finished."""
        self._graph.launch(self._stream)
        self._made += 1

    def samples(self, times_s: npt.NDArray[np.float64]) -> ClockSamples | None:
        """Return the clock between the latest notes, made at these times; None if it is unknown."""
        if int(self._count.get()[0]) != self._made % 2**32:
            return None  # something else has written to the notes
        times_s = times_s[-MAX_NOTES:]
        numbers = np.arange(self._made - len(times_s), self._made) % MAX_NOTES
        return clock_samples(self._notes.get().reshape(-1, 3)[numbers], times_s)


def clock_samples(
    notes: npt.NDArray[np.uint64], times_s: npt.NDArray[np.float64]
) -> ClockSamples | None:
    """Return the clock between successive notes of the same SM; each SM has its own counter.

    Args:
        notes: the nanoseconds, cycles and SM number of each note, shape (n, 3).
        times_s: the device's clock at each note, shape (n,).

    Returns:
        The clock, or None without two notes of one SM that are at least `MIN_SPAN_NS` apart.
    """
    latest: dict[int, int] = {}
    pairs = []
    for number, sm in enumerate(notes[:, 2].tolist()):
        if sm in latest:
            pairs.append((latest[sm], number))
        latest[sm] = number
    first, last = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
    ns, cycles = (notes[last, :2] - notes[first, :2]).astype(np.float64).T
    mhz = 1e3 * cycles / np.maximum(ns, 1.0)
    good = (ns >= MIN_SPAN_NS) & (mhz > 0) & (mhz < _MAX_MHZ)
    if not good.any():
        return None
    return ClockSamples(times_s[first[good]], times_s[last[good]], mhz[good])
