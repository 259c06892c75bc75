"""Callables that return a stored result are detected by their first calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from device_arrays import Tensor

from pytest_gpuenergy.devices import HostClock, Launches, Timeline
from pytest_gpuenergy.engine import CallableCheck, Specification, WatchedRepeater, first_call
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import ErrorBound

X = np.linspace(0.5, 4.0, 1000, dtype=np.float32)


def double(x: Any) -> Any:
    return 2 * x


def called(function: Callable[..., Any], *args: Any, reference: Any = double) -> float:
    """Return the error of the first call."""
    _, correctness = first_call(function, args, Specification(reference))
    return correctness.max_relative_error


def kept() -> Callable[[Any], Any]:
    results: list[Any] = []

    def function(x: Any) -> Any:
        results.append(2 * x)
        return results[0]

    return function


def kept_by_address() -> Callable[[Any], Any]:
    results: dict[int, Any] = {}

    def function(x: Any) -> Any:
        return results.setdefault(x.ctypes.data, 2 * x)

    return function


def of_the_first_input() -> Callable[[Any], Any]:
    inputs: list[Any] = []

    def function(x: Any) -> Any:
        inputs.append(x)
        return 2 * inputs[0]

    return function


def in_a_buffer_that_looks_right() -> Callable[[Any], Any]:
    buffer = np.full_like(X, np.nan)

    def function(x: Any) -> Any:
        np.copyto(buffer, 2 * x, where=np.isnan(buffer))
        return buffer

    return function


@pytest.mark.parametrize(
    "make", [kept, kept_by_address, of_the_first_input, in_a_buffer_that_looks_right]
)
def test_a_callable_that_returns_what_it_kept_is_wrong(make):
    with pytest.raises(
        KernelFault, match=r"^Correct at first, wrong when its arguments have other"
    ):
        called(make(), X.copy())


def test_one_that_depends_on_the_direction_only_is_found_too():
    def direction(x: Any) -> Any:
        return x / np.sqrt((x * x).sum())

    results: list[Any] = []

    def keeps(x: Any) -> Any:
        results.append(direction(x))
        return results[0]

    assert called(direction, X.copy(), reference=direction) < 1e-6
    with pytest.raises(KernelFault, match="Correct at first"):
        called(keeps, X.copy(), reference=direction)


def test_a_right_callable_is_called_elsewhere_and_its_arguments_are_restored():
    x, seen = X.copy(), set()

    def function(given: Any) -> Any:
        seen.add(given.ctypes.data)
        return 2 * given

    assert called(function, x) == 0
    assert len(seen) == 2
    np.testing.assert_array_equal(x, X)


def test_with_an_array_as_the_reference_it_is_called_once():
    calls = []

    def function(x: Any) -> Any:
        calls.append(1)
        return 2 * x

    assert called(function, X, reference=2 * X) == 0
    assert len(calls) == 1


@pytest.mark.parametrize("on_gpu", [True, False])
def test_tensors_in_lists_are_changed_too(on_gpu):
    results: list[Any] = []

    def keeps(parts: Any) -> Any:
        results.append(Tensor(parts[0].data + parts[1].data, on_gpu))
        return results[0]

    parts = [Tensor(X.copy(), on_gpu), Tensor(X.copy(), on_gpu)]
    with pytest.raises(KernelFault, match="Correct at first"):
        called(keeps, parts, reference=lambda p: p[0].data + p[1].data)
    np.testing.assert_array_equal(parts[0].data, X)


def picky(x: Any) -> Any:
    if x.sum() != X.sum():
        raise ValueError("not normalized")
    return 2 * x


@pytest.mark.parametrize(("function", "reference"), [(picky, double), (double, picky)])
def test_inputs_that_one_of_the_two_does_not_take_are_left_out(function, reference):
    x = X.copy()
    assert called(function, x, reference=reference) == 0
    np.testing.assert_array_equal(x, X)


def test_an_argument_that_cannot_be_written_to_is_left_alone():
    x = X.copy()
    x.flags.writeable = False
    assert called(double, x) == 0


def test_an_output_among_the_arguments_is_not_an_input():
    out = np.full_like(X, np.nan)

    def into(x: Any, result: Any) -> Any:
        assert np.isnan(result).all() or (result > 0).all()
        np.multiply(x, 2, out=result)
        return result

    assert called(into, X.copy(), out, reference=lambda x, _: 2 * x) == 0


def test_sorted_positive_definite_and_integer_arguments_stay_so():
    half = np.random.default_rng(0).standard_normal((20, 20))
    matrix, places = half @ half.T + np.eye(20), np.arange(20)

    def solved(m: Any, edges: Any, values: Any, i: Any) -> Any:
        assert (np.diff(edges) > 0).all()
        assert (i == places).all()
        return np.linalg.cholesky(m)[i], np.searchsorted(edges, values)

    edges = np.linspace(0, 1, 20)
    bound = ErrorBound(1e-5, 1e-5)
    args = (matrix, edges, half[0], places)
    _, found = first_call(solved, args, Specification(solved, bound))
    assert found.max_relative_error == 0


RUN_S = 3.0


class Card:
    """A card with its own time, on which launches take as long as the events around them tell.

    Attributes:
        told: the part of the time that the events tell.
        left_s: of work on other streams, after the launches.
        calls_s: see `GraphRepeater.call_s`.
        reset: how often persisting lines have been given back.
    """

    def __init__(self) -> None:
        self.now_s, self.told, self.left_s = 100.0, 1.0, 0.0
        self.calls_s: tuple[float, float] | None = (20e-6, 24e-6)
        self.reset = 0

    def start(self) -> None:
        self._began_s = self.now_s

    def stop(self) -> Timeline:
        self.now_s += RUN_S
        times = self._began_s + np.array([0.0, self.told * RUN_S])
        return Timeline(times, np.array([0.0, 1000.0]), times - times[0])

    def launch(self, count: int) -> Launches:
        return Launches(count, self.now_s, self.now_s, 0.0)

    def call_s(self) -> tuple[float, float] | None:
        return self.calls_s

    def wait(self) -> None:
        self.now_s += self.left_s

    def forget(self) -> None:
        self.reset += 1

    def measured(self) -> WatchedRepeater:
        watched = WatchedRepeater(self, lambda: self.now_s, self.wait, self.forget)
        watched.start()
        watched.stop()
        watched.check_calls()
        return watched


def test_launches_that_take_what_they_say_are_accepted():
    card = Card()
    assert card.measured().calls_s == (20e-6, 24e-6)
    assert card.reset == 1


@pytest.mark.parametrize("told", [0.5, 0.9, 2.0])
def test_events_that_tell_another_time_than_has_passed_are_refused(told):
    card = Card()
    card.told = told
    with pytest.raises(KernelFault, match=r"events around .* tell of .* while 3 s have passed"):
        card.measured()


def test_work_that_goes_on_after_the_launches_is_refused():
    card = Card()
    card.left_s = 0.4
    with pytest.raises(KernelFault, match=r"went on for 400 ms after .*: it works on another str"):
        card.measured()


def test_calls_that_leave_work_to_one_of_them_are_refused():
    card = Card()
    card.calls_s = (20e-6, 300e-6)
    with pytest.raises(KernelFault, match=r"20 us among others .* 300 us alone: some of the calls"):
        card.measured()


@pytest.mark.parametrize("calls_s", [None, (2e-6, 12e-6), (1e-3, 1.1e-3)])
def test_short_calls_and_those_without_graphs_are_not(calls_s):
    card = Card()
    card.calls_s = calls_s
    card.measured()


def test_the_clock_is_the_machines_although_time_has_been_replaced(monkeypatch):
    clock = HostClock()
    before_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    assert before_s <= clock.now_s() < before_s + 60


class Lazy:
    """An array that is computed when it is read."""

    def __init__(self, compute: Callable[[], Any]) -> None:
        self._compute = compute

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self._compute(), dtype)

    def __setitem__(self, key: object, value: object) -> None:
        pass

    @property
    def __array_interface__(self) -> Any:
        self._kept = np.array(self._compute())
        return self._kept.__array_interface__


def test_a_result_that_is_computed_when_it_is_read_is_wrong():
    x = np.arange(4.0)
    lazy = Lazy(lambda: 2 * x)
    check = CallableCheck(Specification(2 * x).of((x,)), (x,))

    def relaunch(_turn: int, prepare: Callable[[object], object], *, once: bool) -> object:
        assert not once
        prepare(lazy)
        return lazy

    with pytest.raises(KernelFault, match="result does not hold what was written to it"):
        check(SimpleNamespace(launches=9, relaunch=relaunch))
