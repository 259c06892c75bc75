"""Back-to-back replays of CUDA graphs: the part of a `Repeater` that calls CUDA.

Used in the worker process for kernels, and in the caller's own process for callables.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from threading import Event, Thread
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.devices.cuda.clock_notes import ClockNotes
from pytest_gpuenergy.devices.device import CLOCK_SPAN_S, Launches, Timeline
from pytest_gpuenergy.devices.host_clock import monotonic_s

GRAPH_S = 0.008
"""The approximate GPU time of a turn: long for a launch, short for the energy counter's period."""
MAX_CALLS = 4096
"""The largest number of calls in a graph."""
MAX_CALLS_OF_ALL = 3 * MAX_CALLS
"""The largest number of calls in the graphs of all turns, which take time to capture."""
_IN_FLIGHT = 3
"""The number of turns that are submitted ahead, so that the GPU never waits for the host."""
_MAX_BEFORE = 8
"""The largest number of launches before the single launch of `GraphRepeater.relaunch`."""


class GraphRepeater:
    """Replays work on a CUDA stream until it is stopped.

    Args:
        turns: the functions that each launch the work once on the current stream of CuPy (and of
            PyTorch, if it is imported), for example on different buffers. Each has its own graph,
            and the graphs are replayed in rotation: a turn lasts about `GRAPH_S`, in which a
            shorter graph is replayed repeatedly.
        must_capture: whether to raise if the work cannot be captured in a CUDA graph, instead of
            launching from the host.
        multiple: the period of periodic work; each graph holds a multiple of this many calls.
        rewind: the function that makes the next call the first of a period; called before each
            capture.
        from_host: whether to launch from the host, without a graph.
        most: a function that waits until several processes have called it, and returns the largest
            of their values. Repeaters whose work waits for that of the others thus launch equally
            often, and each continues until all are to stop.

    Attributes:
        captured: whether graphs are replayed; if not, the host may delay launches.
        launches: the number of calls so far.
        used: the number of turns that have been replayed, counted from the first.
    """

    def __init__(
        self,
        turns: Sequence[Callable[[], object]],
        *,
        must_capture: bool = True,
        multiple: int = 1,
        rewind: Callable[[], object] = lambda: None,
        from_host: bool = False,
        most: Callable[[float], float] = lambda value: value,
    ) -> None:
        import cupy

        self._cupy = cupy
        self._turns = turns
        self._multiple = multiple
        self._rewind = rewind
        self._most = most
        self._device = cupy.cuda.Device()
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._returned: list[object] = [None] * len(turns)
        self.launches, self.used = 0, 0
        self.launch(1)  # so that the kernel is loaded
        with self._current_stream():
            self._notes = ClockNotes.of(cupy, self._stream)
        self._batch, self._replays = 1, 1
        self._graphs: list[Any] = []
        try:
            turn_s = 0.0 if from_host else self._capture_all()
        except (cupy.cuda.runtime.CUDARuntimeError, RuntimeError):
            if must_capture:
                raise
        if not self._graphs:
            count, total_s = 1, self._most(self.launch(1).gpu_s)
            while total_s <= GRAPH_S / 4 and count < 64:  # enough launches to hide the host
                count *= 4
                total_s = self._most(self.launch(count).gpu_s)
            launch_s = total_s / count
            self._batch = self._calls_per_graph(launch_s)
            turn_s = self._batch * launch_s
        self._turns_per_note = max(1, round(CLOCK_SPAN_S / max(turn_s, 1e-7)))
        self.captured = bool(self._graphs)
        self._stop = Event()
        self._under_way = Event()
        self._thread: Thread | None = None
        self._error: BaseException | None = None
        self._log = ReplayLog()

    def start(self) -> None:
        """Start replaying; return once the first replay has finished."""
        self._stop.clear()
        self._under_way.clear()
        self._error, self._log = None, ReplayLog()
        self._thread = Thread(target=self._run, name="replay", daemon=True)
        self._thread.start()
        self._under_way.wait()

    def stop(self) -> Timeline:
        """Finish the replays in progress and return the timeline; re-raise a launch's error."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error
        return self._log.timeline(len(self._turns), self._notes)

    def launch(self, count: int) -> Launches:
        """Do the work of the first turn ``count`` times without a graph; wait for the last."""

        def enqueue_all() -> None:
            for _ in range(count):
                self._turns[0]()

        with self._current_stream():
            self._stream.synchronize()
            begin_s = monotonic_s()
            gpu_s = self._elapsed_s(enqueue_all)
            self.launches += count
            return Launches(count, begin_s, monotonic_s(), gpu_s)

    def relaunch(
        self,
        turn: int,
        prepare: Callable[[object], object],
        *,
        once: bool,
        again: Callable[[], bool] = lambda: False,
    ) -> object:
        """Do the work of a turn again, and wait for it.

        Args:
            turn: the number of the turn.
            prepare: a function that enqueues writes to the work's buffers on the current stream.
                Its argument is what the work returned, whose memory a graph overwrites at each
                replay.
            once: whether to do the work a few times, prepare, and directly after that do it a
                single time (``multiple`` calls), instead of preparing and replaying the turn's
                graph. The number of times before is random, so that the work cannot recognize the
                single time by counting; it is zero for work that takes long.
            again: a function that returns whether to prepare and do the work once more; called
                after each single time, when the GPU has finished.

        Returns:
            What the last call returned; with a graph, what it returned during the capture.
        """
        with self._current_stream():
            if once:
                self._relaunch_singly(turn, prepare, again)
            else:
                prepare(self._returned[turn])
                if self._graphs:
                    self._graphs[turn].launch(self._stream)
                    self.launches += self._batch
                else:
                    self._submit(turn)
            self._stream.synchronize()
        return self._returned[turn]

    def call_s(self) -> tuple[float, float] | None:
        """Return the GPU time of a call in the first turn's graph, and in a graph of its own.

        A call that leaves work to an earlier call of the same graph takes longer on its own. None
        without graphs.
        """
        if not self._graphs:
            return None
        with self._current_stream():
            alone, returned = self._capture(self._turns[0], self._multiple)
            alone.launch(self._stream)  # uploads the graph
            count = min(64, -(-self._batch // self._multiple))
            together_s = self._elapsed_s(partial(self._graphs[0].launch, self._stream))
            alone_s = self._elapsed_s(lambda: [alone.launch(self._stream) for _ in range(count)])
            del returned  # the graph has used its memory until now
        self.launches += self._batch + (count + 1) * self._multiple
        return together_s / self._batch, alone_s / (count * self._multiple)

    def _relaunch_singly(
        self, turn: int, prepare: Callable[[object], object], again: Callable[[], bool]
    ) -> None:
        graph: Any = None
        if self._graphs:
            graph, self._returned[turn] = self._capture(self._turns[turn], self._multiple)
            times = self._replays * self._batch // self._multiple
            before = 1 + int(np.random.default_rng().integers(_MAX_BEFORE)) if times > 1 else 0
            for _ in range(before):
                graph.launch(self._stream)
            self.launches += before * self._multiple
        else:
            self._submit(turn)
        while True:
            prepare(self._returned[turn])
            if graph is None:
                self._call(turn)
            else:
                graph.launch(self._stream)
                self.launches += self._multiple
            self._stream.synchronize()
            if not again():
                return

    def _calls_per_graph(self, launch_s: float) -> int:
        """Return the number of calls in a graph."""
        most = min(MAX_CALLS, MAX_CALLS_OF_ALL // len(self._turns))
        calls = min(most, GRAPH_S / max(launch_s, 1e-7)) / self._multiple
        return self._multiple * _power_of_two(calls)

    @contextmanager
    def _current_stream(self) -> Iterator[None]:
        with self._stream:
            if torch := sys.modules.get("torch"):
                with torch.cuda.stream(
                    torch.cuda.ExternalStream(self._stream.ptr, self._device.id)
                ):
                    yield
            else:
                yield

    def _elapsed_s(self, submit: Callable[[], object]) -> float:
        begin, end = self._cupy.cuda.Event(), self._cupy.cuda.Event()
        begin.record(self._stream)
        submit()
        end.record(self._stream)
        end.synchronize()
        return float(self._cupy.cuda.get_elapsed_time(begin, end)) / 1000

    def _capture_all(self) -> float:
        """Capture a graph of each turn; return the approximate GPU time of a turn in seconds.

        Graphs of the first turn show how many calls to capture. Nothing is launched from the host
        for this, and no graph is uploaded before its first launch: on an H200, after either of
        these, every further launch of the process can take 0.2 or 0.4 us longer.
        """
        with self._current_stream():
            self._batch = self._multiple
            while True:
                first, self._returned[0] = self._capture(self._turns[0], self._batch)
                first.launch(self._stream)  # uploads the graph
                graph_s = self._most(self._elapsed_s(partial(first.launch, self._stream)))
                self.launches += 2 * self._batch
                better = self._calls_per_graph(graph_s / self._batch)
                if better <= self._batch:
                    break
                # Launches seem longer than they are in a short graph.
                self._batch = min(better, 16 * self._batch)
            self._replays = _power_of_two(GRAPH_S / max(graph_s, 1e-7))
            others = [self._capture(turn, self._batch) for turn in self._turns[1:]]
            self._graphs = [first, *(graph for graph, _ in others)]
            self._returned[1:] = [returned for _, returned in others]
        return self._replays * graph_s

    def _capture(self, enqueue: Callable[[], object], calls: int) -> tuple[Any, object]:
        """Capture a graph; return it and what the last call returned, which keeps its memory."""
        returned = None
        self._rewind()
        self._stream.begin_capture()
        try:
            for _ in range(calls):
                returned = None  # so that the next call can use the same memory
                returned = enqueue()
        finally:
            graph = self._stream.end_capture()
        return graph, returned

    def _submit(self, turn: int) -> None:
        if self._graphs:
            for _ in range(self._replays):
                self._graphs[turn].launch(self._stream)
            self.launches += self._replays * self._batch
        else:
            for _ in range(self._batch):
                self._call(turn)

    def _call(self, turn: int) -> None:
        self._returned[turn] = None
        self._returned[turn] = self._turns[turn]()
        self.launches += 1

    def _run(self) -> None:
        try:
            self._device.use()
            with self._current_stream():
                self._replay()
        except BaseException as error:
            self._error = error
        finally:
            self._under_way.set()

    def _replay(self) -> None:
        pending: deque[tuple[Any, Any, bool]] = deque()
        turns = cycle(range(len(self._turns)))
        submitted = 0
        first: Any = None
        self._log.begin(monotonic_s())
        # During a graph of one long launch, the host has enough time to submit the next.
        in_flight = _IN_FLIGHT if self._batch > self._multiple else _IN_FLIGHT - 1
        while True:
            while len(pending) < in_flight and self._most(not self._stop.is_set()):
                # block: the host sleeps while it waits, instead of spinning beside the measurement
                begin, end = (self._cupy.cuda.Event(block=True) for _ in range(2))
                # Between the events of two turns, so that it does not count as time of launches.
                noted = submitted % self._turns_per_note == 0 and self._note()
                begin.record(self._stream)
                turn = next(turns)
                self.used = max(self.used, turn + 1)
                self._submit(turn)
                end.record(self._stream)
                pending.append((begin, end, noted))
                submitted += 1
                first = first or begin
            if not pending:
                if self._note():
                    self._stream.synchronize()
                    self._log.note_at_end()
                return
            begin, end, noted = pending.popleft()
            end.synchronize()
            noticed_s = monotonic_s()
            busy_s, gpu_s = (
                self._cupy.cuda.get_elapsed_time(event, end) / 1000 for event in (begin, first)
            )
            self._log.add(noticed_s, gpu_s, self._batch * self._replays, busy_s, noted=noted)
            self._under_way.set()

    def _note(self) -> bool:
        """Enqueue a note of the clock; return whether the clock can be noted."""
        if self._notes is None:
            return False
        self._notes.enqueue()
        return True


class ReplayLog:
    """One run of a `GraphRepeater`: its turns and the notes of the clock between them.

    All times called ``gpu_s`` are on the GPU's timer and counted from the start of the first turn.
    """

    def __init__(self) -> None:
        self._turns: list[tuple[float, float, float, float]] = []
        self._notes_s: list[float] = []

    def begin(self, noticed_s: float) -> None:
        """Record the host's time before the first turn."""
        self._turns.append((noticed_s, 0.0, 0.0, 0.0))

    def add(
        self, noticed_s: float, gpu_s: float, launches: int, busy_s: float, *, noted: bool
    ) -> None:
        """Add the next turn.

        Args:
            noticed_s: when the host noticed the end of the turn.
            gpu_s: the end of the turn on the GPU's timer.
            launches: the number of launches in the turn.
            busy_s: the duration of the turn on the GPU.
            noted: whether the clock was noted directly before the turn.
        """
        _, _, launches_before, busy_before_s = self._turns[-1]
        if noted:
            self._notes_s.append(gpu_s - busy_s)
        self._turns.append((noticed_s, gpu_s, launches_before + launches, busy_before_s + busy_s))

    def note_at_end(self) -> None:
        """Record that the clock was noted directly after the last turn."""
        self._notes_s.append(self._turns[-1][1])

    def timeline(self, placements: int, notes: ClockNotes | None) -> Timeline:
        """Return the timeline on the host's clock.

        Args:
            placements: the number of buffer sets, see `Timeline`.
            notes: the notes of the clock, of which this run made the latest; None if the clock
                cannot be noted.
        """
        noticed_s, gpu_s, launches, busy_s = np.array(self._turns, dtype=np.float64).T
        time_s = host_times_s(noticed_s, gpu_s)
        clocks = None
        if notes is not None:
            clocks = notes.samples(np.array(self._notes_s) + (time_s[0] - gpu_s[0]))
        return Timeline(time_s, launches, busy_s, placements, clocks)


def host_times_s(
    noticed_s: npt.NDArray[np.float64], gpu_s: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Convert times of the GPU's timer, from the start of the first batch, to the host's clock.

    ``noticed_s`` are the start and when the host noticed the end of each batch. A host that sleeps
    until a batch has ended wakes up late, usually by tens of microseconds and sometimes by
    milliseconds, but never early: the smallest delay gives the offset of the two clocks. Their
    difference in rate, some parts per million, is neglected.
    """
    late_s = noticed_s - gpu_s
    # Without the first entry: the host starts before the first batch begins.
    offset_s = float((late_s[1:] if len(late_s) > 1 else late_s).min())
    return gpu_s + offset_s


def _power_of_two(value: float) -> int:
    """Return the nearest power of two by ratio, at least 1: so coarse that every run agrees."""
    return 1 << max(0, round(math.log2(value)))
