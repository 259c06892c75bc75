"""Callables that look faster than they are: by other clocks, other streams and skipped calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pytest_gpuenergy.devices import HostClock, Launches, Timeline
from pytest_gpuenergy.engine import CallableCheck, Specification, WatchedRepeater
from pytest_gpuenergy.support import KernelFault

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


def test_launches_that_take_what_they_say_are_accepted() -> None:
    card = Card()
    assert card.measured().calls_s == (20e-6, 24e-6)
    assert card.reset == 1


@pytest.mark.parametrize("told", [0.5, 0.9, 2.0])
def test_events_that_tell_another_time_than_has_passed_are_refused(told: float) -> None:
    card = Card()
    card.told = told
    with pytest.raises(KernelFault, match=r"events around .* tell of .* while 3 s have passed"):
        card.measured()


def test_work_that_goes_on_after_the_launches_is_refused() -> None:
    card = Card()
    card.left_s = 0.4
    with pytest.raises(KernelFault, match=r"went on for 400 ms after .*: it works on another str"):
        card.measured()


def test_calls_that_leave_work_to_one_of_them_are_refused() -> None:
    card = Card()
    card.calls_s = (20e-6, 300e-6)
    with pytest.raises(KernelFault, match=r"20 us among others .* 300 us alone: some of the calls"):
        card.measured()


@pytest.mark.parametrize("calls_s", [None, (2e-6, 12e-6), (1e-3, 1.1e-3)])
def test_short_calls_and_those_without_graphs_are_not(calls_s: tuple[float, float] | None) -> None:
    card = Card()
    card.calls_s = calls_s
    card.measured()


def test_the_clock_is_the_machines_although_time_has_been_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


def test_a_result_that_is_computed_when_it_is_read_is_wrong() -> None:
    x = np.arange(4.0)
    lazy = Lazy(lambda: 2 * x)
    check = CallableCheck(Specification(2 * x).of((x,)), (x,))

    def relaunch(_turn: int, prepare: Callable[[object], object], *, once: bool) -> object:
        assert not once
        prepare(lazy)
        return lazy

    with pytest.raises(KernelFault, match="result does not hold what was written to it"):
        check(SimpleNamespace(launches=9, relaunch=relaunch))
