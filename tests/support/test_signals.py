"""Terminating signals end a run as Ctrl-C does, and ignored signals stay ignored."""

from __future__ import annotations

import signal
import threading

import pytest

from pytest_gpuenergy.support import (
    interrupt_once,
    termination_as_interrupt,
    undisturbed,
    uninterrupted,
)

ENDING = [signal.SIGTERM, signal.SIGHUP]


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_that_ends_a_process_interrupts_it(number):
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), termination_as_interrupt():
        signal.raise_signal(number)
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("guard", [termination_as_interrupt, uninterrupted])
@pytest.mark.parametrize("number", ENDING)
def test_what_nohup_ignores_stays_ignored(number, guard):
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with guard():  # type: ignore[operator]
            signal.raise_signal(number)
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_one_signal_interrupts_and_those_that_follow_do_not():
    with interrupt_once():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        for number in (signal.SIGINT, *ENDING):
            signal.raise_signal(number)


def test_a_first_signal_may_ask_and_the_second_interrupt():
    stop = threading.Event()
    with interrupt_once(stop):
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)


def test_handlers_that_are_there_already_are_kept():
    with interrupt_once():
        before = signal.getsignal(signal.SIGTERM)
        with termination_as_interrupt():
            assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_is_undisturbed_is_not_interrupted(number):
    before = signal.getsignal(number)
    with undisturbed():
        signal.raise_signal(number)
    assert signal.getsignal(number) == before
