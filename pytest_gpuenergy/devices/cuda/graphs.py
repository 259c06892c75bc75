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
from pytest_gpuenergy.devices.cuda.driver import monotonic_s as monotonic
from pytest_gpuenergy.devices.device import CLOCK_SPAN_S, Launches, Timeline


class ReplayLog:
    """One run of a `GraphRepeater`: its turns and the notes of the clock between them.

    All times called ``gpu_s`` are on the GPU's timer and counted from the start of the first turn.
    """

    def __init__(self) -> None:
        self._turns: list[tuple[float, float, float, float]] = []
        self._notes_s: list[float] = []

    def begin(self, noticed_s: float) -> None:
        """Note the host's time before the first turn."""
        self._turns.append((noticed_s, 0.0, 0.0, 0.0))

    def add(
        self, noticed_s: float, gpu_s: float, launches: int, busy_s: float, *, noted: bool
    ) -> None:
        """Add the next turn.

        Args:
            noticed_s: when the host noticed its end.
            gpu_s: its end.
            launches: of this turn.
            busy_s: its duration on the GPU.
            noted: whether the clock was noted directly before it.
        """
        _, _, launches_before, busy_before_s = self._turns[-1]
        if noted:
            self._notes_s.append(gpu_s - busy_s)
        self._turns.append((noticed_s, gpu_s, launches_before + launches, busy_before_s + busy_s))

    def note_at_end(self) -> None:
        """The clock was noted directly after the last turn."""
        self._notes_s.append(self._turns[-1][1])

    def timeline(self, placements: int, notes: ClockNotes | None) -> Timeline:
        """The timeline on the host's clock.

        Args:
            placements: see `Timeline`.
            notes: those of this run are the latest; None where the clock cannot be noted.
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
    """Convert times of the GPU's timer to the host's clock.

    A host that sleeps until a batch has ended wakes up late, usually by tens of microseconds and
    sometimes by milliseconds, but never early: the smallest delay gives the offset of the two
    clocks. Their difference in rate, some parts per million, is neglected.

    Args:
        noticed_s: shape (n,), host clock at the start and whenever the host noticed that a batch
            had ended.
        gpu_s: shape (n,), the same on the GPU's timer, counted from the start of the first batch.
    """
    late_s = noticed_s - gpu_s
    # Without the first entry: the host starts before the first batch begins.
    offset_s = float((late_s[1:] if len(late_s) > 1 else late_s).min())
    return gpu_s + offset_s


GRAPH_S = 0.008
"""Approximate GPU time of a turn: long compared with a launch, short with a counter period."""
MAX_CALLS = 4096
"""Per graph."""
MAX_CALLS_OF_ALL = 3 * MAX_CALLS
"""For the graphs of all turns together, which take time to capture."""
_IN_FLIGHT = 3
_MOST_BEFORE = 8


class GraphRepeater:
    """Replays work on a CUDA stream until it is stopped.

    Args:
        turns: functions that each launch the work once on the current stream of CuPy (and of
            PyTorch, if that is imported), for example on different buffers. Each has its own
            graph, and the graphs are replayed in rotation: a turn lasts about `GRAPH_S`, in which a
            shorter graph is replayed repeatedly.
        must_capture: raise if the work cannot be captured in a CUDA graph, instead of launching
            from the host.
        multiple: the number of calls per graph is a multiple of this, for work that is periodic.
        rewind: makes the next call the first of a period; called before each capture.
        from_host: launch from the host without a graph, as a program does that has none.
        most: the largest of what several processes give it, once all have. Their repeaters, whose
            work waits for that of the others, then launch equally often: each goes on until all
            are to stop.

    Attributes:
        captured: whether graphs are replayed; if not, the host may delay launches.
        launches: calls so far.
        used: how many of the turns have been replayed, counted from the first.
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
        self.launch(1)  # may have to load the kernel first
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
            launch_s = self._time_launch()
            self._batch = self._batch_for(launch_s)
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
        """Finish the replays in progress and return the timeline; raise what a launch raised."""
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
            begin_s = monotonic()
            gpu_s = self._elapsed_s(enqueue_all)
            self.launches += count
            return Launches(count, begin_s, monotonic(), gpu_s)

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
            turn: its number.
            prepare: enqueues writes to the work's buffers on the current stream. It is called with
                what the work returned, whose memory a graph overwrites at each replay.
            once: do the work a few times, prepare, and directly after that do it a single time
                (``multiple`` calls); otherwise prepare, and replay the turn's graph. The number of
                times before the single one is random, so that the work cannot recognize the single
                one by counting; it is zero for work that takes long.
            again: called after each single time, when the GPU has finished: whether to prepare and
                do it once more.

        Returns:
            What the last call returned; for a graph, during its capture.
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
        """Return the GPU time of a call in the first turn's graph, and in one of a single call.

        Calls that leave work to an earlier call of the same graph take longer in the second one.
        None without graphs.
        """
        if not self._graphs:
            return None
        with self._current_stream():
            alone, returned = self._graph_of(self._turns[0], self._multiple)
            alone.launch(self._stream)  # uploads it
            count = min(64, -(-self._batch // self._multiple))
            together_s = self._elapsed_s(partial(self._graphs[0].launch, self._stream))
            alone_s = self._elapsed_s(lambda: [alone.launch(self._stream) for _ in range(count)])
            del returned  # its memory belonged to the graph until now
        self.launches += self._batch + (count + 1) * self._multiple
        return together_s / self._batch, alone_s / (count * self._multiple)

    def _relaunch_singly(
        self, turn: int, prepare: Callable[[object], object], again: Callable[[], bool]
    ) -> None:
        graph: Any = None
        if self._graphs:
            graph, self._returned[turn] = self._graph_of(self._turns[turn], self._multiple)
            times = self._replays * self._batch // self._multiple
            before = 1 + int(np.random.default_rng().integers(_MOST_BEFORE)) if times > 1 else 0
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

    def _batch_for(self, launch_s: float) -> int:
        """Number of calls in a graph."""
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

    def _time_launch(self) -> float:
        """Rough time of a launch in seconds, from enough launches to outweigh the host."""
        count = 1
        while True:
            total_s = self._most(self.launch(count).gpu_s)
            if total_s > GRAPH_S / 4 or count >= 64:
                return total_s / count
            count *= 4

    def _capture_all(self) -> float:
        """Capture a graph of each turn; graphs of the first show how many calls one should hold.

        For this, nothing is launched from the host, and no graph is uploaded before its first
        launch: on an H200, after either of these, every further launch of the process can take 0.2
        or 0.4 us longer.

        Returns:
            Approximate GPU time of a turn in seconds.
        """
        with self._current_stream():
            self._batch = self._multiple
            while True:
                first, self._returned[0] = self._capture(self._turns[0])
                first.launch(self._stream)  # uploads it
                graph_s = self._most(self._elapsed_s(partial(first.launch, self._stream)))
                self.launches += 2 * self._batch
                better = self._batch_for(graph_s / self._batch)
                if better <= self._batch:
                    break
                # Launches seem longer than they are in a short graph.
                self._batch = min(better, 16 * self._batch)
            self._replays = _power_of_two(GRAPH_S / max(graph_s, 1e-7))
            others = [self._capture(turn) for turn in self._turns[1:]]
            self._graphs = [first, *(graph for graph, _ in others)]
            self._returned[1:] = [returned for _, returned in others]
        return self._replays * graph_s

    def _capture(self, enqueue: Callable[[], object]) -> tuple[Any, object]:
        return self._graph_of(enqueue, self._batch)

    def _graph_of(self, enqueue: Callable[[], object], calls: int) -> tuple[Any, object]:
        """A graph, and what the last call returned; holding this keeps its memory reserved."""
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
        self._log.begin(monotonic())
        # A graph of one long launch gives the host enough time to submit the next.
        in_flight = _IN_FLIGHT if self._batch > self._multiple else _IN_FLIGHT - 1
        while True:
            while len(pending) < in_flight and self._most(not self._stop.is_set()):
                # block: the host sleeps while it waits, instead of spinning beside the measurement
                begin, end = (self._cupy.cuda.Event(block=True) for _ in range(2))
                # Between the events of two turns: it is not part of the time of launches.
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
            noticed_s = monotonic()
            busy_s, gpu_s = (
                self._cupy.cuda.get_elapsed_time(event, end) / 1000 for event in (begin, first)
            )
            self._log.add(noticed_s, gpu_s, self._batch * self._replays, busy_s, noted=noted)
            self._under_way.set()

    def _note(self) -> bool:
        """Enqueue a note of the clock; report whether there are notes."""
        if self._notes is None:
            return False
        self._notes.enqueue()
        return True


def _power_of_two(value: float) -> int:
    """The nearest power of two by ratio, at least 1: coarse, so as to be the same in every run."""
    return 1 << max(0, round(math.log2(value)))
