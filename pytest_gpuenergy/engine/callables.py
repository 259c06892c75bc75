"""Callables that launch on the current stream: verified at first, then measured in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from pytest_gpuenergy.engine.callable_check import CallableCheck, WatchedRepeater
from pytest_gpuenergy.engine.callable_inputs import first_call
from pytest_gpuenergy.engine.harness import Harness, Subject
from pytest_gpuenergy.engine.results import Specification
from pytest_gpuenergy.record import Correctness, Measurement, WorkloadInfo

if TYPE_CHECKING:
    from pytest_gpuenergy.devices import GraphRepeater


@dataclass(frozen=True)
class VerifiedCallable:
    """A callable with its arguments, whose first result was right.

    Attributes:
        correctness: of that result; None without a specification.
        check: verifies it once more, after a measurement.
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
        """Call it once, before it is measured, because it may change its arguments.

        Raises:
            KernelFault: it returns something else than it must.
            ResultError: its result cannot be compared.
        """
        if specification is None:
            return cls(function, args, None, lambda _: None)
        expected, correctness = first_call(function, args, specification)
        return cls(function, args, correctness, CallableCheck(expected, args))

    def measure(self, harness: Harness, info: WorkloadInfo, subject: Subject) -> Measurement:
        """Measure replays of its graph; flagged if it could not be captured in one."""
        from pytest_gpuenergy.devices import GraphRepeater

        captured = []

        @contextmanager
        def repeater() -> Iterator[GraphRepeater | WatchedRepeater]:
            replayed = GraphRepeater([lambda: self.function(*self.args)], must_capture=False)
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
