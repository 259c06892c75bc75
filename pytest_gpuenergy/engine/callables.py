"""Verifies and measures Python callables that launch kernels on the current CUDA stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from msgspec.structs import replace

from pytest_gpuenergy import devices
from pytest_gpuenergy.devices import (
    Launches,
    Repeater,
    Timeline,
    monotonic_s,
    reset_persisting_l2,
    wait_for_context,
)
from pytest_gpuenergy.engine.arena_check import falsified
from pytest_gpuenergy.engine.comparison import compare
from pytest_gpuenergy.engine.harness import Harness, Subject
from pytest_gpuenergy.engine.results import (
    Expected,
    Specification,
    arrays_in,
    contents_of,
    copied,
    host_array,
    numbers_of,
    overlap,
    overwrite,
)
from pytest_gpuenergy.record import Correctness, Measurement, WorkloadInfo
from pytest_gpuenergy.support import KernelFault, ResultError
from pytest_gpuenergy.workloads import Array

Arguments = tuple[object, ...]

_SPREAD = 2.0**-5
"""The most by which an element is scaled differently from the others, see `_Inputs`."""

_CLOCKS_RATIO, _CLOCKS_S = 0.02, 0.1
"""The largest difference between CUDA events and the clock, which are read milliseconds apart."""

_LEFT_RATIO, _LEFT_S = 0.01, 0.02
"""The longest time that the GPU works after the last launch: a share of the whole, and seconds."""

_ALONE_RATIO, _ALONE_S = 2.0, 50e-6
"""The most that a call alone may take longer: launching a graph takes some microseconds."""


@dataclass(frozen=True)
class VerifiedCallable:
    """A callable with its arguments, whose first result was correct.

    Attributes:
        function: the callable.
        args: its arguments.
        correctness: the correctness of the first result; None without a specification.
        check: verifies the callable once more, after a measurement.
    """

    function: Callable[..., Any]
    args: tuple[object, ...]
    correctness: Correctness | None
    check: Callable[[Any], object]

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        args: tuple[object, ...],
        specification: Specification | None,
    ) -> VerifiedCallable:
        """Call ``function`` once, before it is measured, because it may change its arguments.

        Raises:
            KernelFault: the result is wrong.
            ResultError: the result cannot be compared.
        """
        if specification is None:
            return cls(function, args, None, lambda _: None)
        expected, correctness = first_call(function, args, specification)
        return cls(function, args, correctness, CallableCheck(expected, args))

    def measure(self, harness: Harness, info: WorkloadInfo, subject: Subject) -> Measurement:
        """Measure replays of its CUDA graph; the flag ``host_gaps`` says that it has none."""
        captured = []

        @contextmanager
        def repeater() -> Iterator[devices.GraphRepeater | WatchedRepeater]:
            replayed = devices.GraphRepeater(
                [lambda: self.function(*self.args)], must_capture=False
            )
            captured.append(replayed.captured)
            if not harness.in_real_time:
                yield replayed
                return
            watched = WatchedRepeater(replayed)
            yield watched
            watched.check_calls()

        measurement = harness.measure_callable(repeater, info, subject, "callable", self.check)
        measurement = replace(measurement, correctness=self.correctness)
        return measurement if all(captured) else measurement.flagged("host_gaps")


def first_call(
    function: Callable[..., object], args: Arguments, specification: Specification
) -> tuple[Expected, Correctness]:
    """Call a callable and compare its results, for its arguments and for other inputs.

    Raises:
        KernelFault: a result is wrong.
        ResultError: as of `expect` and `Expected.check`.
    """
    expected = specification.of(args)
    inputs = _Inputs(args)
    returned = function(*args)
    correctness = expected.check(returned)
    if specification.is_function:
        inputs.check_others(function, returned, expected, specification)
    return expected, correctness


class _Inputs:
    """The arrays among a callable's arguments, recorded before its first call."""

    def __init__(self, args: Arguments) -> None:
        self._args = args
        self._before = {name: contents_of(part) for name, part in arrays_in(args, "args")}
        self._draw = np.random.default_rng()

    def check_others(
        self,
        function: Callable[..., object],
        returned: object,
        usual: Expected,
        specification: Specification,
    ) -> None:
        """Compare the callable's results for other inputs, after its first call.

        Floating-point arrays get other contents of the same signs and about the same size: first in
        the same memory, whose address the callable may have stored, and then in other memory. In
        the end they have their own contents again. Nothing is done if the first call has changed an
        argument, or if the callable or the reference does not accept such inputs.

        Args:
            function: the callable.
            returned: the result of its first call; arguments that share its memory are outputs.
            usual: the correct result for its own arguments.
            specification: gives the correct result for others.

        Raises:
            KernelFault: a result is wrong.
        """
        inputs = self._inputs(returned)
        if inputs is None:
            return
        try:
            if not self._was_right(function, self._args, inputs, usual, specification):
                return
        finally:
            _fill(self._args, inputs)
        try:
            copies = tuple(map(copied, self._args))
        except Exception:  # whatever their library raises, for example when there is no room
            return
        parts, other_parts = dict(arrays_in(self._args, "args")), dict(arrays_in(copies, "args"))
        if all(parts[name] is not other_parts[name] for name in inputs):
            self._was_right(function, copies, inputs, usual, specification)

    def _inputs(self, returned: object) -> dict[str, Array] | None:
        """Return the floating-point contents that may be changed, by place; None for none."""
        outputs = [part for _, part in arrays_in(returned, "result")]
        contents: dict[str, Array] = {}
        for name, part in arrays_in(self._args, "args"):
            if any(overlap(part, output) for output in outputs):
                continue
            if contents_of(part) != self._before[name]:
                return None
            try:
                content = np.array(host_array(part, "An argument"))
            except ResultError:
                return None
            if content.dtype.kind == "f" and content.size:
                contents[name] = content
        return contents or None

    def _was_right(
        self,
        function: Callable[..., object],
        args: Arguments,
        inputs: Mapping[str, Array],
        usual: Expected,
        specification: Specification,
    ) -> bool:
        """Call the callable with other contents in ``args``; return whether that was possible.

        Raises:
            KernelFault: the result is wrong.
        """
        for narrow in (0.0, _SPREAD):
            # All by one factor, which keeps arrays sorted, symmetric or positive definite; then, if
            # that changes nothing, each element a little differently.
            changed = {}
            for name, content in inputs.items():
                factor = self._draw.uniform(0.5, 0.9)
                spread = 1 + narrow * self._draw.uniform(-1.0, 1.0, content.shape)
                scaled = content.astype(np.float64) * factor * spread
                changed[name] = np.asarray(scaled.astype(content.dtype))
            if not _fill(args, changed):
                return False
            try:
                expected = specification.of(args)
                if not _differs(expected, usual):
                    continue
                returned = function(*args)
            except Exception:  # neither of the two has to accept these inputs
                return False
            try:
                expected.check(returned)
            except KernelFault as fault:
                raise KernelFault(
                    fault.outcome,
                    f"Correct at first, wrong when its arguments have other contents: {fault}",
                ) from None
            return True
        return False


def _differs(expected: Expected, other: Expected) -> bool:
    """Return whether a result that is right for one would be wrong for the other."""
    try:
        compare(dict(expected.arrays), other.arrays, other.bounds, seed=0)
    except Exception:  # of other shapes, for example
        return True
    return False


def _fill(args: Arguments, contents: Mapping[str, Array]) -> bool:
    """Write contents to the arrays among ``args``; return whether all could be written."""
    try:
        for name, part in arrays_in(args, "args"):
            if name in contents:
                overwrite(part, contents[name])
    except Exception:  # whatever their library raises
        return False
    return True


class Replayed(Protocol):
    """A measured callable that can be called again, such as a `GraphRepeater`."""

    launches: int

    def relaunch(self, turn: int, prepare: Callable[[object], object], *, once: bool) -> object: ...


class WatchableRepeater(Repeater, Protocol):
    """A repeater that can report how long calls take, see `GraphRepeater.call_s`."""

    def call_s(self) -> tuple[float, float] | None: ...


class WatchedRepeater:
    """A callable's repeater, checked through the driver, which the callable cannot replace.

    Other attributes are those of the repeater.

    Args:
        repeater: a `GraphRepeater`.
        now_s: the machine's monotonic clock.
        wait: waits until the GPU has nothing to do for this process.
        forget: releases the cache lines that earlier launches have set aside for persistence.
    """

    def __init__(
        self,
        repeater: WatchableRepeater,
        now_s: Callable[[], float] = monotonic_s,
        wait: Callable[[], object] = wait_for_context,
        forget: Callable[[], object] = reset_persisting_l2,
    ) -> None:
        self._repeater = repeater
        self._now_s, self._wait, self._forget = now_s, wait, forget
        self._began_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._repeater, name)

    def start(self) -> None:
        """Start the repeater, with no cache lines set aside."""
        self._forget()
        self._began_s = self._now_s()
        self._repeater.start()

    def stop(self) -> Timeline:
        """Stop as the repeater does.

        Raises:
            KernelFault: the timeline differs from the time that has passed, or the GPU is still
                working for this process after the last launch.
        """
        timeline = self._repeater.stop()
        ended_s = self._now_s()
        self._wait()
        passed_s, left_s = ended_s - self._began_s, self._now_s() - ended_s
        events_s = float(timeline.time_s[-1] - timeline.time_s[0])
        if abs(events_s - passed_s) > _CLOCKS_RATIO * passed_s + _CLOCKS_S:
            raise KernelFault(
                "correctness",
                f"The CUDA events around the callable's launches tell of {events_s:.3g} s, while "
                f"{passed_s:.3g} s have passed: something has replaced functions of CuPy, or the "
                "GPU's clock is wrong.",
            )
        if left_s > _LEFT_RATIO * passed_s + _LEFT_S:
            raise KernelFault(
                "correctness",
                f"The GPU went on for {1e3 * left_s:.3g} ms after the callable's launches had "
                "ended: it works on another stream, which the current one has to wait for.",
            )
        return timeline

    def launch(self, count: int) -> Launches:
        """Launch as the repeater does."""
        return self._repeater.launch(count)

    def check_calls(self) -> None:
        """Check that a call takes as long in a graph of many calls as alone.

        Raises:
            KernelFault: calls in a graph are so short that most of them cannot have done the work.
        """
        if (times_s := self._repeater.call_s()) is None:
            return
        together_s, alone_s = times_s
        if alone_s > _ALONE_RATIO * together_s + _ALONE_S:
            raise KernelFault(
                "correctness",
                f"A call takes {1e6 * together_s:.4g} us among others in a CUDA graph and "
                f"{1e6 * alone_s:.4g} us alone: some of the calls leave out work.",
            )


class CallableCheck:
    """Checks a callable after its measurement; created once its first result has been compared.

    Args:
        expected: the correct result.
        args: its arguments; arrays among them that share no memory with the result must keep their
            current contents.
        draw: chooses the elements to make wrong; by default unpredictable.
    """

    def __init__(
        self,
        expected: Expected,
        args: tuple[object, ...],
        draw: np.random.Generator | None = None,
    ) -> None:
        self._expected = expected
        self._args = dict(arrays_in(args, "args"))
        self._before = {name: contents_of(part) for name, part in self._args.items()}
        self._draw = draw or np.random.default_rng()

    def __call__(self, replayed: Replayed) -> None:
        """Overwrite the result and have the callable, or its graph, compute it again.

        As in `check_again`, it first runs as it was measured, and then once. Parts of the result
        that are not arrays, such as numbers, are not overwritten.

        Raises:
            KernelFault: the result is wrong now, or an argument has changed.
            ResultError: an array of the result cannot be overwritten or compared.
        """
        right = self._made_again(replayed, {}, once=False)
        false = {name: falsified(value, self._draw) for name, value in right.items()}
        self._made_again(replayed, false, once=True)

    def _made_again(
        self, replayed: Replayed, contents: Mapping[str, Array], *, once: bool
    ) -> dict[str, Array]:
        """Return the result, computed in memory full of ``contents``, or of poison if empty."""

        def prepare(returned: object) -> None:
            for name, part in arrays_in(returned, "result"):
                content = contents[name] if contents else _poison(_copy(part))
                try:
                    overwrite(part, content)
                    kept = contents or np.array_equal(_copy(part), content, equal_nan=True)
                except Exception as error:
                    raise ResultError(
                        f"The callable's {name} cannot be overwritten ({error}), so it cannot be "
                        "verified after the measurement: return a writable array."
                    ) from None
                if not kept:
                    raise KernelFault(
                        "correctness",
                        f"The callable's {name} does not hold what was written to it: it is "
                        "computed when it is read, which is not measured.",
                    )

        returned = replayed.relaunch(0, prepare, once=once)
        result = dict(arrays_in(returned, "result"))
        try:
            self._expected.check(returned)
            for name, part in self._args.items():
                shared = any(overlap(part, other) for other in result.values())
                if not shared and contents_of(part) != self._before[name]:
                    raise KernelFault("correctness", f"The argument {name} has changed.")
        except KernelFault as fault:
            raise KernelFault(
                fault.outcome,
                f"Correct at first, wrong after {replayed.launches} calls: {fault}"
                f"{self._in_place(result)}",
            ) from None
        return {name: _copy(part) for name, part in result.items()}

    def _in_place(self, result: Mapping[str, object]) -> str:
        """Return a possible cause, as a sentence, if the result shares memory with an argument."""
        for name, part in result.items():
            for argument, other in self._args.items():
                if overlap(part, other):
                    return (
                        f" The {name} shares memory with {argument}: if that is also an input, "
                        "the first call overwrote it, and the calls that were measured computed "
                        "something else."
                    )
        return ""


def _copy(part: object) -> Array:
    return np.array(numbers_of(part, "An array of the callable's result"))


def _poison(array: Array) -> Array:
    """Return an array full of NaN, of True, or of the largest integer."""
    dtype: Any = array.dtype
    if dtype.kind == "b":
        return np.ones_like(array)
    return np.full_like(array, np.iinfo(dtype).max if dtype.kind in "iu" else np.nan)
