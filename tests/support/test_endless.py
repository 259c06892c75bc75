"""Third-party Python code that does not end by itself."""

from __future__ import annotations

import contextlib
import resource
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from pytest_gpuenergy.support import EndlessError, ended_after, ended_by_signals


def test_a_loop_without_an_end_is_ended():
    with pytest.raises(EndlessError), ended_after(0.01):
        sum(1 for _ in iter(int, 1))


def test_it_is_ended_in_its_own_thread():
    ended = []

    def work() -> None:
        try:
            with ended_after(0.01):
                sum(1 for _ in iter(int, 1))
        except EndlessError:
            ended.append(threading.get_ident())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ended == [thread.ident]


def test_what_ends_in_time_is_left_alone_and_leaves_nothing_behind():
    before = threading.active_count()
    with ended_after(60.0):
        pass
    with pytest.raises(ValueError, match="its own"), ended_after(60.0):
        raise ValueError("its own")
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join()
    assert threading.active_count() <= before


STUCK = """
import itertools, os, signal, sys
import pytest_gpuenergy.support.endless as endless
from pytest_gpuenergy.support.signals import termination_as_interrupt

endless.GRACE_S, endless.LONGEST_S = 0.1, 0.05
with termination_as_interrupt(), endless.ended_by_signals(limited={limited}):
    print("begun", flush=True)
    {code}
print("ended", flush=True)
"""
FOREVER = """
    while True:
        try:
            all(itertools.repeat(1))  # in C, which lets no handler run
        except KeyboardInterrupt:
            pass
"""


def stuck(code: str, *, limited: bool = False) -> subprocess.Popen[str]:
    text = STUCK.format(code=code, limited=limited)
    child = subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "begun\n"
    return child


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_code_that_python_cannot_interrupt(number):
    child = stuck(FOREVER)
    while child.poll() is None:  # the first one may come before the call
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=0.05)
        child.send_signal(number)
    _, error = child.communicate()
    assert child.returncode == -signal.SIGKILL
    assert error.startswith("gpuenergy: a reference did not end by a signal, so the process was ")
    assert "restored by the next run" in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_code_that_python_can_interrupt_is_ended_by_python():
    child = stuck("while True: pass")
    child.send_signal(signal.SIGINT)
    _, error = child.communicate(timeout=20)
    assert error.endswith("KeyboardInterrupt: SIGINT\n") or "KeyboardInterrupt" in error
    assert "killed" not in error


@pytest.mark.slow
def test_code_that_takes_too_long_is_ended_without_a_signal():
    _, error = stuck(FOREVER, limited=True).communicate(timeout=20)
    assert "gpuenergy: a reference took too long, so the process was killed." in error


@pytest.mark.slow
def test_a_handler_that_goes_on_lets_the_code_end():
    code = "signal.signal(signal.SIGUSR1, print); os.kill(os.getpid(), signal.SIGUSR1)"
    child = stuck(f"{code}; signal.pause() if False else None")
    assert child.stdout is not None
    assert child.stdout.read().endswith("ended\n")
    _, error = child.communicate()
    assert (child.returncode, error) == (0, "")


def test_more_memory_than_there_is_is_refused():
    soft = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(MemoryError), ended_by_signals():
        [np.zeros(1 << 29) for _ in range(10_000)]  # nobody touches them
    assert resource.getrlimit(resource.RLIMIT_DATA) == soft


def test_signals_are_handled_as_before_afterwards():
    def handlers() -> list[object]:
        return [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]

    before = handlers()
    with ended_by_signals(), ended_by_signals(limited=True):
        pass
    assert handlers() == before
    assert signal.set_wakeup_fd(-1) == -1


def test_other_threads_are_left_alone():
    def work() -> None:
        with ended_by_signals():
            found.append(resource.getrlimit(resource.RLIMIT_DATA))

    found: list[tuple[int, int]] = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [resource.getrlimit(resource.RLIMIT_DATA)]
