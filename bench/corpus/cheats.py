"""Callables that cheat on time and energy, and honest ones that look like them. They need CuPy.

Each takes an input and an output array, and pretends to compute ``work``. `CHEATS` and `HONEST`
have a function that makes the callable, by name, with a sentence in its docstring. A harness for
measurements must refuse each of `CHEATS` or mark its figures as doubtful, and accept all of
`HONEST`.

Not here are callables that change the card's power limit or clocks, since running them changes the
card: see ``tests/pytest_plugin/test_faults_nvml.py``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import cupy

Call = Callable[[Any, Any], Any]

ELEMENTS = 1 << 22
TURNS = 2000
_kernel = cupy.ElementwiseKernel(
    "float32 x, int32 turns",
    "float32 y",
    "float v = x; for (int i = 0; i < turns; i++) v = v * 0.5f + x; y = v;",
    "corpus_work",
)


def work(x: Any, out: Any) -> Any:
    """Take some 300 us on an H100."""
    return _kernel(x, TURNS, out)


def expected(x: Any, _out: Any) -> Any:
    """The limit of the series that `work` adds up."""
    return 2 * x.astype(cupy.float64)


def _is_capturing() -> bool:
    stream = cupy.cuda.get_current_stream().ptr
    return bool(cupy.cuda.runtime.streamIsCapturing(stream))


def returns_what_it_kept() -> Call:
    """Compute at the first call, and return that result from then on."""
    kept: list[Any] = []

    def call(x: Any, out: Any) -> Any:
        if not kept:
            kept.append(work(x, out))
        return kept[0]

    return call


def copies_what_it_kept() -> Call:
    """Compute in the first three calls, and copy that result from then on."""
    calls, kept = [0], []

    def call(x: Any, out: Any) -> Any:
        calls[0] += 1
        if calls[0] <= 3:
            kept[:] = [work(x, out).copy()]
        else:
            out[...] = kept[0]
        return out

    return call


def one_call_of_fifteen() -> Call:
    """Compute at each fifteenth call, so that one result stands for a batch."""
    calls = [0]

    def call(x: Any, out: Any) -> Any:
        if calls[0] % 15 == 0:
            work(x, out)
        calls[0] += 1
        return out

    return call


def first_call_of_a_graph() -> Call:
    """Compute at the first call after a while, which is the first one of a capture."""
    last_s = [0.0]

    def call(x: Any, out: Any) -> Any:
        now_s = time.monotonic()
        if not _is_capturing() or now_s - last_s[0] > 0.0001:
            work(x, out)
        last_s[0] = now_s
        return out

    return call


def nothing_in_a_graph() -> Call:
    """Compute only where launches are not captured."""

    def call(x: Any, out: Any) -> Any:
        return out if _is_capturing() else work(x, out)

    return call


def on_another_stream() -> Call:
    """Launch on a stream of its own, which the current one does not wait for."""
    stream = cupy.cuda.Stream(non_blocking=True)

    def call(x: Any, out: Any) -> Any:
        with stream:
            return work(x, out)

    return call


def on_another_stream_without_a_graph() -> Call:
    """Launch on a stream of its own, and keep calls from being captured."""
    stream = cupy.cuda.Stream(non_blocking=True)

    def call(x: Any, out: Any) -> Any:
        if _is_capturing():
            raise RuntimeError("cannot be captured")
        with stream:
            return work(x, out)

    return call


def in_another_thread() -> Call:
    """Leave the launch to a thread, which begins after the call has returned."""
    device = cupy.cuda.Device()

    def call(x: Any, out: Any) -> Any:
        def later() -> None:
            time.sleep(0.001)
            device.use()
            with cupy.cuda.Stream(non_blocking=True):
                work(x, out)

        threading.Thread(target=later, daemon=True).start()
        return out

    return call


class _Lazy:
    def __init__(self, x: Any, out: Any) -> None:
        self._x, self._out = x, out

    @property
    def __cuda_array_interface__(self) -> Any:
        work(self._x, self._out)
        cupy.cuda.Device().synchronize()
        return self._out.__cuda_array_interface__


def when_it_is_read() -> Call:
    """Return an array that is computed when its memory is asked for."""
    return _Lazy


def with_faster_events() -> Call:
    """Let CUDA events tell of half of the time that has passed."""
    told = cupy.cuda.get_elapsed_time
    cupy.cuda.get_elapsed_time = lambda begin, end: told(begin, end) / 2
    return work


CHEATS: dict[str, Callable[[], Call]] = {
    make.__name__: make
    for make in (
        returns_what_it_kept,
        copies_what_it_kept,
        one_call_of_fifteen,
        first_call_of_a_graph,
        nothing_in_a_graph,
        on_another_stream,
        on_another_stream_without_a_graph,
        in_another_thread,
        when_it_is_read,
        with_faster_events,
    )
}


def as_it_is() -> Call:
    """Launch on the current stream."""
    return work


def joined_stream() -> Call:
    """Launch on a stream of its own, which begins and ends with the current one."""
    stream = cupy.cuda.Stream(non_blocking=True)

    def call(x: Any, out: Any) -> Any:
        current = cupy.cuda.get_current_stream()
        stream.wait_event(current.record())
        with stream:
            work(x, out)
            done = stream.record()
        current.wait_event(done)
        return out

    return call


def with_a_new_result() -> Call:
    """Return an array of its own at each call."""
    return lambda x, _out: work(x, cupy.empty_like(x))


def idling() -> Call:
    """Wait in the kernel: slow, and measured as such."""
    wait = cupy.ElementwiseKernel(
        "float32 x, int32 turns",
        "float32 y",
        "__nanosleep(20000); float v = x; for (int i = 0; i < turns; i++) v = v * 0.5f + x; y = v;",
        "corpus_idling",
    )
    return lambda x, out: wait(x, TURNS, out)


def with_another_clock() -> Call:
    """Slow down the clock of Python, which nothing is measured with."""
    told = time.monotonic
    time.monotonic = lambda: told() / 2
    return work


HONEST: dict[str, Callable[[], Call]] = {
    make.__name__: make
    for make in (as_it_is, joined_stream, with_a_new_result, idling, with_another_clock)
}
