"""Signals that end a run end it as Ctrl-C does, and those that were ignored stay so."""

from __future__ import annotations

import signal

import pytest

from pytest_gpuenergy.support.signals import termination_as_interrupt, uninterrupted

ENDING = [signal.SIGTERM, signal.SIGHUP]


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_that_ends_a_process_interrupts_it(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), termination_as_interrupt():
        signal.raise_signal(number)
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("guard", [termination_as_interrupt, uninterrupted])
@pytest.mark.parametrize("number", ENDING)
def test_what_nohup_ignores_stays_ignored(number: signal.Signals, guard: object) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with guard():  # type: ignore[operator]
            signal.raise_signal(number)
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)
