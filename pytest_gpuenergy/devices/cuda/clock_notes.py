"""Measures the clock of an SM during a run, of which NVML reports only the setting.

Between launches, or within a graph, a kernel of one thread notes the cycles of its SM and the GPU's
nanoseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.devices.device import ClockSamples

MAX_NOTES = 1 << 14
"""The number of notes that are kept, enough for 13 minutes."""

MIN_SPAN_NS = 20_000_000
"""The shortest span that is evaluated, because the nanosecond timer of some GPUs counts in 1 us."""

_MAX_MHZ = 10_000.0

# PTX, which the driver translates for any GPU: no compiler is needed, and no cache entry is made.
_PTX = b"""
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


class _NoteKernel:
    """The kernel, and the memory that it writes to. The first launch is made here, on a stream."""

    def __init__(self, cupy: Any, stream: Any) -> None:
        self._notes = cupy.empty(3 * MAX_NOTES, dtype=np.uint64)
        self._count = cupy.empty(1, dtype=np.uint32)
        # On this stream, because a non-blocking stream does not wait for the default stream.
        self._count.data.memset_async(0, self._count.nbytes, stream)
        self._module = cupy.cuda.function.Module()
        self._module.load(_PTX)
        self._note = self._module.get_function("note")
        self.enqueue()  # loads the kernel

    def enqueue(self) -> None:
        """Enqueue a note on CuPy's current stream."""
        self._note((1,), (1,), (self._notes, self._count))

    def count(self) -> int:
        """Return the number of notes so far, without overflows of 32 bits."""
        return int(self._count.get()[0])

    def latest(self, number: int, made: int) -> npt.NDArray[np.uint64]:
        """Return the last ``number`` of ``made`` notes, in order, shape (number, 3)."""
        kept = self._notes.get().reshape(-1, 3)
        found: npt.NDArray[np.uint64] = kept[np.arange(made - number, made) % MAX_NOTES]
        return found


class ClockNotes:
    """A kernel of one thread that notes the clock, in a graph of its own on the current stream.

    As in `GraphRepeater`, the graph is not uploaded before its first launch.
    """

    def __init__(self, cupy: Any, stream: Any) -> None:
        self._stream = stream
        self._kernel = _NoteKernel(cupy, stream)
        stream.begin_capture()
        try:
            self._kernel.enqueue()
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
        if self._kernel.count() != self._made % 2**32:
            return None  # something else has written to the notes
        times_s = times_s[-MAX_NOTES:]
        return clock_samples(self._kernel.latest(len(times_s), self._made), times_s)


class MarkedSpan(NamedTuple):
    """The time between two marks in microseconds, and the clock in it in MHz, None if unknown."""

    time_us: float
    clock_mhz: float | None


class ClockMarks:
    """Marks between the kernels of a graph, which tell the clock in each span between two marks.

    The mean clock of a graph does not tell that of its parts: under a power limit, the clock
    follows within a graph. A mark takes about a microsecond.

    Raises:
        CUDADriverError, CUDARuntimeError, OutOfMemoryError: CuPy's; the GPU cannot note the clock.
    """

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        self._kernel = _NoteKernel(cupy, cupy.cuda.get_current_stream())
        self._began = 0

    def restart(self) -> None:
        """Forget the marks so far, when the GPU has made them all."""
        self._cupy.cuda.Device().synchronize()
        self._began = self._kernel.count()

    def mark(self) -> None:
        """Enqueue a mark on CuPy's current stream."""
        self._kernel.enqueue()

    def spans(self, labels: Sequence[str]) -> dict[str, MarkedSpan]:
        """Return the mean of the spans of each label since `restart`; see `marked_spans`.

        Args:
            labels: For each mark of a period, the label of the span that it ends.
        """
        self._cupy.cuda.Device().synchronize()
        made = self._kernel.count()
        number = min((made - self._began) % 2**32, MAX_NOTES)
        return marked_spans(self._kernel.latest(number, made), labels)


def marked_spans(notes: npt.NDArray[np.uint64], labels: Sequence[str]) -> dict[str, MarkedSpan]:
    """Return the mean time and clock of the spans of each label.

    Args:
        notes: the nanoseconds, cycles and SM number of each note, shape (n, 3); the last one ends a
            period.
        labels: for each note of a period, the label of the span that it ends.

    Returns:
        By label, the mean time of its spans, and the clock in those whose two notes are of one SM,
        each of which has its own counter.
    """
    number = len(notes)
    of_notes = [labels[(at - number) % len(labels)] for at in range(1, number)]
    ns, cycles, others = np.diff(notes.astype(np.int64), axis=0).T
    found = {}
    for label in dict.fromkeys(of_notes):
        chosen = np.array([one == label for one in of_notes], dtype=bool)
        clocked = chosen & (others == 0) & (ns > 0) & (cycles > 0)
        found[label] = MarkedSpan(
            float(ns[chosen].mean()) / 1e3,
            1e3 * float(cycles[clocked].sum()) / float(ns[clocked].sum())
            if clocked.any()
            else None,
        )
    return found


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
