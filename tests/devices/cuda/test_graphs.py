"""CUDA-graph replays, on a GPU that only counts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from host_cupy import HostStream, NoteModule, memory
from hypothesis import given, strategies as st

from pytest_gpuenergy.devices import GRAPH_S, MAX_CALLS, MAX_CALLS_OF_ALL, GraphRepeater
from pytest_gpuenergy.devices.cuda import graphs as replay

HOST_LAUNCH_S = 5e-6
GRAPH_START_S = 5e-6
HOST_AHEAD_S = 1000.0


class Gpu:
    """What CuPy is asked for, and what the GPU did: launches by name, and its time.

    A kernel takes ``kernel_s``; launched from the host no less than `HOST_LAUNCH_S`, while a graph
    takes `GRAPH_START_S` beside its kernels. A note of the clock takes ``note_s`` and is no launch.
    """

    def __init__(self, kernel_s: float) -> None:
        self.kernel_s = kernel_s
        self.now_s = 0.0
        self.host_s = HOST_AHEAD_S
        self.late_s: Iterator[float] = repeat(0.0)
        self.replays: list[list[str]] = []
        self.singles: list[str] = []
        self.captured: list[str] | None = None
        self.refuses_capture = False
        self.clock_mhz, self.sm = 1980.0, 0
        self.note_s = 0.0
        self.captured_note: Callable[[], None] | None = None
        self.module = SimpleNamespace(
            cuda=SimpleNamespace(
                Device=lambda: SimpleNamespace(use=lambda: None),
                Stream=self._stream,
                Event=self._event,
                get_elapsed_time=lambda begin, end: 1e3 * (end.at_s - begin.at_s),
                runtime=SimpleNamespace(CUDARuntimeError=OSError),
                driver=SimpleNamespace(CUDADriverError=OSError),
                memory=SimpleNamespace(OutOfMemoryError=MemoryError),
                function=SimpleNamespace(Module=lambda: NoteModule(self)),
            ),
            empty=lambda size, dtype: memory(np.zeros(size, dtype)),
        )

    def kernel(self, name: str) -> Callable[[], None]:
        def launch() -> None:
            if self.captured is not None:
                self.captured.append(name)
                return
            self.singles.append(name)
            self.now_s += max(self.kernel_s, HOST_LAUNCH_S)

        return launch

    def begin_capture(self) -> None:
        if self.refuses_capture:
            raise OSError("cudaErrorStreamCaptureUnsupported")
        self.captured = []

    def end_capture(self) -> Callable[[], None]:
        names, self.captured = self.captured, None
        assert names is not None
        if note := self.captured_note:
            assert names == []
            self.captured_note = None
            return note

        def replay() -> None:
            self.replays.append(names)
            self.now_s += GRAPH_START_S + len(names) * self.kernel_s

        return replay

    def enqueue_note(self, note: Callable[[], None]) -> None:
        def taking_time() -> None:
            note()
            self.now_s += self.note_s

        if self.captured is None:
            taking_time()
        else:
            self.captured_note = taking_time

    def _event(self, *, block: bool = False) -> Any:  # noqa: ARG002
        event = SimpleNamespace(at_s=0.0)

        def synchronize() -> None:
            self.host_s = max(self.host_s, HOST_AHEAD_S + event.at_s + next(self.late_s))

        event.synchronize = synchronize
        event.record = lambda _: setattr(event, "at_s", self.now_s)
        return event

    def _stream(self, *, non_blocking: bool) -> Any:
        assert non_blocking
        return HostStream(self)


@contextmanager
def gpu_of(kernel_s: float) -> Iterator[Gpu]:
    gpu = Gpu(kernel_s)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cupy", gpu.module)
        patch.delitem(sys.modules, "torch", raising=False)
        patch.setattr(replay, "monotonic_s", lambda: gpu.host_s)
        yield gpu


def replayed(repeater: GraphRepeater, gpu: Gpu) -> tuple[Any, list[list[str]]]:
    gpu.replays.clear()
    repeater.start()
    return repeater.stop(), gpu.replays


@pytest.mark.slow
@given(kernel_s=st.floats(1e-7, 0.5))
def test_a_graph_takes_some_milliseconds(kernel_s):
    with gpu_of(kernel_s) as gpu:
        timeline, replays = replayed(GraphRepeater([gpu.kernel("k")]), gpu)
    count = len(replays[0])
    assert count == 1 or count * kernel_s < 1.5 * GRAPH_S
    assert count == MAX_CALLS or count * kernel_s > GRAPH_S / 1.5
    assert len(set(np.diff(timeline.launches))) == 1
    per_launch_s = timeline.busy_s[-1] / timeline.launches[-1]
    assert per_launch_s == pytest.approx(kernel_s + GRAPH_START_S / count)


@pytest.mark.slow
@given(late_s=st.lists(st.floats(0, 0.02), max_size=20))
def test_a_host_that_wakes_up_late_does_not_move_the_batches(late_s):
    with gpu_of(20e-6) as gpu:
        repeater = GraphRepeater([gpu.kernel("k")])
        gpu.replays.clear()
        begin_s, gpu.late_s = gpu.now_s, chain(late_s, repeat(0.0))
        repeater.start()
        while len(gpu.replays) < len(late_s) + 3:
            pass  # the replays' thread is at it
        timeline = repeater.stop()
    ends_s = timeline.time_s - HOST_AHEAD_S - begin_s
    assert ends_s == pytest.approx(timeline.busy_s, abs=1e-9)


@pytest.mark.slow
@given(kernel_s=st.floats(1e-7, 0.5), turns=st.integers(1, 12))
def test_its_length_is_a_power_of_two_so_that_it_is_the_same_every_time(kernel_s, turns):
    with gpu_of(kernel_s) as gpu:
        repeater = GraphRepeater([gpu.kernel("k")] * turns)
        _, replays = replayed(repeater, gpu)
    assert len(replays[0]).bit_count() == 1


@pytest.mark.slow
@given(kernel_s=st.floats(1e-7, 0.5))
def test_only_the_first_launch_is_made_from_the_host(kernel_s):
    with gpu_of(kernel_s) as gpu:
        replayed(GraphRepeater([gpu.kernel("a"), gpu.kernel("b")]), gpu)
    assert gpu.singles == ["a"]


def test_with_another_process_it_goes_on_until_both_are_to_stop():
    asked_after_stop = 0

    def most(own: float) -> float:
        nonlocal asked_after_stop
        asked_after_stop += own == 0
        return float(own or asked_after_stop <= 12)  # the other process goes on for a while

    with gpu_of(GRAPH_S) as gpu:
        repeater = GraphRepeater([gpu.kernel("k")], most=most)
        _, replays = replayed(repeater, gpu)
    assert asked_after_stop > 12
    assert len(replays) >= 12


def test_with_another_process_graphs_are_as_long_as_where_a_launch_takes_longest():
    def most(own: float) -> float:
        return own if isinstance(own, bool) else max(own, GRAPH_S)

    with gpu_of(1e-6) as gpu:
        _, replays = replayed(GraphRepeater([gpu.kernel("k")], most=most), gpu)
    assert len(replays[0]) == 1


def test_graphs_of_many_turns_are_shorter():
    with gpu_of(1e-6) as gpu:
        _, replays = replayed(GraphRepeater([gpu.kernel("k")] * 12), gpu)
    assert len(replays[0]) * 12 == MAX_CALLS_OF_ALL


@pytest.mark.slow
@given(kernel_s=st.floats(1e-7, 1e-3), turns=st.integers(1, 12))
def test_a_turn_takes_some_milliseconds_however_short_its_graph(kernel_s, turns):
    with gpu_of(kernel_s) as gpu:
        timeline, replays = replayed(GraphRepeater([gpu.kernel("k")] * turns), gpu)
    assert GRAPH_S / 1.5 < timeline.busy_s[1] < 1.5 * GRAPH_S
    assert sum(map(len, replays)) == timeline.launches[-1]


def test_sets_of_buffers_take_turns():
    with gpu_of(20e-6) as gpu:
        repeater = GraphRepeater([gpu.kernel(name) for name in "abc"])
        gpu.replays.clear()
        repeater.start()
        while len(gpu.replays) < 7:
            pass  # the replays' thread is at it
        timeline = repeater.stop()
    replays = gpu.replays
    assert timeline.placements == 3
    assert all(len(set(names)) == 1 for names in replays)
    order = [names[0] for names in replays]
    assert order == [("abc")[i % 3] for i in range(len(order))]
    assert len({len(names) for names in replays}) == 1


def test_a_set_keeps_its_turn_while_its_graph_is_replayed():
    with gpu_of(2e-6) as gpu:
        repeater = GraphRepeater([gpu.kernel(name) for name in "abcdefghijkl"])
        gpu.replays.clear()
        repeater.start()
        while len(gpu.replays) < 40:
            pass  # the replays' thread is at it
        timeline = repeater.stop()
    order = "".join(names[0] for names in gpu.replays)
    assert order.startswith("aaaabbbbccccdddd")
    assert len(order) % 4 == 0
    assert len(timeline.launches) == 1 + len(order) // 4


def test_work_that_goes_round_fills_whole_rounds():
    with gpu_of(20e-6) as gpu:
        _, replays = replayed(GraphRepeater([gpu.kernel("k")], multiple=7), gpu)
    assert len(replays[0]) % 7 == 0


def test_work_that_cannot_be_captured_is_refused():
    with gpu_of(20e-6) as gpu:
        gpu.refuses_capture = True
        with pytest.raises(OSError, match="CaptureUnsupported"):
            GraphRepeater([gpu.kernel("k")])


def test_or_is_launched_from_the_host():
    with gpu_of(20e-6) as gpu:
        gpu.refuses_capture = True
        repeater = GraphRepeater([gpu.kernel("k")], must_capture=False)
        assert not repeater.captured
        gpu.singles.clear()
        timeline, replays = replayed(repeater, gpu)
    assert replays == []
    assert timeline.launches[-1] == len(gpu.singles)


def test_single_launches_are_those_of_the_first_set():
    with gpu_of(20e-6) as gpu:
        repeater = GraphRepeater([gpu.kernel("a"), gpu.kernel("b")])
        gpu.singles.clear()
        launches = repeater.launch(5)
    assert gpu.singles == ["a"] * 5
    assert launches.gpu_s == pytest.approx(5 * 20e-6)


def relaunched(repeater: GraphRepeater, gpu: Gpu, turn: int, *, once: bool) -> list[list[str]]:
    """Return the order in which the GPU launches, with `prepare` among the launches."""
    gpu.replays.clear()
    repeater.relaunch(turn, lambda _: gpu.replays.append(["prepare"]), once=once)
    return list(gpu.replays)


def test_a_relaunch_is_of_the_graphs_that_were_measured():
    with gpu_of(1e-5) as gpu:
        repeater = GraphRepeater([gpu.kernel("a"), gpu.kernel("b")])
        _, measured = replayed(repeater, gpu)
        graph = ["b"] * len(measured[0])
        assert relaunched(repeater, gpu, 1, once=False) == [["prepare"], graph]


def test_a_single_launch_comes_directly_after_a_random_number_of_others():
    with gpu_of(1e-5) as gpu:
        repeater = GraphRepeater([gpu.kernel("a"), gpu.kernel("b")])
        found = [relaunched(repeater, gpu, 1, once=True) for _ in range(50)]
        for *before, prepared, last in found:
            assert (prepared, last) == (["prepare"], ["b"])
            assert before == [["b"]] * len(before) != []
        assert len({len(one) for one in found}) > 4


def test_a_call_alone_takes_what_it_takes_among_others():
    with gpu_of(1e-4) as gpu:
        repeater = GraphRepeater([gpu.kernel("a")])
        assert repeater.call_s() == pytest.approx((1e-4, 1e-4 + GRAPH_START_S), rel=0.1)


def test_a_call_alone_takes_longer_where_the_first_of_a_graph_does_all():
    with gpu_of(1e-4) as gpu:
        kernel = gpu.kernel("a")

        def first_only() -> None:
            if not gpu.captured:
                kernel()

        together_s, alone_s = GraphRepeater([first_only]).call_s() or (0.0, 0.0)
        assert alone_s > 10 * together_s > 0


def test_work_without_a_graph_has_no_calls_to_compare():
    with gpu_of(1e-4) as gpu:
        gpu.refuses_capture = True
        assert GraphRepeater([gpu.kernel("a")], must_capture=False).call_s() is None


def test_a_launch_that_takes_long_is_made_only_once():
    with gpu_of(2 * GRAPH_S) as gpu:
        repeater = GraphRepeater([gpu.kernel("a")])
        assert relaunched(repeater, gpu, 0, once=False) == [["prepare"], ["a"]]
        assert relaunched(repeater, gpu, 0, once=True) == [["prepare"], ["a"]]


def test_all_calls_are_counted():
    with gpu_of(1e-5) as gpu:
        repeater = GraphRepeater([gpu.kernel("a"), gpu.kernel("b")])
        replayed(repeater, gpu)
        before = repeater.launches
        assert before >= sum(map(len, gpu.replays))
        made = 0
        for once in (False, True):
            made += sum(map(len, relaunched(repeater, gpu, 0, once=once))) - len(["prepare"])
        assert repeater.launches - before == made


def test_turns_are_used_from_the_first_one_on():
    with gpu_of(1e-3) as gpu:
        repeater = GraphRepeater([gpu.kernel(name) for name in "abcdefgh"])
        assert repeater.used == 0
        _, replays = replayed(repeater, gpu)
        assert repeater.used == len({names[0] for names in replays})


class Result:
    """The result of a call, of which only a few may exist at a time."""

    alive = 0

    def __init__(self) -> None:
        Result.alive += 1

    def __del__(self) -> None:
        Result.alive -= 1


@pytest.mark.parametrize("refuses", [False, True])
def test_what_the_last_call_returned_is_kept_and_no_more(refuses):
    most = 0

    def call() -> Result:
        nonlocal most
        kernel()
        most = max(most, Result.alive + 1)
        return Result()

    with gpu_of(1e-3) as gpu:
        gpu.refuses_capture = refuses
        kernel = gpu.kernel("a")
        repeater = GraphRepeater([call], must_capture=False)
        replayed(repeater, gpu)
        given: list[object] = []
        for once in (False, True):
            returned = repeater.relaunch(0, given.append, once=once)
            assert isinstance(returned, Result)
    assert all(isinstance(one, Result) for one in given)
    assert most <= 5
