"""Notes of the SM clock between replays, on a GPU whose clock is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from host_cupy import LAUNCH_S, HostGpu, host_gpu
from hypothesis import given, strategies as st

from pytest_gpuenergy.devices import (
    CLOCK_SPAN_S,
    MIN_SPAN_NS,
    GraphRepeater,
    Timeline,
    clock_samples,
)
from pytest_gpuenergy.devices.cuda import clock_notes


def work(gpu: HostGpu) -> Callable[[], None]:
    """Launch work that takes `LAUNCH_S`."""
    return lambda: gpu._launch((1,), (1,), ())


def run(repeater: GraphRepeater, gpu: HostGpu, gpu_s: float) -> Timeline:
    """Replay for at least ``gpu_s`` of the GPU's time."""
    until_s = gpu.now_s + gpu_s
    repeater.start()
    while gpu.now_s < until_s:
        pass  # the replays' thread is at it
    return repeater.stop()


def test_the_clock_is_known_every_50_ms():
    with host_gpu(lambda: None) as gpu:
        gpu.clock_mhz = 1977.8
        timeline = run(GraphRepeater([work(gpu)]), gpu, 2.0)
    assert timeline.clocks is not None
    assert timeline.clocks.mhz == pytest.approx(1977.8, rel=1e-6)
    spans_s = timeline.clocks.end_s - timeline.clocks.begin_s
    assert spans_s[:-1] == pytest.approx(CLOCK_SPAN_S, rel=0.1)


def test_it_is_known_from_the_start_to_the_end_of_the_launches():
    with host_gpu(lambda: None) as gpu:
        timeline = run(GraphRepeater([work(gpu)]), gpu, 0.5)
    clocks = timeline.clocks
    assert clocks is not None
    assert clocks.begin_s[0] == pytest.approx(timeline.time_s[0])
    assert clocks.begin_s[1:] == pytest.approx(clocks.end_s[:-1])
    assert 0 <= timeline.time_s[-1] - clocks.end_s[-1] < MIN_SPAN_NS / 1e9


def test_each_run_has_its_own_clocks():
    with host_gpu(lambda: None) as gpu:
        repeater = GraphRepeater([work(gpu)])
        for clock_mhz in (1500.0, 1980.0):
            gpu.clock_mhz = clock_mhz
            timeline = run(repeater, gpu, 0.3)
            assert timeline.clocks is not None
            assert timeline.clocks.mhz[1:] == pytest.approx(clock_mhz, rel=1e-6)


def test_launches_from_the_host_are_noted_too():
    def refuse() -> None:
        raise RuntimeError

    with host_gpu(lambda: None) as gpu:
        inner = work(gpu)

        def turn() -> None:
            # As long as nothing but the note is captured, there is nothing to refuse.
            (refuse if gpu._captured is not None else inner)()

        repeater = GraphRepeater([turn], must_capture=False)
        timeline = run(repeater, gpu, 0.3)
    assert not repeater.captured
    assert timeline.clocks is not None


def test_notes_are_no_part_of_the_time_of_launches(monkeypatch):
    with host_gpu(lambda: None) as gpu:
        made = gpu.enqueue_note

        def slow_note(note: Callable[[], None]) -> None:
            made(note)
            made(lambda: setattr(gpu, "now_s", gpu.now_s + 5e-6))

        monkeypatch.setattr(gpu, "enqueue_note", slow_note)
        timeline = run(GraphRepeater([work(gpu)]), gpu, 1.0)
    assert timeline.busy_s[-1] == pytest.approx(LAUNCH_S * timeline.launches[-1], rel=1e-9)
    assert timeline.time_s[-1] - timeline.time_s[0] > timeline.busy_s[-1]


@pytest.mark.parametrize("error", [OSError("no PTX compiler"), MemoryError()])
def test_a_gpu_that_cannot_note_the_clock_runs_without(error, monkeypatch):
    def fail() -> Any:
        raise error

    with host_gpu(lambda: None) as gpu:
        monkeypatch.setattr(gpu.module.cuda.function, "Module", fail)
        timeline = run(GraphRepeater([work(gpu)]), gpu, 0.2)
    assert timeline.clocks is None
    assert timeline.launches[-1] * LAUNCH_S == pytest.approx(timeline.busy_s[-1])


def test_a_count_that_a_kernel_has_overwritten_is_not_believed():
    with host_gpu(lambda: None) as gpu:
        empty = gpu.module.empty
        buffers: list[Any] = []

        def kept(*arguments: Any, **options: Any) -> Any:
            buffers.append(empty(*arguments, **options))
            return buffers[-1]

        gpu.module.empty = kept
        repeater = GraphRepeater([work(gpu)])
        (count,) = (one for one in buffers if one.size == 1)
        count[0] = 12345
        assert run(repeater, gpu, 0.2).clocks is None


def test_the_latest_notes_of_a_long_run_are_kept(monkeypatch):
    monkeypatch.setattr(clock_notes, "MAX_NOTES", 8)
    with host_gpu(lambda: None) as gpu:
        timeline = run(GraphRepeater([work(gpu)]), gpu, 2.0)
    clocks = timeline.clocks
    assert clocks is not None
    assert len(clocks.mhz) in (6, 7)
    assert timeline.time_s[-1] - clocks.end_s[-1] < MIN_SPAN_NS / 1e9


def notes_of(clocks_mhz: Sequence[float], sms: Sequence[int], step_ns: int) -> Any:
    """Return notes ``step_ns`` apart, by SMs whose counters started at different times."""
    ns = 10**18 + step_ns * np.arange(len(sms), dtype=np.uint64)
    cycles = np.concatenate(([0.0], np.cumsum(np.multiply(clocks_mhz, step_ns / 1e3))))
    starts = 10**12 + 7919 * np.array(sms, dtype=np.uint64)
    return np.stack(
        [ns, starts + np.round(cycles).astype(np.uint64), np.array(sms, dtype=np.uint64)], axis=1
    ).astype(np.uint64)


@given(clocks=st.lists(st.floats(200, 3000), min_size=1, max_size=40))
def test_each_span_has_its_own_clock(clocks):
    times_s = 0.05 * np.arange(len(clocks) + 1)
    found = clock_samples(notes_of(clocks, [3] * (len(clocks) + 1), 50_000_000), times_s)
    assert found is not None
    assert found.mhz == pytest.approx(clocks, rel=1e-6)
    assert found.begin_s.tolist() == times_s[:-1].tolist()
    assert found.end_s.tolist() == times_s[1:].tolist()


@given(clock=st.floats(200, 3000), sms=st.lists(st.integers(0, 3), min_size=5, max_size=40))
def test_the_counters_of_two_sms_are_not_compared(clock, sms):
    found = clock_samples(notes_of([clock] * (len(sms) - 1), sms, 50_000_000), np.arange(len(sms)))
    assert found is not None
    assert found.mhz == pytest.approx(clock, rel=1e-6)
    assert len(found.mhz) == len(sms) - len(set(sms))
    assert (found.end_s > found.begin_s).all()


@given(st.lists(st.tuples(*[st.integers(0, 2**64 - 1)] * 3), max_size=12))
def test_notes_that_a_kernel_has_overwritten_are_plausible_or_left_out(notes):
    table = np.array(notes, dtype=np.uint64).reshape(-1, 3)
    found = clock_samples(table, np.arange(len(notes), dtype=np.float64))
    if found is not None:
        assert ((found.mhz > 0) & (found.mhz < 10_000)).all()
        assert (found.end_s > found.begin_s).all()


@pytest.mark.parametrize(
    "notes",
    [
        np.zeros((0, 3)),
        np.zeros((1, 3)),
        np.zeros((5, 3)),
        notes_of([1980.0] * 4, [1, 2, 3, 4, 5], 50_000_000),
        notes_of([1980.0] * 4, [1] * 5, MIN_SPAN_NS - 1),
        notes_of([1e7] * 4, [1] * 5, 50_000_000),
    ],
)
def test_without_two_good_notes_the_clock_is_unknown(notes):
    times_s = np.arange(len(notes), dtype=np.float64)
    assert clock_samples(notes.astype(np.uint64), times_s) is None
